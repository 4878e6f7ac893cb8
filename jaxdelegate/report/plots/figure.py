"""Making and keeping figures, without pyplot."""

import html
import importlib
import io
import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jaxdelegate.errors import OptionError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colors without black and yellow, then two of Tol's: people who confuse red and
# green tell them apart. Series differ by marker, too.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
OTHERS = "#9a9a9a"  # what has no name
FORMATS = (".png", ".svg", ".pdf", ".html")
SMALL = 9  # points: the smallest text; 11 pixels once a figure is 800 pixels wide

_DPI = 150
_WIDTH = 1400 / _DPI  # inches
_TITLE_LETTERS, _LEGEND_LETTERS = 90, 105  # what fits beside each other in this width


def new_figure(
    title: str,
    *,
    rows: Sequence[float] = (1.0,),
    columns: int = 1,
    height: float = 5.0,
) -> "tuple[Figure, Sequence[Any]]":
    """A figure, 1400 pixels wide if it is saved as PNG, with a title and axes.

    Args:
        title: its lines; long ones are wrapped.
        rows: the relative height of each row of axes.
        columns: axes beside each other.
        height: inches.

    Returns:
        The figure and its axes, row by row.

    Raises:
        OptionError: matplotlib is not installed.
    """
    try:
        module = importlib.import_module("matplotlib.figure")
    except ImportError:
        raise OptionError(
            "plots need matplotlib, which is not installed: pip install 'jaxdelegate[report]'"
        ) from None
    figure = module.Figure(figsize=(_WIDTH, height), dpi=_DPI, layout="constrained")
    lines = [textwrap.fill(line, _TITLE_LETTERS) for line in title.splitlines()]
    figure.suptitle("\n".join(lines), fontsize=11)
    grid = figure.add_gridspec(len(rows), columns, height_ratios=rows)
    axes = [figure.add_subplot(grid[i, j]) for i in range(len(rows)) for j in range(columns)]
    for one in axes:
        one.grid(visible=True, alpha=0.3)
        one.set_axisbelow(True)
        one.tick_params(labelsize=SMALL)
    return figure, axes


def color(position: int) -> str:
    """The color of the so-manieth series."""
    return COLORS[position % len(COLORS)]


def style(position: int) -> Mapping[str, Any]:
    """Color, marker and dashes of the so-manieth series; no two of the first 32 are equal."""
    dashes = ("-", "--", "-.", ":")[position // len(COLORS) % 4]
    return {"color": color(position), "marker": MARKERS[position % 8], "linestyle": dashes}


def legend_below(figure: "Figure", handles: Sequence[Any]) -> None:
    """A legend under the axes, where it covers no data."""
    labels = [textwrap.fill(handle.get_label(), _LEGEND_LETTERS) for handle in handles]
    figure.legend(handles, labels, loc="outside lower center", fontsize=SMALL)


def spread_scale(axis: Any, values: Sequence[float]) -> None:
    """A logarithmic scale for values that differ much, or else one that begins at 0."""
    if max(values) > 20 * min(values):
        log_scale(axis, max(values) / min(values), "plain")
    else:
        axis.axes.set(**{f"{axis.axis_name}lim": (0, 1.08 * max(values))})


def log_scale(axis: Any, extent: float, numbers: Literal["plain", "power", "prefix"]) -> None:
    """A logarithmic scale whose labels keep their distance.

    Args:
        axis: of the axes.
        extent: the largest value that it shows, divided by the smallest.
        numbers: its labels: plain, as powers of ten, or with a unit's prefix (10 G).
    """
    ticker = importlib.import_module("matplotlib.ticker")
    formatters = {
        "plain": lambda: ticker.StrMethodFormatter("{x:g}"),
        "power": ticker.LogFormatterSciNotation,
        "prefix": ticker.EngFormatter,
    }
    axis._set_axes_scale("log")
    digits = (1, 2, 5) if extent < 300 and numbers != "power" else (1,)
    axis.set_major_locator(ticker.LogLocator(subs=digits))
    axis.set_major_formatter(formatters[numbers]())
    axis.set_minor_formatter(ticker.NullFormatter())


def short(text: str, letters: int) -> str:
    """The end of a text, if it is longer than that: names of tensors differ at their ends."""
    return text if len(text) <= letters else f"…{text[len(text) - letters + 1 :]}"


def check_path(path: str | os.PathLike[str]) -> Path:
    """The path of a figure's file.

    Raises:
        OptionError: its suffix is none of FORMATS.
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise OptionError(f"figure {str(path)!r}: want a name that ends in {', '.join(FORMATS)}")
    return path


def save(figure: "Figure", path: str | os.PathLike[str]) -> None:
    """Write a figure; the suffix says how. A .html file holds it as SVG and needs nothing else.

    Raises:
        OptionError: an unknown suffix.
        OSError: the file cannot be written.
    """
    path = check_path(path)
    if path.suffix == ".html":
        title = html.escape(figure.get_suptitle())
        path.write_text(
            f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            "<style>svg{max-width:100%;height:auto}</style>"
            f"</head><body>{to_svg(figure)}</body></html>\n",
            "utf-8",
        )
    else:
        figure.savefig(path, dpi=_DPI)


def to_svg(figure: "Figure") -> str:
    """The figure as an <svg> element that can be in an HTML page."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    whole = text.getvalue()
    return whole[whole.index("<svg") :]
