"""Errors along a network."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxdelegate.errors import OptionError
from jaxdelegate.report.plots.figure import color, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class LayerPoint:
    """One layer's errors, as fractions of the largest reference value; None: not known.

    Attributes:
        label: the operator, its index in front.
        whole: as it arrives in the whole program.
        own: what the operator adds on the reference's inputs.
        agrees: whether the layer is within its bound.
    """

    label: str
    whole: float | None
    own: float | None = None
    agrees: bool = True


def error_per_layer(points: Sequence[LayerPoint]) -> "Figure":
    """Own errors as bars and the whole program's as a line, in execution order, logarithmic.

    Layers out of bounds are red and named. An error of zero has no bar.

    Raises:
        OptionError: there is nothing to draw, or no matplotlib.
    """
    if not points:
        raise OptionError("layers plot: want at least one layer (--per_layer), got none")
    figure, (axes,) = new_figure("Error per layer", width=max(8.0, min(0.12 * len(points), 24.0)))
    at = range(len(points))
    bars = [point.own or float("nan") for point in points]
    colors = [color(0) if point.agrees else color(6) for point in points]
    if any(point.own for point in points):
        axes.bar(at, bars, color=colors, label="own: on the reference's inputs")
    whole = [point.whole or float("nan") for point in points]
    axes.plot(at, whole, ".-", color=color(1), label="whole: as it arrives")
    for i, point in enumerate(points):
        height = point.own or point.whole
        if not point.agrees and height:
            axes.annotate(point.label, (i, height), rotation=45, fontsize=8)
    if any(point.own or point.whole for point in points):
        axes.set_yscale("log")
        axes.legend()
    axes.set_xlabel("layer, in execution order")
    axes.set_ylabel("largest error / largest value")
    return figure
