"""Measured operators under the device's limits (Williams, Waterman and Patterson, 2009)."""

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxdelegate.errors import OptionError
from jaxdelegate.report.plots.bars import Bar, bars_height, draw_bars
from jaxdelegate.report.plots.figure import (
    MARKERS,
    OTHERS,
    color,
    legend_below,
    log_scale,
    new_figure,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMED = 8  # operators that get a color and a name, by the time that they take


@dataclasses.dataclass(frozen=True)
class MeasuredOperator:
    """An operator's work and time.

    Attributes:
        name: its type and index.
        flops: floating-point operations; 0: none, or not known.
        bytes: that it moves.
        seconds: of one run.
        series: the result that it belongs to, where there are several.
    """

    name: str
    flops: float
    bytes: float
    seconds: float
    series: str = ""

    @property
    def has_place(self) -> bool:
        """Whether it has arithmetic, traffic and a time."""
        return min(self.flops, self.bytes, self.seconds) > 0

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
    """What the device can do at best, and who says so.

    Attributes:
        flops_per_second: of its arithmetic.
        bytes_per_second: of its memory, read and written.
        flops_source: "measured ...", "given by ...".
        bytes_source: the same for the bandwidth.
        cached: bytes of an array -> bytes per second, for arrays that fit into a cache.
    """

    flops_per_second: float
    bytes_per_second: float
    flops_source: str = "given"
    bytes_source: str = "given"
    cached: Mapping[float, float] = dataclasses.field(default_factory=dict)

    def bandwidth(self, moved: float) -> float:
        """Bytes per second of the fastest memory that holds what is moved."""
        fitting = [rate for size, rate in self.cached.items() if size >= moved]
        return max([self.bytes_per_second, *fitting])

    def share(self, operator: MeasuredOperator) -> float:
        """Which part of its roof an operator reached."""
        roof = operator.intensity * self.bandwidth(operator.bytes)
        return operator.flops_per_second / min(self.flops_per_second, roof)


def roofline(operators: Sequence[MeasuredOperator], peaks: Peaks, *, title: str = "") -> "Figure":
    """Each operator as a dot under the roof; below, the slowest by name with their times.

    Operators without arithmetic or without memory traffic have bars, but no dots.

    Args:
        operators: as measured.
        peaks: of the device.
        title: what was measured, and where; a second line of the figure's title.

    Raises:
        OptionError: there is nothing to draw, an impossible peak, or no matplotlib.
    """
    rates = (peaks.flops_per_second, peaks.bytes_per_second, *peaks.cached.values())
    if min(rates) <= 0:
        raise OptionError(f"roofline: peaks must be positive, got {peaks}")
    if not any(op.has_place for op in operators):
        raise OptionError("roofline: want operators with flops, bytes and seconds, got none")
    ranked = sorted(
        (op for op in operators if op.seconds > 0), key=lambda op: op.seconds, reverse=True
    )
    bars = _bars(ranked, peaks)
    rows = [4.5, bars_height(len(bars))]
    figure, (dots, times) = new_figure(f"Roofline\n{title}", rows=rows, height=sum(rows) + 1.6)
    _dots(dots, ranked)
    legend_below(figure, _roof(dots, [op for op in ranked if op.has_place], peaks))
    draw_bars(times, bars)
    times.set_xlabel("time of one inference (ms); marker and color: the operator's dot above")
    return figure


def _roof(axes: Any, operators: Sequence[MeasuredOperator], peaks: Peaks) -> list[Any]:
    """Draw the limits, and scale the axes to them and to the operators."""
    slopes = [("memory", peaks.bytes_per_second, "-", peaks.bytes_source)]
    if peaks.cached:
        size, rate = max(peaks.cached.items(), key=lambda item: item[1])
        what = f"cache (array of {size / 2**20:g} MiB)"
        slopes.append((what, rate, "--", peaks.bytes_source))
    top, lines = peaks.flops_per_second, []
    ridges = [top / rate for _, rate, _, _ in slopes]  # from there on arithmetic is the limit
    low = min(*ridges, *(op.intensity for op in operators)) / 3
    high = max(*ridges, *(op.intensity for op in operators)) * 3
    for (what, rate, dashes, source), ridge in zip(slopes, ridges, strict=True):
        label = f"{what}: {_units(rate, 'B/s')}, {source}"
        lines += axes.plot([low, ridge], [low * rate, top], dashes, color="black", label=label)
    label = f"arithmetic: {_units(top, 'FLOP/s')}, {peaks.flops_source}"
    flat = [min(ridges), high]
    lines += axes.plot(flat, [top, top], color="black", linewidth=2.5, label=label)
    bottom = min(op.flops_per_second for op in operators) / 3
    highest = max(top, *(op.flops_per_second for op in operators)) * 3
    log_scale(axes.xaxis, high / low, "plain")
    log_scale(axes.yaxis, highest / bottom, "prefix")
    axes.set_xlim(low, high)
    axes.set_ylim(bottom, highest)
    axes.set_xlabel("arithmetic intensity (FLOP per byte)")
    axes.set_ylabel("arithmetic rate (FLOP/s)")
    return lines


def _units(value: float, unit: str) -> str:
    ticker = importlib.import_module("matplotlib.ticker")
    return str(ticker.EngFormatter(unit=unit)(float(f"{value:.3g}")))


def _dots(axes: Any, operators: Sequence[MeasuredOperator]) -> None:
    """The slowest operators in colors of their own, the others in gray; slowest first."""
    for i, op in enumerate(operators):
        if op.has_place:
            named = {"s": 70, "color": color(i), "marker": MARKERS[i % 8], "zorder": 3}
            look = named if i < _NAMED else _REST
            axes.scatter(
                [op.intensity], [op.flops_per_second], edgecolors="black", linewidths=0.5, **look
            )


_REST: Mapping[str, Any] = {"s": 20, "color": OTHERS, "zorder": 1}


def _bars(operators: Sequence[MeasuredOperator], peaks: Peaks) -> list[Bar]:
    """The slowest operators, and how long all others take."""
    bars = []
    for i, op in enumerate(operators[:_NAMED]):
        total = sum(other.seconds for other in operators if other.series == op.series)
        reached = f"{_percent(peaks.share(op))} of its roof" if op.has_place else "no arithmetic"
        text = f"{_percent(op.seconds / total)} of the time, {reached}"
        marker = MARKERS[i] if op.has_place else ""
        bars.append(Bar(op.name, 1e3 * op.seconds, text, op.series, color(i), marker))
    rest = operators[_NAMED:]
    if rest:
        milliseconds = 1e3 * sum(op.seconds for op in rest)
        bars.append(Bar(f"and {len(rest)} others", 0.0, f"{milliseconds:.3g} ms together"))
    return bars


def _percent(share: float) -> str:
    return "<1%" if 0 < share < 0.01 else f"{share:.0%}"
