"""How throughput and latency grow with the batch."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxdelegate.errors import OptionError
from jaxdelegate.report.plots.figure import color, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class BatchPoint:
    """One benchmark of a series: `latency_ms` is of a whole batch."""

    series: str
    batch: int
    latency_ms: float

    @property
    def per_second(self) -> float:
        """Samples per second."""
        return 1e3 * self.batch / self.latency_ms


def batch_scaling(points: Sequence[BatchPoint]) -> "Figure":
    """Samples per second, and next to it latency, by batch; a line for each series.

    Raises:
        OptionError: there is nothing to draw, or no matplotlib.
    """
    usable = [point for point in points if point.batch > 0 and point.latency_ms > 0]
    if not usable:
        raise OptionError("batch plot: want benchmarks with a batch and a latency, got none")
    figure, (left, right) = new_figure("Batch scaling", columns=2, width=10)
    for i, name in enumerate(dict.fromkeys(point.series for point in usable)):
        mine = sorted((p for p in usable if p.series == name), key=lambda p: p.batch)
        batches = [point.batch for point in mine]
        left.plot(batches, [p.per_second for p in mine], "o-", color=color(i), label=name)
        right.plot(batches, [p.latency_ms for p in mine], "o-", color=color(i), label=name)
    ticks = sorted({point.batch for point in usable})
    for axes, what in ((left, "samples per second"), (right, "latency of a batch (ms)")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(ticks, [str(batch) for batch in ticks])
        axes.set_xlabel("batch")
        axes.set_ylabel(what)
        axes.legend()
    return figure
