"""Measured operators under the device's limits (Williams, Waterman and Patterson, 2009)."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxdelegate.errors import OptionError
from jaxdelegate.report.plots.figure import color, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMED = 8  # operators that get a color and a name, by the time that they take


@dataclasses.dataclass(frozen=True)
class MeasuredOperator:
    """An operator's work and time: floating-point operations, bytes moved, seconds."""

    name: str
    flops: float
    bytes: float
    seconds: float

    @property
    def intensity(self) -> float:
        """Floating-point operations per byte moved."""
        return self.flops / self.bytes

    @property
    def flops_per_second(self) -> float:
        """What it reached."""
        return self.flops / self.seconds


@dataclasses.dataclass(frozen=True)
class Peaks:
    """What the device can do at best."""

    flops_per_second: float
    bytes_per_second: float

    def limit(self, intensity: float) -> float:
        """The roof: FLOP/s at an intensity."""
        return min(self.flops_per_second, intensity * self.bytes_per_second)

    @property
    def ridge(self) -> float:
        """The intensity from which on arithmetic is the limit, not memory."""
        return self.flops_per_second / self.bytes_per_second

    def share(self, operator: MeasuredOperator) -> float:
        """Which part of its roof an operator reached."""
        return operator.flops_per_second / self.limit(operator.intensity)


def roofline(operators: Sequence[MeasuredOperator], peaks: Peaks) -> "Figure":
    """Each operator as a dot, its area by its time; the slowest are named in the legend.

    Operators without arithmetic or without memory traffic have no place in the plot.

    Raises:
        OptionError: there is nothing to draw, an impossible peak, or no matplotlib.
    """
    if min(peaks.flops_per_second, peaks.bytes_per_second) <= 0:
        raise OptionError(f"roofline: peaks must be positive, got {peaks}")
    usable = [op for op in operators if min(op.flops, op.bytes, op.seconds) > 0]
    if not usable:
        raise OptionError("roofline: want operators with flops, bytes and seconds, got none")
    figure, (axes,) = new_figure("Roofline", width=10, height=5.5)
    low = min(peaks.ridge, *(op.intensity for op in usable)) / 4
    high = max(peaks.ridge, *(op.intensity for op in usable)) * 4
    corners = [low, peaks.ridge, high]
    axes.plot(corners, [peaks.limit(x) for x in corners], color="black", label="roof")
    _dots(axes, sorted(usable, key=lambda op: op.seconds, reverse=True), peaks)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("arithmetic intensity (FLOP per byte)")
    axes.set_ylabel("FLOP/s")
    legend: Any = figure.legend(loc="outside right upper", fontsize=8)
    for handle in legend.legend_handles[1:]:
        handle.set_sizes([40])
    return figure


def _dots(axes: Any, operators: Sequence[MeasuredOperator], peaks: Peaks) -> None:
    """The slowest operators in colors of their own, the others in gray; slowest first."""
    total = sum(op.seconds for op in operators)
    for i, op in enumerate(operators):
        is_named = i < _NAMED
        axes.scatter(
            [op.intensity],
            [op.flops_per_second],
            s=20 + 600 * op.seconds / total,
            color=color(i) if is_named else "lightgray",
            alpha=0.7,
            label=f"{op.name} ({peaks.share(op):.0%} of the roof)" if is_named else None,
        )
