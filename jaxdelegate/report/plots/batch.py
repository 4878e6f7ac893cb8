"""How throughput and latency grow with the batch."""

import dataclasses
import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxdelegate.errors import OptionError
from jaxdelegate.report.plots.figure import legend_below, new_figure, spread_scale, style

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


def batch_scaling(points: Sequence[BatchPoint], *, title: str = "") -> "Figure":
    """Samples per second, and next to it latency, by batch; a line for each series.

    Args:
        points: those without a batch or a latency are left out.
        title: what was measured, and where; a second line of the figure's title.

    Raises:
        OptionError: there is nothing to draw, or no matplotlib.
    """
    usable = [point for point in points if point.batch > 0 and point.latency_ms > 0]
    if not usable:
        raise OptionError("batch plot: want benchmarks with a batch and a latency, got none")
    names = list(dict.fromkeys(point.series for point in usable))
    height = 4.8 + 0.2 * len(names)
    figure, (left, right) = new_figure(f"Batch scaling\n{title}", columns=2, height=height)
    lines: list[Any] = []
    for i, name in enumerate(names):
        mine = sorted((p for p in usable if p.series == name), key=lambda p: p.batch)
        batches = [point.batch for point in mine]
        lines += left.plot(batches, [p.per_second for p in mine], label=name, **style(i))
        right.plot(batches, [p.latency_ms for p in mine], label=name, **style(i))
    _scale(left, usable, [point.per_second for point in usable], "throughput (samples/s)")
    _scale(right, usable, [point.latency_ms for point in usable], "latency of a batch (ms)")
    legend_below(figure, lines)
    return figure


def _scale(axes: Any, points: Sequence[BatchPoint], values: Sequence[float], what: str) -> None:
    ticker = importlib.import_module("matplotlib.ticker")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(ticker.LogLocator(base=2, numticks=12))
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
    axes.set_xlim(min(p.batch for p in points) / 1.3, max(p.batch for p in points) * 1.3)
    spread_scale(axes.yaxis, values)
    axes.set_xlabel("batch (samples)")
    axes.set_ylabel(what)
