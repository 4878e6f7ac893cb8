"""Measured operators under the device's limits (Williams, Waterman and Patterson, 2009)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxdelegate.errors import OptionError
from jaxdelegate.report.plots.figure import (
    MARKERS,
    OTHERS,
    Bar,
    bars_height,
    color,
    draw_bars,
    legend_below,
    log_scale,
    new_figure,
    ticker,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMED = 8  # operators that get a color and a name, by their time


@dataclasses.dataclass(frozen=True)
class MeasuredOperator:
    name: str  # its type and index
    flops: float  # 0: none, or not known
    bytes: float
    seconds: float
    series: str = ""  # the result, if there are several

    @property
    def has_place(self) -> bool:
        """Whether it has arithmetic, memory traffic and a time."""
        return min(self.flops, self.bytes, self.seconds) > 0

    @property
    def intensity(self) -> float:
        """Floating-point operations per byte moved."""
        return self.flops / self.bytes

    @property
    def flops_per_second(self) -> float:
        return self.flops / self.seconds


@dataclasses.dataclass(frozen=True)
class Peaks:
    """The device's highest rates, and where these numbers come from.

    `cached` has the rates of arrays that fit into a cache by their bytes.
    """

    flops_per_second: float
    bytes_per_second: float  # read and written
    flops_source: str = "given"  # "measured ...", "given by ..."
    bytes_source: str = "given"
    cached: Mapping[float, float] = dataclasses.field(default_factory=dict)

    def bandwidth(self, moved: float) -> float:
        """Bytes per second of the fastest memory that holds `moved` bytes."""
        fitting = [rate for size, rate in self.cached.items() if size >= moved]
        return max([self.bytes_per_second, *fitting])

    def share(self, operator: MeasuredOperator) -> float:
        """The part of its roof that an operator reached."""
        roof = operator.intensity * self.bandwidth(operator.bytes)
        return operator.flops_per_second / min(self.flops_per_second, roof)


def roofline(operators: Sequence[MeasuredOperator], peaks: Peaks, *, title: str = "") -> "Figure":
    """Each operator as a dot under the roof; below, the slowest by name with their times.

    Operators without arithmetic or without memory traffic have bars, but no dots.
    """
    if min(peaks.flops_per_second, peaks.bytes_per_second, *peaks.cached.values()) <= 0:
        raise OptionError(f"roofline: peaks must be positive, got {peaks}")
    if not any(op.has_place for op in operators):
        raise OptionError("roofline: expected operators with flops, bytes and seconds, got none")
    ranked = sorted((op for op in operators if op.seconds > 0), key=lambda op: -op.seconds)
    bars = _bars(ranked, peaks)
    rows = [4.5, bars_height(len(bars))]
    figure, (dots, times) = new_figure(f"Roofline\n{title}", rows=rows, height=sum(rows) + 1.6)
    _draw_dots(dots, ranked)
    legend_below(figure, _draw_roof(dots, [op for op in ranked if op.has_place], peaks))
    draw_bars(times, bars)
    times.set_xlabel("time of one inference (ms); marker and color: the operator's dot above")
    return figure


def _draw_roof(axes: Any, operators: Sequence[MeasuredOperator], peaks: Peaks) -> list[Any]:
    engineering, top = ticker().EngFormatter, peaks.flops_per_second

    def text(value: float, unit: str) -> str:
        return str(engineering(unit=unit)(float(f"{value:.3g}")))

    slopes = [("memory", peaks.bytes_per_second, "-")]
    if peaks.cached:
        size, rate = max(peaks.cached.items(), key=lambda item: item[1])
        slopes.append((f"cache (array of {size / 2**20:g} MiB)", rate, "--"))
    ridges = [top / rate for _, rate, _ in slopes]  # intensities where arithmetic becomes the limit
    xs = [*ridges, *(op.intensity for op in operators)]
    ys = [op.flops_per_second for op in operators]
    left, right = min(xs) / 3, max(xs) * 3
    bottom, highest = min(ys) / 3, max(top, *ys) * 3
    lines: list[Any] = []
    for (name, rate, dashes), ridge in zip(slopes, ridges, strict=True):
        label = f"{name}: {text(rate, 'B/s')}, {peaks.bytes_source}"
        lines += axes.plot([left, ridge], [left * rate, top], dashes, color="black", label=label)
    label = f"arithmetic: {text(top, 'FLOP/s')}, {peaks.flops_source}"
    flat = [min(ridges), right]
    lines += axes.plot(flat, [top, top], color="black", linewidth=2.5, label=label)
    log_scale(axes.xaxis, right / left)
    log_scale(axes.yaxis, highest / bottom, engineering())
    axes.set(xlim=(left, right), ylim=(bottom, highest))
    axes.set_xlabel("arithmetic intensity (FLOP per byte)")
    axes.set_ylabel("arithmetic rate (FLOP/s)")
    return lines


def _draw_dots(axes: Any, operators: Sequence[MeasuredOperator]) -> None:
    gray = {"s": 20, "color": OTHERS, "zorder": 1}
    for i, op in enumerate(operators):
        if op.has_place:
            named = {"s": 70, "color": color(i), "marker": MARKERS[i % 8], "zorder": 3}
            look = named if i < _NAMED else gray
            place = op.intensity, op.flops_per_second
            axes.scatter(*place, edgecolors="black", linewidths=0.5, **look)


def _bars(operators: Sequence[MeasuredOperator], peaks: Peaks) -> list[Bar]:
    bars = []
    for i, op in enumerate(operators[:_NAMED]):
        total = sum(other.seconds for other in operators if other.series == op.series)
        reached = f"{_percent(peaks.share(op))} of its roof" if op.has_place else "no arithmetic"
        bars.append(
            Bar(
                label=op.name,
                value=1e3 * op.seconds,
                text=f"{_percent(op.seconds / total)} of the time, {reached}",
                detail=op.series,
                color=color(i),
                marker=MARKERS[i] if op.has_place else "",
            )
        )
    rest = operators[_NAMED:]
    if rest:
        milliseconds = 1e3 * sum(op.seconds for op in rest)
        bars.append(Bar(f"and {len(rest)} others", 0.0, f"{milliseconds:.3g} ms together"))
    return bars


def _percent(share: float) -> str:
    return "<1%" if 0 < share < 0.01 else f"{share:.0%}"
