"""`jaxdelegate serve`: models behind HTTP and gRPC."""

import dataclasses
import functools
import importlib
import os
from pathlib import Path

from absl import flags

from jaxdelegate.errors import OptionError
from jaxdelegate.options import DelegateOptions
from jaxdelegate.providers import use_threads
from jaxdelegate.providers.parsing import Flag
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.service import parse_models
from jaxdelegate.serve.settings import WARM_KINDS, ServeSettings
from jaxdelegate.tools import delegate_flags

_KEYS = "JAXDELEGATE_API_KEY"
_SETTINGS, _LIMITS = ServeSettings(), Limits()
OPTIONS = tuple(field.name for field in dataclasses.fields(DelegateOptions))
FLAGS = (
    Flag("graph", str, None, "The .tflite, .litertlm or .task file."),
    Flag("name", str, None, "The name that clients give. Unset: the file's, without its suffix."),
    Flag("models", str, "", "Several models: name=path,name=path."),
    Flag(
        "host", str, "127.0.0.1", "The address to listen on. 0.0.0.0 accepts other machines."
    ),
    Flag("port", int, 8000, "The port of HTTP, or 0 for a free one.", lower=0, upper=65535),
    Flag(
        "grpc_port", int, None, "The port of gRPC, or 0 for a free one; unset: no gRPC.",
        lower=0, upper=65535,
    ),
    Flag(
        "max_batch_size", int, _SETTINGS.max_batch_size,
        "Items that run at once; 1: no batching.", lower=1,
    ),
    Flag(
        "max_queue_delay_us", int, _SETTINGS.max_queue_delay_us,
        "Microseconds that a request may wait for others; 0: waiting requests form a batch.",
        lower=0,
    ),
    Flag(
        "max_queue_size", int, _SETTINGS.max_queue_size,
        "Requests that may wait. Further ones are rejected with status 503, or 429.", lower=1,
    ),
    Flag(
        "request_timeout_s", float, _SETTINGS.timeout_s,
        "Seconds that a request may take; 0: no limit.", lower=0,
    ),
    Flag(
        "answer_timeout_s", float, _SETTINGS.answer_timeout_s,
        "The same for requests to language models.", lower=0,
    ),
    Flag(
        "max_num_tokens", int, None,
        "Of a language model: tokens of a prompt and its answer, at most.",
        lower=1,
    ),
    Flag(
        "max_request_bytes", int, _LIMITS.max_request_bytes,
        "The largest request body, also when decompressed. Larger ones: status 413.", lower=1,
    ),
    Flag(
        "max_held_bytes", int, _LIMITS.max_held_bytes,
        "Bytes of all request bodies, and of all responses, held at a time. Others wait.", lower=1,
    ),
    Flag(
        "share_prefixes", bool, _SETTINGS.share_prefixes,
        "Whether prompts may use what caches have of other clients' prompts, who may guess these "
        "then.",
    ),
    Flag(
        "speculative_decoding", str, "false",
        "Whether drafters of language models propose tokens; only rounding can change answers.",
        ("true", "false"),
    ),
    Flag(
        "batch_invariant", bool, _SETTINGS.batch_invariant,
        "Whether the answers of language models depend on no other request, not even by rounding.",
    ),
    Flag(
        "lora", str, "",
        "LoRA adapters of the language model, each a model for clients: name=path,name=path.",
    ),
    Flag(
        "warm", str, "all",
        "Kinds of requests to language models whose programs are compiled in the background once a "
        f"model is ready: all, none, or some of {','.join(WARM_KINDS)}.",
    ),
    Flag(
        "session_count", int, _SETTINGS.session_count,
        "Sequences of a model with states that may be open at once.", lower=1,
    ),
    Flag(
        "sessions_per_client", int, _SETTINGS.sessions_per_client,
        "Sequences of one client, by its API key or address, that may be open at once.", lower=1,
    ),
    Flag(
        "session_idle_s", float, _SETTINGS.session_idle_s,
        "Seconds after which an unused sequence is dropped.", lower=1e-3,
    ),
    Flag(
        "session_hold_s", float, _SETTINGS.session_hold_s,
        "Seconds after its last request during which a sequence is not dropped, even if there are "
        "too many.", lower=0,
    ),
    Flag(
        "allowed_origins", str, "",
        "Web pages that may use the server: https://name,https://name:port. *: all.",
    ),
    Flag(
        "allowed_hosts", str, "",
        "Names of this server besides localhost: name,name. A proxy on the same machine may pass "
        "on the name that its clients use.",
    ),
    Flag(
        "allowed_media_domains", str, "",
        "Hosts of which images in requests are loaded by URL: name,name. *: all on the internet. "
        "Unset: none; images come in the requests.",
    ),
    Flag(
        "api_key", str, "",
        "Keys of clients: key,key. HTTP requests need one: Authorization: Bearer KEY. Unset: the "
        "environment variable JAXDELEGATE_API_KEY, or none.",
    ),
    Flag(
        "strict_fields", bool, _LIMITS.strict_fields,
        "Whether requests to language models with an unknown field are refused.",
    ),
    Flag("num_threads", int, -1, "CPU threads of XLA; -1: its choice.", lower=-1),
)  # fmt: skip
# Settings that have the name of their flag.
_SAME_NAMES = {flag.name for flag in FLAGS} & {f.name for f in dataclasses.fields(ServeSettings)}
_SAME_NAMES -= {"speculative_decoding", "lora", "warm"}


def run(values: flags.FlagValues) -> int:
    models = _models(values)
    settings = ServeSettings(
        **{name: getattr(values, name) for name in _SAME_NAMES},
        speculative_decoding=values.speculative_decoding == "true",
        lora=parse_models(values.lora, "lora") if values.lora else {},
        warm=_warm(values.warm),
        timeout_s=values.request_timeout_s,
        delegate_options=delegate_flags.given_options(values),
    )
    limits = Limits(
        values.max_request_bytes,
        values.request_timeout_s,
        values.max_held_bytes,
        allowed_origins=_listed(values.allowed_origins),
        allowed_hosts=_listed(values.allowed_hosts),
        allowed_media_domains=_listed(values.allowed_media_domains),
        api_keys=_listed(values.api_key or os.environ.get(_KEYS, "")),
        strict_fields=values.strict_fields,
    )
    if limits.api_keys and values.grpc_port is not None:
        raise OptionError("api_key: gRPC does not check keys: leave out --grpc_port")
    use_threads(values.num_threads)
    try:
        running = importlib.import_module("jaxdelegate.serve.running")
        running.Server(
            models,
            settings,
            limits,
            host=values.host,
            port=values.port,
            grpc_port=values.grpc_port,
            say=functools.partial(print, flush=True),
            is_whole_process=True,
        ).run()
    except ImportError as error:
        if "pip install" not in str(error):
            raise
        raise OptionError(str(error)) from None
    return 0


def _warm(text: str) -> tuple[str, ...]:
    kinds = {"all": WARM_KINDS, "none": ()}.get(text, _listed(text))
    if not kinds and text != "none":
        raise OptionError(f"warm: must be all, none or kinds of requests, got {text!r}")
    return kinds


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _models(values: flags.FlagValues) -> dict[str, str]:
    if bool(values.graph) == bool(values.models):
        raise OptionError("give either a .tflite file or --models=name=path,name=path")
    if values.models:
        if values.name is not None:
            raise OptionError("--name is for one model; --models names each")
        return parse_models(values.models)
    return {Path(values.graph).stem if values.name is None else values.name: values.graph}
