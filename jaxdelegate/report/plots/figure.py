"""What all figures share: axes, scales, named bars and files.

No function uses matplotlib's global state (pyplot, rcParams), and only calls load matplotlib.
"""

import dataclasses
import html
import importlib
import io
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxdelegate.errors import OptionError
from jaxdelegate.optional import install

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colors without black and yellow, then two of Tol's, which people who confuse red
# and green can distinguish. Series differ by marker, too.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
OTHERS = "#9a9a9a"  # what has no name
FORMATS = (".png", ".svg", ".pdf", ".html")

_SMALL = 9  # points: 11 pixels once a figure is 800 pixels wide
_DPI = 150
_WIDTH = 1400 / _DPI  # inches
_TITLE_LETTERS, _LEGEND_LETTERS, _LABEL_LETTERS = 90, 105, 48  # what fits in this width
_TEXT_ROOM = 0.85  # for the texts right of bars, as a share of the longest bar
_MUCH = 20  # values whose ratio is larger are shown on a logarithmic scale


def new_figure(
    title: str, *, rows: Sequence[float] = (1.0,), columns: int = 1, height: float
) -> "tuple[Figure, Sequence[Any]]":
    """A figure and its axes, row by row; saved as PNG, it is 1400 pixels wide.

    `rows` are relative heights; `height` is in inches. Long lines of the title are wrapped.
    """
    try:
        module = importlib.import_module("matplotlib.figure")
    except ImportError:
        raise OptionError(
            f"plots need matplotlib, which is not installed: {install('report')}"
        ) from None
    figure = module.Figure(figsize=(_WIDTH, height), dpi=_DPI, layout="constrained")
    lines = [textwrap.fill(line, _TITLE_LETTERS) for line in title.splitlines()]
    figure.suptitle("\n".join(lines), fontsize=11)
    grid = figure.subplots(len(rows), columns, squeeze=False, height_ratios=rows)
    for axes in grid.flat:
        axes.grid(visible=True, alpha=0.3)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=_SMALL)
    return figure, list(grid.flat)


def color(i: int) -> str:
    return COLORS[i % len(COLORS)]


def style(i: int) -> dict[str, Any]:
    """Color, marker and dashes of the series at index `i`; the first 32 all differ."""
    dashes = ("-", "--", "-.", ":")[i // len(COLORS) % 4]
    return {"color": color(i), "marker": MARKERS[i % len(MARKERS)], "linestyle": dashes}


def legend_below(figure: "Figure", handles: Sequence[Any]) -> None:
    """Add a legend under the axes, where it covers no data."""
    labels = [textwrap.fill(handle.get_label(), _LEGEND_LETTERS) for handle in handles]
    figure.legend(handles, labels, loc="outside lower center", fontsize=_SMALL)


def ticker() -> Any:
    return importlib.import_module("matplotlib.ticker")


def log_scale(axis: Any, extent: float, formatter: Any = "{x:g}") -> None:
    """Set a logarithmic scale for values whose ratio is up to `extent`, without overlapping labels.

    Without a formatter, labels are powers of ten.
    """
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_minor_formatter("")
    if formatter is not None:
        axis.set_major_locator(ticker().LogLocator(subs=(1, 2, 5) if extent < 300 else (1,)))
        axis.set_major_formatter(formatter)


def spread_scale(axis: Any, values: Sequence[float]) -> None:
    """Set a logarithmic scale for values that differ much, else one that starts at 0."""
    if max(values) > _MUCH * min(values):
        log_scale(axis, max(values) / min(values))
    else:
        axis.axes.set(**{f"{axis.axis_name}lim": (0, 1.08 * max(values))})


@dataclasses.dataclass(frozen=True)
class Bar:
    label: str  # to the left
    value: float  # its length; 0: only the words
    text: str  # to the right
    detail: str = ""  # after the label, as far as its end fits
    color: str = OTHERS
    marker: str = ""  # at its end
    hatch: str = ""

    @property
    def name(self) -> str:
        """The label and what fits of the detail."""
        label = _end_of(self.label, _LABEL_LETTERS)
        room = _LABEL_LETTERS - len(label) - 1
        return f"{label} {_end_of(self.detail, room)}" if self.detail and room > 4 else label


def _end_of(text: str, letters: int) -> str:
    # Names of tensors differ at their ends.
    return text if len(text) <= letters else f"…{text[len(text) - letters + 1 :]}"


def bars_height(count: int) -> float:
    """The height of `count` bars and their axis, in inches."""
    return 0.9 + 0.27 * count


def draw_bars(axes: Any, bars: Sequence[Bar], *, is_log: bool = False) -> None:
    """The first bar is on top; logarithmic only if they differ much."""
    positive = [bar.value for bar in bars if bar.value > 0]
    low, high = min(positive, default=0.0) / 3, max(positive, default=1.0)
    is_log = is_log and bool(positive) and high > 3 * _MUCH * low
    left = low if is_log else 0.0
    drawn = axes.barh(
        range(len(bars)),
        [max(bar.value - left, 0.0) for bar in bars],
        left=left,
        color=[bar.color for bar in bars],
        hatch=[bar.hatch for bar in bars],
        edgecolor="white",
        height=0.7,
    )
    axes.bar_label(drawn, [bar.text for bar in bars], padding=8, fontsize=_SMALL)
    for i, bar in enumerate(bars):
        axes.plot([bar.value], [i], bar.marker, color=bar.color, markeredgecolor="black")
    axes.set_yticks(range(len(bars)), [bar.name for bar in bars], fontsize=_SMALL)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    if is_log:
        log_scale(axes.xaxis, high / low, None)
        axes.set_xlim(low, high * (high / low) ** _TEXT_ROOM)
    else:
        axes.set_xlim(0, high * (1 + _TEXT_ROOM))
    if not positive:
        axes.set_xticks([0])


def check_path(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    if path.suffix not in FORMATS:
        raise OptionError(f"figure {str(path)!r}: the name must end in {', '.join(FORMATS)}")
    return path


def save(figure: "Figure", path: str | os.PathLike[str]) -> None:
    """Write a figure in the format of the path's suffix; .html is a page with an inline SVG."""
    path = check_path(path)
    if path.suffix != ".html":
        figure.savefig(path, dpi=_DPI)
        return
    title = html.escape(figure.get_suptitle())
    path.write_text(
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        "<style>svg{max-width:100%;height:auto}</style>"
        f"</head><body>{to_svg(figure)}</body></html>\n",
        "utf-8",
    )


def to_svg(figure: "Figure") -> str:
    """An <svg> element that an HTML page can contain."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
