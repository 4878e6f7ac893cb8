"""Errors along a network."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxdelegate.errors import OptionError
from jaxdelegate.report.plots.figure import (
    Bar,
    bars_height,
    color,
    draw_bars,
    legend_below,
    log_scale,
    new_figure,
    style,
    ticker,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMED = 12  # layers that get a bar with their name


@dataclasses.dataclass(frozen=True)
class LayerPoint:
    """One layer's errors, as fractions of the largest reference value; None: not known."""

    label: str  # the operator's index and type
    whole: float | None  # in the whole program
    own: float | None = None  # what the operator adds on the reference's inputs
    agrees: bool = True  # within its bound
    tensor: str = ""  # the name of its output
    series: str = ""  # the comparison, if there are several

    @property
    def error(self) -> float:
        """Its own error, or the whole program's where that is not known."""
        return (self.whole if self.own is None else self.own) or 0.0


def error_per_layer(points: Sequence[LayerPoint], *, title: str = "") -> "Figure":
    """Errors in execution order, and below them the layers with the largest errors by name.

    Layers out of bounds come first among these. Unless all errors are 0, the scale is logarithmic.
    """
    if not points:
        raise OptionError("layers plot: expected at least one layer (--per_layer), got none")
    groups: dict[str, list[LayerPoint]] = {}
    for point in points:
        groups.setdefault(point.series, []).append(point)
    bars = _bars(points, list(groups))
    rows = [3.2, bars_height(len(bars))]
    height = sum(rows) + 1.2 + 0.4 * len(groups)
    figure, (along, named) = new_figure(f"Error per layer\n{title}", rows=rows, height=height)
    legend_below(figure, _draw_errors(along, groups))
    draw_bars(named, bars, is_log=True)
    named.set_xlabel("error that the operator adds / largest value")
    return figure


def _draw_errors(axes: Any, groups: Mapping[str, Sequence[LayerPoint]]) -> list[Any]:
    """Own errors as dots, the whole program's as a line, crosses on those out of bounds."""
    lines: list[Any] = []
    for i, (series, points) in enumerate(groups.items()):
        prefix = f"{series}, " if series else ""
        dots = {**style(i), "linestyle": "none", "markersize": 4}
        label = f"{prefix}own: what the operator adds on the reference's inputs"
        lines += axes.plot(_drawable([p.own for p in points]), label=label, **dots)
        label = f"{prefix}whole: in the whole program"
        line = {"color": color(i), "linewidth": 1, "alpha": 0.7}
        lines += axes.plot(_drawable([p.whole for p in points]), label=label, **line)
    layers = [layer for points in groups.values() for layer in enumerate(points)]
    wrong = [(i, point.error) for i, point in layers if not point.agrees and point.error]
    if wrong:
        cross = {"color": "black", "markersize": 7, "label": "out of bounds"}
        lines += axes.plot(*zip(*wrong, strict=True), "x", **cross)
    errors = [e for _, p in layers for e in (p.own, p.whole) if e]
    if errors:
        log_scale(axes.yaxis, max(errors) / min(errors), None)
    else:
        axes.set_yticks([0])
    axes.xaxis.set_major_locator(ticker().MaxNLocator(integer=True))
    axes.set_xlabel("layer, by its place in execution order")
    axes.set_ylabel("error / largest value")
    return lines


def _drawable(values: Sequence[float | None]) -> list[float]:
    """NaN for what a logarithmic axis cannot show, or zeros if that is all."""
    return [v or float("nan") for v in values] if any(values) else [0.0] * len(values)


def _bars(points: Sequence[LayerPoint], names: Sequence[str]) -> list[Bar]:
    ranked = sorted(points, key=lambda p: (p.agrees, -p.error))
    bars = [
        Bar(
            label=point.label,
            value=point.error,
            text=_text(point),
            detail=point.tensor,
            color=color(names.index(point.series)),
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
