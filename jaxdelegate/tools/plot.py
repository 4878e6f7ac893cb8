"""`jaxdelegate plot`: figures of the tools' JSON results."""

from pathlib import Path

from absl import flags

from jaxdelegate.errors import OptionError
from jaxdelegate.providers.parsing import Flag
from jaxdelegate.report.plots import KINDS, Peaks, draw, kind_of, save
from jaxdelegate.report.plots.figure import FORMATS, check_path
from jaxdelegate.text import printable

FILES = "input"
FLAGS = (
    Flag("kind", str, None, "What to draw; unset: what the results have.", tuple(KINDS)),
    Flag("input", str, "", "JSON results: a.json,b.json.", is_required=True),
    Flag(
        "output", str, None,
        f"The figure: a name that ends in {', '.join(FORMATS)}; unset: a .png named as the first "
        "result, in the current folder.",
        is_output=True,
    ),
    Flag("peak_flops", float, None, "Peak FLOP/s of the device, for --kind=roofline.", lower=0.0),
    Flag(
        "peak_bandwidth", float, None, "Peak bytes/s of its memory, for --kind=roofline.",
        lower=0.0,
    ),
)  # fmt: skip


def run(values: flags.FlagValues) -> int:
    flops, bandwidth = values.peak_flops, values.peak_bandwidth
    if (flops is None) != (bandwidth is None):
        raise OptionError("--peak_flops and --peak_bandwidth: give both or neither")
    paths = [path.strip() for path in values.input.split(",")]
    output = values.output or f"{Path(paths[0]).stem}.png"
    check_path(output)
    peaks = None
    if flops is not None:
        peaks = Peaks(flops, bandwidth, "given by --peak_flops", "given by --peak_bandwidth")
    kind = values.kind or kind_of(paths)
    save(draw(kind, paths, peaks), output)
    print(printable(f"{kind} plot of {', '.join(paths)} written to {output}"))
    return 0
