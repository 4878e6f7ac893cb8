"""Errors along a network."""

import dataclasses
import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxdelegate.errors import OptionError
from jaxdelegate.report.plots.bars import Bar, bars_height, draw_bars
from jaxdelegate.report.plots.figure import (
    color,
    legend_below,
    log_scale,
    new_figure,
    style,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMED = 12  # layers that get a bar with their name


@dataclasses.dataclass(frozen=True)
class LayerPoint:
    """One layer's errors, as fractions of the largest reference value; None: not known.

    Attributes:
        label: the operator's index and type.
        whole: as it arrives in the whole program.
        own: what the operator adds on the reference's inputs.
        agrees: whether the layer is within its bound.
        tensor: the name of what it writes.
        series: the comparison that it belongs to, where there are several.
    """

    label: str
    whole: float | None
    own: float | None = None
    agrees: bool = True
    tensor: str = ""
    series: str = ""

    @property
    def error(self) -> float:
        """Its own error; the whole program's where that is not known."""
        return (self.whole if self.own is None else self.own) or 0.0


def error_per_layer(points: Sequence[LayerPoint], *, title: str = "") -> "Figure":
    """Errors in execution order, and below it the layers with the largest ones by name.

    Layers out of bounds come first among these and have hatched bars. The scale is logarithmic,
    unless all errors are zero.

    Args:
        points: in execution order, series after series.
        title: what was compared, and where; more lines of the figure's title.

    Raises:
        OptionError: there is nothing to draw, or no matplotlib.
    """
    if not points:
        raise OptionError("layers plot: want at least one layer (--per_layer), got none")
    names = list(dict.fromkeys(point.series for point in points))
    bars = _bars(sorted(points, key=lambda p: (p.agrees, -p.error)), names)
    rows = [3.2, bars_height(len(bars))]
    height = sum(rows) + 1.2 + 0.4 * len(names)
    figure, (along, named) = new_figure(f"Error per layer\n{title}", rows=rows, height=height)
    lines = [line for i in range(len(names)) for line in _series(along, points, names, i)]
    lines += _out_of_bounds(along, points, names)
    _scale(along, points)
    draw_bars(named, bars, is_log=True)
    named.set_xlabel("error that the operator adds / largest value")
    legend_below(figure, lines)
    return figure


def _scale(axes: Any, points: Sequence[LayerPoint]) -> None:
    errors = [e for p in points for e in (p.own, p.whole) if e]
    if errors:
        log_scale(axes.yaxis, max(errors) / min(errors), "power")
    else:
        axes.set_yticks([0])
    ticker = importlib.import_module("matplotlib.ticker")
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    axes.set_xlabel("layer, by its place in execution order")
    axes.set_ylabel("error / largest value")


def _of(points: Sequence[LayerPoint], series: str) -> list[LayerPoint]:
    return [point for point in points if point.series == series]


def _drawn(values: Sequence[float | None]) -> list[float]:
    """What a logarithmic axis can show; zeros if there is nothing else."""
    return [v or float("nan") for v in values] if any(values) else [0.0 for _ in values]


def _series(axes: Any, points: Sequence[LayerPoint], names: Sequence[str], i: int) -> Sequence[Any]:
    """Draw one series: its own errors as dots, the whole program's as a line."""
    mine = _of(points, names[i])
    prefix = f"{names[i]}, " if names[i] else ""
    marks = {**style(i), "linestyle": "none", "markersize": 4}
    own = f"{prefix}own: what the operator adds on the reference's inputs"
    whole = f"{prefix}whole: as it arrives in the whole program"
    return [
        *axes.plot(_drawn([p.own for p in mine]), label=own, **marks),
        *axes.plot(
            _drawn([p.whole for p in mine]), label=whole, color=color(i), linewidth=1, alpha=0.7
        ),
    ]


def _out_of_bounds(axes: Any, points: Sequence[LayerPoint], names: Sequence[str]) -> Sequence[Any]:
    """Cross out what is beyond its bound."""
    wrong = [
        (place, point.error)
        for name in names
        for place, point in enumerate(_of(points, name))
        if not point.agrees and point.error
    ]
    if not wrong:
        return []
    places, errors = zip(*wrong, strict=True)
    cross = axes.plot(places, errors, "x", color="black", markersize=7, label="out of bounds")
    return list(cross)


def _bars(ranked: Sequence[LayerPoint], names: Sequence[str]) -> list[Bar]:
    bars = [
        Bar(
            point.label,
            point.error,
            _text(point),
            point.tensor,
            color(names.index(point.series)),
            hatch="" if point.agrees else "///",
        )
        for point in ranked[:_NAMED]
    ]
    rest = ranked[_NAMED:]
    if rest:
        largest = max(point.error for point in rest)
        bars.append(Bar(f"and {len(rest)} others", 0.0, f"at most {largest:.2g}"))
    return bars


def _text(point: LayerPoint) -> str:
    what = " (whole program)" if point.own is None and point.whole is not None else ""
    return f"{point.error:.2g}{what}" + ("" if point.agrees else ", out of bounds")
