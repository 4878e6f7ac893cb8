"""Tables as text."""

from collections.abc import Container, Sequence


def table(rows: Sequence[Sequence[str]], *, right: Container[int] = ()) -> list[str]:
    """Lines with aligned columns; `right` are the columns that are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
