"""`jaxdelegate demo`: a first inference on an embedded model; the sample tasks in a browser."""

from absl import flags

from jaxdelegate.demo.mobilenet import run_demo
from jaxdelegate.demo.serving import serve
from jaxdelegate.errors import OptionError
from jaxdelegate.providers.parsing import Flag

OPTIONS = ("native_kernels",)
FLAGS = (
    Flag("size", int, 224, "Height and width of the input.", lower=32, upper=1024),
    Flag("width", float, 1.0, "Width multiplier of the channels.", lower=0.25, upper=1.0),
    Flag("num_runs", int, 20, "Timed runs of the delegate.", lower=1),
    Flag("web", bool, False, "Serve the sample tasks as a page for a browser."),
    Flag(
        "port", int, None, "For --web. Unset: the first free port from 7860.",
        lower=1, upper=65535,
    ),
    Flag(
        "host", str, "127.0.0.1",
        "For --web: the address to listen on; 0.0.0.0 accepts other machines.",
    ),
)  # fmt: skip


def run(values: flags.FlagValues) -> int:
    """Print the demo, or serve the page until Ctrl-C; returns 1 if the outputs disagree."""
    if values.web:
        serve(values.host, values.port)
        return 0
    if values["port"].present or values["host"].present:
        raise OptionError("--port and --host are for --web")
    result = run_demo(size=values.size, width=values.width, num_runs=values.num_runs)
    print(result)
    return 0 if result.agrees else 1
