"""`jaxdelegate demo`: a first inference, on a MobileNet v1 that it builds."""

from absl import flags

from jaxdelegate.demo.mobilenet import run_demo
from jaxdelegate.providers.parsing import Flag

OPTIONS = ("native_kernels",)
FLAGS = (
    Flag("size", int, 224, "Height and width of the input.", lower=32, upper=1024),
    Flag("width", float, 1.0, "Width multiplier of the channels.", lower=0.25, upper=1.0),
    Flag("num_runs", int, 20, "Timed runs of the delegate.", lower=1),
)


def run(values: flags.FlagValues) -> int:
    """Print the demo; returns 1 if the outputs disagree."""
    result = run_demo(size=values.size, width=values.width, num_runs=values.num_runs)
    print(result)
    return 0 if result.agrees else 1
