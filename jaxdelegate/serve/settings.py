"""The settings of a served model."""

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any

from jaxdelegate.errors import OptionError
from jaxdelegate.options import DelegateOptions

# The keys in lm/warm_up.py, which takes long to import.
WARM_KINDS = (
    *("any", "long", "sampling", "json", "penalties"),
    *("all_tokens", "logprobs", "embeddings", "images", "sounds"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """How a model is served.

    Attributes:
        max_batch_size: how many items run at once; 1: no batching.
        max_queue_delay_us: how long a request may wait for others to join its batch, in
            microseconds; 0: a batch is formed from the requests that wait when the model is free.
        max_queue_size: how many requests may wait; more are refused with status 503.
        timeout_s: seconds that a request may take, including its time in the queue; 0: no limit.
        answer_timeout_s: the same for requests to language models.
        max_num_tokens: how many tokens a language model's prompt and answer may have; it
            chooses among caches of several lengths. None: as many as in `lm.Engine`.
        share_prefixes: whether a prompt to a language model may use what its caches have of other
            clients' prompts. It lets them guess these, by the count of cached tokens or the time.
        speculative_decoding: whether the drafters of language models propose tokens. It is an error
            if one has none.
        batch_invariant: whether answers of language models are the same, bit for bit, whatever
            other requests there are and what caches have of prompts.
        lora: files of LoRA adapters, by the names of models that clients use. They are of the same
            rank, and for the only language model.
        warm: kinds of requests to language models, of WARM_KINDS, whose programs are compiled in
            the background as soon as a model is ready. Those of others are compiled when needed.
        session_count: how many sequences of a model with states may be open at once.
        sessions_per_client: how many of them one client may have, by its API key or address.
        session_idle_s: seconds without a request after which a sequence is dropped.
        session_hold_s: seconds after its last request in which a sequence is not dropped, even if
            there are too many.
        delegate_options: JaxDelegate's options, by name.
        use_delegate: whether JaxDelegate runs the model; false: the numpy reference, one item at
            a time.
    """

    max_batch_size: int = 8
    max_queue_delay_us: int = 0
    max_queue_size: int = 1024
    timeout_s: float = 60.0
    answer_timeout_s: float = 600.0
    max_num_tokens: int | None = None
    share_prefixes: bool = False
    speculative_decoding: bool = False
    batch_invariant: bool = False
    lora: Mapping[str, str] = dataclasses.field(default_factory=dict)
    warm: Collection[str] = WARM_KINDS
    session_count: int = 4096
    sessions_per_client: int = 1024
    session_idle_s: float = 3600.0
    session_hold_s: float = 30.0
    delegate_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    use_delegate: bool = True

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_queue_size", "session_count", "sessions_per_client"):
            self._check(name, int, 1)
        self._check("max_queue_delay_us", int, 0)
        if self.max_num_tokens is not None:
            self._check("max_num_tokens", int, 1)
        for name in ("timeout_s", "answer_timeout_s", "session_hold_s"):
            self._check(name, (int, float), 0)
        self._check("session_idle_s", (int, float), 0, is_open=True)
        unknown = [kind for kind in self.warm if kind not in WARM_KINDS]
        if unknown or isinstance(self.warm, str):
            got = repr(self.warm) if isinstance(self.warm, str) else repr(unknown[0])
            raise OptionError(f"warm: must be kinds of {', '.join(WARM_KINDS)}, got {got}")
        DelegateOptions.of(self.delegate_options)

    def _check(
        self, name: str, kind: type | tuple[type, ...], least: int, *, is_open: bool = False
    ) -> None:
        value = getattr(self, name)
        is_number = isinstance(value, kind) and not isinstance(value, bool)
        is_in_range = (
            is_number and value < math.inf and (value > least if is_open else value >= least)
        )
        if not is_in_range:
            what = "an integer" if kind is int else "a number"
            bound = f"> {least}" if is_open else f">= {least}"
            raise OptionError(f"{name}: must be {what} {bound}, got {value!r}")
