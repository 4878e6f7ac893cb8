"""`jaxdelegate serve`: models behind HTTP and gRPC."""

import dataclasses
import functools
import importlib
import os
from pathlib import Path
from typing import Any

from absl import flags

from jaxdelegate.errors import OptionError
from jaxdelegate.options import DelegateOptions
from jaxdelegate.providers import use_threads
from jaxdelegate.providers.parsing import Flag, flags_of
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.service import parse_models
from jaxdelegate.serve.settings import WARM_KINDS, ServeSettings
from jaxdelegate.text import listed
from jaxdelegate.tools import delegate_flags

_KEYS = "JAXDELEGATE_API_KEY"
OPTIONS = tuple(field.name for field in dataclasses.fields(DelegateOptions))


# By flag; bodies have the time limit of requests, and that flag.
_FIELDS = {flag.name: flag for kind in (Limits, ServeSettings) for flag in flags_of(kind)}
_FIELDS["speculative_decoding"] = dataclasses.replace(
    _FIELDS["speculative_decoding"], type=str, default="false", choices=("true", "false")
)
_FIELDS["warm"] = dataclasses.replace(_FIELDS["warm"], default="all")
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
    *_FIELDS.values(),
    Flag("num_threads", int, -1, "CPU threads of XLA; -1: its choice.", lower=-1),
)  # fmt: skip


def run(values: flags.FlagValues) -> int:
    models = _models(values)
    settings = ServeSettings(
        **values_of(ServeSettings, values)
        | {
            "speculative_decoding": values.speculative_decoding == "true",
            "lora": parse_models(values.lora, "lora") if values.lora else {},
            "warm": _warm(values.warm),
            "delegate_options": delegate_flags.given_options(values),
        }
    )
    keys = listed(values.api_key or os.environ.get(_KEYS, ""))
    limits = Limits(**values_of(Limits, values) | {"api_keys": keys})
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


def values_of(settings: type[ServeSettings | Limits], values: flags.FlagValues) -> dict[str, Any]:
    """The values of the fields that are flags."""
    found = {}
    for field in dataclasses.fields(settings):
        if "help" in field.metadata:
            value = values[field.metadata.get("name", field.name)].value
            found[field.name] = listed(value) if isinstance(field.default, tuple) else value
    return found


def _warm(text: str) -> tuple[str, ...]:
    kinds = {"all": WARM_KINDS, "none": ()}.get(text, listed(text))
    if not kinds and text != "none":
        raise OptionError(f"warm: must be all, none or kinds of requests, got {text!r}")
    return kinds


def _models(values: flags.FlagValues) -> dict[str, str]:
    if bool(values.graph) == bool(values.models):
        raise OptionError("give either a .tflite file or --models=name=path,name=path")
    if values.models:
        if values.name is not None:
            raise OptionError("--name is for one model; --models names each")
        return parse_models(values.models)
    return {Path(values.graph).stem if values.name is None else values.name: values.graph}
