"""Tables as text."""

import textwrap
from collections.abc import Container, Iterator, Sequence

from jaxdelegate.text import WIDTH

_LEAST = 40  # columns that are enough for sentences
_INDENT = " " * 6


def table(
    rows: Sequence[Sequence[str]], *, right: Container[int] = (), width: int = WIDTH
) -> list[str]:
    """Lines with aligned columns; those of `right` are aligned to the right.

    Text of the last column that exceeds `width` continues in the lines below.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for row in rows:
        cells = [
            cell.rjust(size) if i in right else cell.ljust(size)
            for i, (cell, size) in enumerate(zip(row, widths, strict=True))
        ]
        lines += _fitted("".join(f"{cell}  " for cell in cells[:-1]), cells[-1].rstrip(), width)
    return lines


def _fitted(head: str, text: str, width: int) -> Iterator[str]:
    """The text in the room that `head` leaves, or below it if that is narrow."""
    room = width - len(head)
    if not text or len(text) <= room:
        yield f"{head}{text}".rstrip()
        return
    is_below = room < _LEAST
    if is_below:
        yield head.rstrip()
    indent = _INDENT if is_below else " " * len(head)
    first, *rest = textwrap.wrap(text, width - len(indent), break_on_hyphens=False)
    yield f"{indent if is_below else head}{first}"
    yield from (f"{indent}{line}" for line in rest)
