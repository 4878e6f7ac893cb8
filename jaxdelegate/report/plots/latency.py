"""How the latencies of single inferences are distributed."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jaxdelegate.errors import OptionError
from jaxdelegate.report.plots.figure import color, legend_below, new_figure, spread_scale, style

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


def latency_distribution(runs: Sequence[LatencyRuns], *, title: str = "") -> "Figure":
    """The cumulative distribution of each benchmark, with its median marked.

    Args:
        runs: a curve for each; those without latencies are left out.
        title: what was measured, and where; a second line of the figure's title.

    Raises:
        OptionError: there is nothing to draw, or no matplotlib.
    """
    runs = [run for run in runs if run.values or run.percentiles]
    if not runs:
        raise OptionError("latency plot: want latencies of at least one run, got none")
    height = 5.0 + 0.2 * len(runs)
    figure, (axes,) = new_figure(f"Latency distribution\n{title}", height=height)
    lines = []
    for i, run in enumerate(runs):
        latencies, shares = run.curve()
        steps = "steps-post" if run.values else "default"
        label = f"{run.name} (median {run.median():.4g} ms)"
        every = max(1, len(latencies) // 12) if run.values else 1  # few enough to tell apart
        lines += axes.plot(
            latencies, shares, drawstyle=steps, label=label, markevery=every, **style(i)
        )
        axes.axvline(run.median(), color=color(i), linestyle=":", linewidth=1)
    spread_scale(axes.xaxis, [latency for run in runs for latency in run.curve()[0]])
    axes.set_xlabel("latency of one inference (ms); dotted: median")
    axes.set_ylabel("inferences that took no longer (%)")
    axes.set_ylim(0, 102)
    legend_below(figure, lines)
    return figure
