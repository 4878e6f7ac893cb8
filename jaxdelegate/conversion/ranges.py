"""The least and the largest value of integers, as far as the operators before say it.

Indices that cannot be out of bounds need no operators that move them inside.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdelegate.conversion.graph import Node, Value

Range = tuple[int, int]
_UNKNOWN = (-(2**64), 2**64)
_ARITHMETIC: dict[str, Callable[[int, int, int, int], Range]] = {
    "ADD": lambda a, b, c, d: (a + c, b + d),
    "SUB": lambda a, b, c, d: (a - d, b - c),
    "DIV": lambda a, b, c, d: (a // d, b // c) if a >= 0 and c > 0 else _UNKNOWN,
    "MAXIMUM": lambda a, b, c, d: (max(a, c), max(b, d)),
    "MINIMUM": lambda a, b, c, d: (min(a, c), min(b, d)),
}
_SAME = (
    "RESHAPE",
    "TRANSPOSE",
    "SLICE",
    "STRIDED_SLICE",
    "GATHER",
    "BROADCAST_TO",
    "REVERSE_V2",
    "CAST",
)


def range_of(value: Value) -> Range:
    """The least and the largest value of an integer tensor; its dtype's if nothing is known."""
    limits = np.iinfo(value.dtype)
    if isinstance(value.data, np.ndarray) and value.data.size:
        return int(value.data.min()), int(value.data.max())
    low, high = (
        _of_result(value.node, value) if value.node is not None else (limits.min, limits.max)
    )
    inside = limits.min <= low and high <= limits.max  # else it may have overflowed
    return (low, high) if inside else (int(limits.min), int(limits.max))


def _of_result(node: Node, value: Value) -> Range:
    inputs = [v for v in node.inputs if v is not None]
    if node.op == "TOPK_V2" and value is node.outputs[1]:
        return _below(inputs[0].shape[-1])
    if node.op in ("ARG_MAX", "ARG_MIN"):
        return _below(inputs[0].shape[int(inputs[1].data)])
    if node.op in _SAME and inputs[0].dtype.kind in "iu":
        return range_of(inputs[0])
    if node.op == "SELECT_V2":
        spans = [range_of(v) for v in inputs[1:]]
        return min(low for low, _ in spans), max(high for _, high in spans)
    if node.op not in _ARITHMETIC:
        return _UNKNOWN
    (a, b), (c, d) = map(range_of, inputs)
    return _ARITHMETIC[node.op](a, b, c, d)


def _below(size: Any) -> Range:
    return (0, size - 1) if isinstance(size, int) else _UNKNOWN


def is_int32(*values: Value) -> bool:
    """Whether int32 has all values of integers."""
    spans = [range_of(v) for v in values]
    return all(low >= -(2**31) and high < 2**31 for low, high in spans)


def always(op: str, a: Value, b: Value) -> bool | None:
    """The result of a comparison if it is the same for all values."""
    if a.dtype.kind not in "iu" or op not in ("LESS", "GREATER_EQUAL"):
        return None
    (low, high), (least, most) = range_of(a), range_of(b)
    if high < least or low >= most:
        return (high < least) == (op == "LESS")
    return None
