"""Numbers with units, as reports print them."""

from collections.abc import Sequence

_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def scaled(value: float | None, unit: str) -> str:
    """A count with a decimal prefix and three digits: 1234567, "B" -> "1.23 MB"; None: "?"."""
    if value is None:
        return "?"
    power = 0
    while abs(value) >= 999.5 and power < len(_PREFIXES) - 1:
        value, power = value / 1000, power + 1
    digits = f"{value:.0f}" if power == 0 and value == int(value) else f"{value:.3g}"
    return f"{digits} {_PREFIXES[power]}{unit}"


def data(value: float | None) -> str:
    return scaled(value, "B")


def operations(value: float | None) -> str:
    return scaled(value, "FLOP")


def percent(value: float) -> str:
    """A percentage: three digits, without decimals from 100 on."""
    return f"{value:,.0f}%" if value >= 100 else f"{value:.3g}%"


def nodes(indices: Sequence[int], most: int = 8) -> str:
    """Operators by index: "#3, #4, #5 and 2 more"."""
    shown = ", ".join(f"#{i}" for i in indices[:most])
    rest = len(indices) - most
    return f"{shown} and {rest} more" if rest > 0 else shown
