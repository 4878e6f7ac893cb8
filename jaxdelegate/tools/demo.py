"""`jaxdelegate demo`: the main job on an embedded model."""

from absl import flags

from jaxdelegate.demo.mobilenet import run_demo


def define(values: flags.FlagValues) -> None:
    """Declare the tool's flags."""
    flags.DEFINE_integer(
        "size", 224, "Height and width of the input.", 32, 1024, flag_values=values
    )
    flags.DEFINE_float(
        "width", 1.0, "Width multiplier of the channels.", 0.25, 1.0, flag_values=values
    )
    flags.DEFINE_integer("num_runs", 20, "Timed runs of the delegate.", 1, flag_values=values)


def run(values: flags.FlagValues) -> int:
    """Print the demo; 1 if the outputs disagree."""
    result = run_demo(size=values.size, width=values.width, num_runs=values.num_runs)
    print(result)
    return 0 if result.agrees else 1
