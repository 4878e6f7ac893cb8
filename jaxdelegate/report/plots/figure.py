"""Making and keeping figures, without pyplot."""

import html
import importlib
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxdelegate.errors import OptionError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = ("#4878a8", "#c85200", "#3a8f3a", "#8a5aa8", "#777777", "#b8860b", "#c33333", "#2aa5a5")
FORMATS = (".png", ".svg", ".pdf", ".html")


def new_figure(
    title: str, *, columns: int = 1, width: float = 8.0, height: float = 4.5
) -> "tuple[Figure, Sequence[Any]]":
    """A figure with a title and so many axes side by side; sizes in inches.

    Raises:
        OptionError: matplotlib is not installed.
    """
    try:
        module = importlib.import_module("matplotlib.figure")
    except ImportError:
        raise OptionError(
            "plots need matplotlib, which is not installed: pip install 'jaxdelegate[report]'"
        ) from None
    figure = module.Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title)
    axes = [figure.add_subplot(1, columns, i + 1) for i in range(columns)]
    for one in axes:
        one.grid(visible=True, alpha=0.3)
    return figure, axes


def color(position: int) -> str:
    """The color of the so-manieth series."""
    return COLORS[position % len(COLORS)]


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
            f"</head><body>{to_svg(figure)}</body></html>\n"
        )
    else:
        figure.savefig(path, dpi=150)


def to_svg(figure: "Figure") -> str:
    """The figure as an <svg> element that can be in an HTML page."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    whole = text.getvalue()
    return whole[whole.index("<svg") :]
