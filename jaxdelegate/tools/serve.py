"""`jaxdelegate serve`: models behind HTTP and gRPC."""

import dataclasses
import functools
import importlib
from pathlib import Path

from absl import flags

from jaxdelegate.errors import OptionError
from jaxdelegate.options import DelegateOptions
from jaxdelegate.providers import use_threads
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.opening import parse_models
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.tools import delegate_flags

_SETTINGS, _LIMITS = ServeSettings(), Limits()


def define(values: flags.FlagValues) -> None:
    """Declare the tool's flags, and those of JaxDelegate."""
    flags.DEFINE_string("graph", None, "The .tflite file.", flag_values=values)
    flags.DEFINE_string(
        "name", None, "The name that clients give. Unset: the file's, without .tflite.",
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_string("models", "", "Several models: name=path,name=path.", flag_values=values)
    flags.DEFINE_string(
        "host", "127.0.0.1", "The address to listen on. 0.0.0.0 lets other machines in.",
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_integer(
        "port", 8000, "The port of HTTP, or 0 for a free one.", 0, 65535, flag_values=values
    )
    flags.DEFINE_integer(
        "grpc_port",
        None,
        "The port of gRPC, or 0 for a free one; unset: no gRPC.",
        0,
        65535,
        flag_values=values,
    )
    flags.DEFINE_integer(
        "max_batch_size", _SETTINGS.max_batch_size, "Items that run at once; 1: no batching.", 1,
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_integer(
        "max_queue_delay_us", _SETTINGS.max_queue_delay_us,
        "Microseconds that a request may wait for others; 0: what waits forms a batch.", 0,
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_integer(
        "max_queue_size", _SETTINGS.max_queue_size,
        "Requests that may wait. More are refused with status 503.", 1, flag_values=values,
    )  # fmt: skip
    flags.DEFINE_float(
        "request_timeout_s", _SETTINGS.timeout_s,
        "Seconds that a request may take; 0: any.", 0, flag_values=values,
    )  # fmt: skip
    flags.DEFINE_integer(
        "max_request_bytes", _LIMITS.max_request_bytes,
        "The largest body of a request, also decompressed. More: status 413.", 1,
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_integer(
        "max_held_bytes", _LIMITS.max_held_bytes,
        "Bytes of all bodies, and of all answers, that are held at a time. More wait.", 1,
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_integer(
        "session_count", _SETTINGS.session_count,
        "Sequences that may be open at once, of a model with states.", 1, flag_values=values,
    )  # fmt: skip
    flags.DEFINE_integer(
        "sessions_per_client", _SETTINGS.sessions_per_client,
        "Sequences that may be open at once of one client, by its address.", 1, flag_values=values,
    )  # fmt: skip
    flags.DEFINE_float(
        "session_idle_s", _SETTINGS.session_idle_s,
        "Seconds after which a sequence that nobody used is dropped.", 1e-3, flag_values=values,
    )  # fmt: skip
    flags.DEFINE_float(
        "session_hold_s", _SETTINGS.session_hold_s,
        "Seconds after its last request in which a sequence keeps its place, even if there are too "
        "many.", 0, flag_values=values,
    )  # fmt: skip
    flags.DEFINE_integer(
        "num_threads", -1, "CPU threads of XLA; -1: its choice.", -1, flag_values=values
    )
    names = [field.name for field in dataclasses.fields(DelegateOptions)]
    delegate_flags.define_options(values, *names)


def run(values: flags.FlagValues) -> int:
    """Serve until SIGTERM or Ctrl-C.

    Raises:
        OptionError: no model, or an impossible flag.
    """
    models = _models(values)
    settings = ServeSettings(
        max_batch_size=values.max_batch_size,
        max_queue_delay_us=values.max_queue_delay_us,
        max_queue_size=values.max_queue_size,
        timeout_s=values.request_timeout_s,
        session_count=values.session_count,
        sessions_per_client=values.sessions_per_client,
        session_idle_s=values.session_idle_s,
        session_hold_s=values.session_hold_s,
        delegate_options=delegate_flags.given_options(values),
    )
    limits = Limits(values.max_request_bytes, values.request_timeout_s, values.max_held_bytes)
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


def _models(values: flags.FlagValues) -> dict[str, str]:
    if bool(values.graph) == bool(values.models):
        raise OptionError("want a .tflite file, or --models=name=path,name=path; one of them")
    if values.models:
        if values.name is not None:
            raise OptionError("--name is for one model; --models names each")
        return parse_models(values.models)
    return {Path(values.graph).stem if values.name is None else values.name: values.graph}
