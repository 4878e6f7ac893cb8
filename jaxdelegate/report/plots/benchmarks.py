"""Figures of benchmarks: how latencies are distributed, and how they grow with the batch."""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxdelegate.errors import OptionError
from jaxdelegate.report.plots.figure import (
    color,
    legend_below,
    new_figure,
    spread_scale,
    style,
    ticker,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class LatencyRuns:
    """The latencies of the runs of one benchmark, in milliseconds."""

    name: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)


def latency_distribution(runs: Sequence[LatencyRuns], *, title: str = "") -> "Figure":
    """The cumulative distribution of each benchmark that has latencies, with its median marked."""
    runs = [run for run in runs if run.values]
    if not runs:
        raise OptionError("latency plot: expected latencies of at least one run, got none")
    height = 5.0 + 0.2 * len(runs)
    figure, (axes,) = new_figure(f"Latency distribution\n{title}", height=height)
    lines = []
    for i, run in enumerate(runs):
        count = len(run.values)
        lines += axes.plot(
            sorted(run.values),
            [100 * (i + 1) / count for i in range(count)],
            drawstyle="steps-post",
            label=f"{run.name} (median {run.median:.4g} ms)",
            markevery=max(1, count // 12),
            **style(i),
        )
        axes.axvline(run.median, color=color(i), linestyle=":", linewidth=1)
    spread_scale(axes.xaxis, [latency for run in runs for latency in run.values])
    axes.set_xlabel("latency of one inference (ms); dotted: median")
    axes.set_ylabel("inferences that took no longer (%)")
    axes.set_ylim(0, 102)
    legend_below(figure, lines)
    return figure


@dataclasses.dataclass(frozen=True)
class BatchPoint:
    """One benchmark of a series; `latency_ms` is that of a whole batch."""

    series: str
    batch: int
    latency_ms: float

    @property
    def per_second(self) -> float:
        return 1e3 * self.batch / self.latency_ms


def batch_scaling(points: Sequence[BatchPoint], *, title: str = "") -> "Figure":
    """Samples per second and latency by batch, with a line for each series."""
    usable = [point for point in points if point.batch > 0 and point.latency_ms > 0]
    if not usable:
        raise OptionError("batch plot: expected benchmarks with a batch and a latency, got none")
    names = list(dict.fromkeys(point.series for point in usable))
    height = 4.8 + 0.2 * len(names)
    figure, (left, right) = new_figure(f"Batch scaling\n{title}", columns=2, height=height)
    lines: list[Any] = []
    for i, name in enumerate(names):
        mine = sorted((p for p in usable if p.series == name), key=lambda p: p.batch)
        batches = [point.batch for point in mine]
        lines += left.plot(batches, [p.per_second for p in mine], label=name, **style(i))
        right.plot(batches, [p.latency_ms for p in mine], label=name, **style(i))
    left.set_ylabel("throughput (samples/s)")
    spread_scale(left.yaxis, [point.per_second for point in usable])
    right.set_ylabel("latency of a batch (ms)")
    spread_scale(right.yaxis, [point.latency_ms for point in usable])
    for axes in (left, right):
        axes.set_xlabel("batch (samples)")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(ticker().LogLocator(base=2, numticks=12))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlim(min(p.batch for p in usable) / 1.3, max(p.batch for p in usable) * 1.3)
    legend_below(figure, lines)
    return figure
