"""The settings of a served model."""

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any

from jaxdelegate.errors import OptionError
from jaxdelegate.options import DelegateOptions, KVCacheDtype, checked_kv_cache_dtype

# The keys in lm/warm_up.py, which takes long to import.
WARM_KINDS = (
    *("any", "long", "sampling", "json", "penalties"),
    *("all_tokens", "logprobs", "embeddings", "images", "sounds"),
)


def setting(default: Any, text: str, least: float | None = None, *, flag: str = "") -> Any:
    """A field that is a flag of `jaxdelegate serve`, by its own name or another one."""
    metadata = {"help": text, "lower": least} | ({"name": flag} if flag else {})
    if isinstance(default, tuple):  # a list in the flag's text
        metadata["default"] = ""
    return dataclasses.field(default=default, metadata=metadata)


def check_numbers(settings: Any) -> None:
    """An OptionError if a field's value is below its least one, or not of the field's type."""
    for field in dataclasses.fields(settings):
        least, value = field.metadata.get("lower"), getattr(settings, field.name)
        if least is None or (value is None and field.default is None):
            continue
        kind = (int, float) if field.type is float else int
        is_number = isinstance(value, kind) and not isinstance(value, bool)
        if not is_number or not least <= value < math.inf:
            what = "an integer" if kind is int else "a number"
            raise OptionError(f"{field.name}: must be {what} >= {least}, got {value!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """How a model is served."""

    max_batch_size: int = setting(8, "Items that run at once; 1: no batching.", 1)
    max_queue_delay_us: int = setting(
        0, "Microseconds that a request may wait for others; 0: waiting requests form a batch.", 0
    )
    max_queue_size: int = setting(
        1024, "Requests that may wait. Further ones are rejected with status 503, or 429.", 1
    )
    timeout_s: float = setting(
        60.0, "Seconds that a request may take; 0: no limit.", 0, flag="request_timeout_s"
    )
    answer_timeout_s: float = setting(600.0, "The same for requests to language models.", 0)
    # A language model chooses among caches of several lengths. None: as many as in `lm.Engine`.
    max_num_tokens: int | None = setting(
        None, "Of a language model: tokens of a prompt and its answer, at most.", 1
    )
    # Others guess prompts by the count of cached tokens, or the time.
    share_prefixes: bool = setting(
        False,
        "Whether prompts may use what caches have of other clients' prompts, who may guess these "
        "then.",
    )
    speculative_decoding: bool = setting(
        False,
        "Whether drafters of language models propose tokens; only rounding can change answers.",
    )
    batch_invariant: bool = setting(
        False,
        "Whether the answers of language models depend on no other request, not even by rounding.",
    )
    kv_cache_dtype: KVCacheDtype = setting(
        "auto",
        "The dtype of language models' KV caches; auto: float32, on a GPU --jax_compute_dtype.",
    )
    # Files by names; they are of the same rank, and for the only language model.
    lora: Mapping[str, str] = dataclasses.field(
        default_factory=dict,
        metadata={
            "help": "LoRA adapters of the language model, each a model for clients: "
            "name=path,name=path.",
            "default": "",
        },
    )
    # Programs of other kinds are compiled when they are needed.
    warm: Collection[str] = setting(
        WARM_KINDS,
        "Kinds of requests to language models whose programs are compiled in the background once a "
        f"model is ready: all, none, or some of {','.join(WARM_KINDS)}.",
    )
    session_count: int = setting(
        4096, "Sequences of a model with states that may be open at once.", 1
    )
    sessions_per_client: int = setting(
        1024, "Sequences of one client, by its API key or address, that may be open at once.", 1
    )
    session_idle_s: float = setting(
        3600.0, "Seconds after which an unused sequence is dropped.", 1e-3
    )
    session_hold_s: float = setting(
        30.0,
        "Seconds after its last request during which a sequence is not dropped, even if there are "
        "too many.",
        0,
    )
    # JaxDelegate's, by name.
    delegate_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    use_delegate: bool = True  # false: the numpy reference runs the model, one item at a time

    def __post_init__(self) -> None:
        check_numbers(self)
        checked_kv_cache_dtype(self.kv_cache_dtype)
        unknown = [kind for kind in self.warm if kind not in WARM_KINDS]
        if unknown or isinstance(self.warm, str):
            got = repr(self.warm) if isinstance(self.warm, str) else repr(unknown[0])
            raise OptionError(f"warm: must be kinds of {', '.join(WARM_KINDS)}, got {got}")
        DelegateOptions.of(self.delegate_options)
