"""`jaxdelegate plot`: figures of the tools' JSON results."""

from absl import flags

from jaxdelegate.errors import OptionError
from jaxdelegate.report.plots import KINDS, Peaks, draw, save
from jaxdelegate.report.plots.figure import FORMATS, check_path
from jaxdelegate.text import printable
from jaxdelegate.tools import output_files


def define(values: flags.FlagValues) -> None:
    """Declare the tool's flags."""
    flags.DEFINE_enum("kind", None, list(KINDS), "What to draw.", flag_values=values)
    flags.DEFINE_list("input", [], "JSON results: a.json,b.json.", flag_values=values)
    flags.DEFINE_string(
        "output", None, f"The figure: a name that ends in {', '.join(FORMATS)}.", flag_values=values
    )
    flags.DEFINE_float(
        "peak_flops", None, "Of the device, FLOP/s, for --kind=roofline.", 0.0, flag_values=values
    )
    flags.DEFINE_float(
        "peak_bandwidth", None, "Of its memory, bytes/s, for the same.", 0.0, flag_values=values
    )


def run(values: flags.FlagValues) -> int:
    """Draw."""
    for name in ("kind", "input", "output"):
        if not values[name].value:
            raise OptionError(f"--{name}: must be given")
    flops, bandwidth = values.peak_flops, values.peak_bandwidth
    if (flops is None) != (bandwidth is None):
        raise OptionError("--peak_flops and --peak_bandwidth: give both or neither")
    check_path(values.output)
    output_files.check(values, ["output"])
    peaks = None
    if flops is not None:
        peaks = Peaks(flops, bandwidth, "given by --peak_flops", "given by --peak_bandwidth")
    save(draw(values.kind, values.input, peaks), values.output)
    print(printable(f"{values.kind} plot of {', '.join(values.input)} written to {values.output}"))
    return 0
