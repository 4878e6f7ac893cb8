"""How the latencies of single inferences are distributed."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jaxdelegate.errors import OptionError
from jaxdelegate.report.plots.figure import color, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class LatencyRuns:
    """The latencies of one benchmark, in milliseconds.

    Attributes:
        name: for the legend.
        values: of every run, if they are known.
        percentiles: percent -> latency, where only these are known.
    """

    name: str
    values: tuple[float, ...] = ()
    percentiles: Mapping[float, float] = dataclasses.field(default_factory=dict)

    def curve(self) -> tuple[list[float], list[float]]:
        """Latencies in rising order, and the share of runs (in percent) that took no longer."""
        if self.values:
            n = len(self.values)
            return sorted(self.values), [100 * (i + 1) / n for i in range(n)]
        points = sorted(self.percentiles.items())
        return [latency for _, latency in points], [percent for percent, _ in points]

    def median(self) -> float:
        """The latency that half of the runs did not exceed; between two, the mean."""
        latencies, shares = self.curve()
        if not self.values:
            nearest = min(range(len(shares)), key=lambda i: abs(shares[i] - 50))
            return latencies[nearest]
        middle = len(latencies) // 2
        return (latencies[middle] + latencies[-middle - 1]) / 2


def latency_distribution(runs: Sequence[LatencyRuns]) -> "Figure":
    """The cumulative distribution of each benchmark, with its median marked.

    Raises:
        OptionError: there is nothing to draw, or no matplotlib.
    """
    runs = [run for run in runs if run.values or run.percentiles]
    if not runs:
        raise OptionError("latency plot: want latencies of at least one run, got none")
    figure, (axes,) = new_figure("Latency distribution")
    for i, run in enumerate(runs):
        latencies, shares = run.curve()
        style = "steps-post" if run.values else "default"
        marker = "" if run.values else "o"
        label = f"{run.name} (median {run.median():.4g} ms)"
        axes.plot(latencies, shares, drawstyle=style, marker=marker, color=color(i), label=label)
        axes.axvline(run.median(), color=color(i), linestyle=":", linewidth=1)
    axes.set_xlabel("latency of one inference (ms)")
    axes.set_ylabel("inferences that took no longer (%)")
    axes.set_ylim(0, 102)
    axes.legend()
    return figure
