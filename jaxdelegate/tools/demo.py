"""`jaxdelegate demo`: the main job on an embedded model; the sample tasks in a browser."""

from absl import flags

from jaxdelegate.demo.mobilenet import run_demo
from jaxdelegate.demo.serving import serve
from jaxdelegate.errors import OptionError
from jaxdelegate.tools import delegate_flags


def define(values: flags.FlagValues) -> None:
    """Declare the tool's flags."""
    flags.DEFINE_integer(
        "size", 224, "Height and width of the input.", 32, 1024, flag_values=values
    )
    flags.DEFINE_float(
        "width", 1.0, "Width multiplier of the channels.", 0.25, 1.0, flag_values=values
    )
    flags.DEFINE_integer("num_runs", 20, "Timed runs of the delegate.", 1, flag_values=values)
    delegate_flags.define_options(values, "native_kernels")
    flags.DEFINE_bool(
        "web", False, "Serve the sample tasks as a page for a browser.", flag_values=values
    )
    flags.DEFINE_integer(
        "port", None, "For --web. Unset: the first free one from 7860 on.", 1, 65535,
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_string(
        "host", "127.0.0.1", "For --web: the address to listen on; 0.0.0.0 lets other machines in.",
        flag_values=values,
    )  # fmt: skip


def run(values: flags.FlagValues) -> int:
    """Print the demo, or serve the page until Ctrl-C; 1 if the outputs disagree.

    Raises:
        OptionError: --port or --host without --web, or a package that --web needs is missing.
    """
    if values.web:
        serve(values.host, values.port)
        return 0
    if values["port"].present or values["host"].present:
        raise OptionError("--port and --host are for --web")
    result = run_demo(size=values.size, width=values.width, num_runs=values.num_runs)
    print(result)
    return 0 if result.agrees else 1
