"""Horizontal bars with names: what an axis of many operators can still say in words."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxdelegate.report.plots.figure import OTHERS, SMALL, log_scale, short

_LABEL_LETTERS = 48
_ROOM = 0.8  # for the texts right of the bars, as a share of what the bars take


@dataclasses.dataclass(frozen=True)
class Bar:
    """A bar: its name to the left, its length, and a text at its end.

    Attributes:
        label: what must be read.
        value: its length; 0: only the words.
        text: to the right of the bar.
        detail: after the label; what does not fit loses its beginning.
        color: of the bar.
        marker: at its end, as elsewhere in the figure; empty: none.
        hatch: matplotlib's; empty: none.
    """

    label: str
    value: float
    text: str
    detail: str = ""
    color: str = OTHERS
    marker: str = ""
    hatch: str = ""

    def name(self) -> str:
        """The label and what fits of the detail."""
        label = short(self.label, _LABEL_LETTERS)
        left = _LABEL_LETTERS - len(label) - 1
        return f"{label} {short(self.detail, left)}" if self.detail and left > 4 else label


def bars_height(count: int) -> float:
    """Inches that so many bars take, with the axis under them."""
    return 0.9 + 0.27 * count


def draw_bars(axes: Any, bars: Sequence[Bar], *, is_log: bool = False) -> None:
    """Draw bars, the first on top; logarithmic only if they differ much."""
    places = range(len(bars))
    positive = [bar.value for bar in bars if bar.value > 0]
    is_log = is_log and bool(positive) and max(positive) > 20 * min(positive)
    low = min(positive) / 3 if is_log else 0.0
    high = max(positive, default=1.0)
    drawn = axes.barh(
        places,
        [max(bar.value - low, 0.0) for bar in bars],
        left=low,
        color=[bar.color for bar in bars],
        hatch=[bar.hatch for bar in bars],
        edgecolor="white",
        height=0.7,
    )
    axes.bar_label(drawn, [bar.text for bar in bars], padding=8, fontsize=SMALL)
    for place, bar in zip(places, bars, strict=True):
        axes.plot([bar.value], [place], bar.marker, color=bar.color, markeredgecolor="black")
    axes.set_yticks(places, [bar.name() for bar in bars], fontsize=SMALL)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    if is_log:
        log_scale(axes.xaxis, high / low, "power")
        axes.set_xlim(low, high * (high / low) ** _ROOM)
    else:
        axes.set_xlim(0, high * (1 + _ROOM))
    if not positive:
        axes.set_xticks([0])
