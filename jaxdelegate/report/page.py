"""Records as one HTML page of tables, which needs neither scripts nor other files.

Texts may come from untrusted files: everything but what these functions return is escaped.
"""

import html
from collections.abc import Iterable, Sequence

_STYLE = """
body{font:14px/1.4 system-ui,"DejaVu Sans",sans-serif;margin:1.5em;color:#222;background:#fff}
h1{font-size:22px;overflow-wrap:anywhere}h2{font-size:17px}h3{font-size:15px}
p,li{overflow-wrap:anywhere}
div{overflow-x:auto}
table{border-collapse:collapse;margin:1em 0;font-size:13px}
th,td{padding:.3em .55em;border-bottom:1px solid #ddd;text-align:left;vertical-align:top}
td small{display:block;color:#555;font-size:12px;min-width:14em;overflow-wrap:anywhere}
td.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
td.bars{width:12em;min-width:5em}
tr.wrong td{background:#fdd}
.bar{display:inline-block;height:.7em;background:#0072b2;vertical-align:middle}
tr.wrong .bar{background:#b00020}
.healthy tr.wrong td{background:#fff2cc}
.healthy tr.wrong .bar{background:#b26a00}
.ok{color:#176b17}.bad{color:#b00020}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


class Markup(str):
    """HTML: text that is escaped already."""

    __slots__ = ()


Cell = str | float | None


def page(title: str, parts: Iterable[Markup], kind: str = "") -> str:
    """A whole document; `kind` is the class of its body."""
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style>"
    )
    body = "\n".join(parts)
    return (
        f'<!DOCTYPE html><html lang="en"><head>{head}</head>'
        f'<body class="{kind}">{body}</body></html>\n'
    )


def element(tag: str, text: str, kind: str = "") -> Markup:
    """An element of a class with a text, or with the markup of its children."""
    attribute = f' class="{kind}"' if kind else ""
    return Markup(f"<{tag}{attribute}>{_escaped(text)}</{tag}>")


def table(
    names: Sequence[str], rows: Iterable[Sequence[Cell]], wrong: Iterable[bool] = ()
) -> Markup:
    """A table whose numbers have four digits; `wrong` says which rows are marked.

    Cells that are `Markup` come from `with_small`, `number` or `bar`.
    """
    marks = [*wrong]
    head = "".join(element("th", name) for name in names)
    body = "\n".join(
        element("tr", Markup("".join(map(_cell, row))), "wrong" if marks and marks[i] else "")
        for i, row in enumerate(rows)
    )
    return Markup(f"<div><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>")


def with_small(text: str, below: str) -> Markup:
    """A cell with a second line in small letters."""
    return element("td", Markup(html.escape(text) + (element("small", below) if below else "")))


def number(text: str) -> Markup:
    """A cell with a number that has its digits and its unit."""
    return element("td", text, "n")


def bar(share: float) -> Markup:
    """A cell with a bar; `share` is its part of the width, 0 to 1."""
    return Markup(f'<td class="bars"><span class="bar" style="width:{share:.1%}"></span></td>')


def _cell(value: Cell) -> str:
    if isinstance(value, Markup):
        return value
    if value is None or isinstance(value, str):
        return element("td", value or "")
    return number(f"{value:.4g}")


def _escaped(text: str) -> str:
    return text if isinstance(text, Markup) else html.escape(text)
