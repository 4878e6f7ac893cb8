"""Recognizes activation functions by their values, however a function writes them.

A part of the graph that computes one tensor elementwise from one other tensor and scalars is a
function of one number. If it has the values of a known function, one operator replaces it. It is
compared at many numbers, and around its own constants. Each comparison, maximum and minimum in it
must turn out both ways there, because what never happened was not compared.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdelegate.conversion.graph import Node, Value, scalar_of
from jaxdelegate.conversion.layouts import is_fused
from jaxdelegate.conversion.rewriter import Rewriter, Rule
from jaxdelegate.op_lowering.options import GeluOptions, LeakyReluOptions, Options

_MAX_OPERATORS = 24  # in a part
_TOLERANCE = 2e-6  # relative
_TAIL = 1e-12  # where GELU is smaller, float32 constants change its digits
_ENDS = ("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SELECT_V2")
Array = np.ndarray
Found = tuple[str, Options | None]
_ERF = np.vectorize(math.erf, otypes=[np.float64])
_CLIPS = {"RELU": (0, math.inf), "RELU6": (0, 6), "RELU_N1_TO_1": (-1, 1)}


def _points() -> Array:
    sizes = np.logspace(-8, 38, 461)
    return np.concatenate([-sizes[::-1], [0.0], sizes, np.linspace(-9, 9, 451)])


_X = _points()


def _gelu_tanh(x: Array) -> Any:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _gelu(x: Array) -> Any:
    return 0.5 * x * (1 + _ERF(x / math.sqrt(2)))


def _elu(x: Array) -> Array:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def _hard_swish(x: Array) -> Any:
    return x * np.clip(x + 3, 0, 6) / 6


def _logistic(x: Array) -> Any:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def _clip(op: str) -> Callable[[Array], Any]:
    low, high = _CLIPS[op]
    return lambda x: np.clip(x, low, high)


_KNOWN: tuple[tuple[str, Options | None, Callable[[Array], Any]], ...] = (
    *((op, None, _clip(op)) for op in _CLIPS),
    ("HARD_SWISH", None, _hard_swish),
    ("GELU", GeluOptions(approximate=True), _gelu_tanh),
    ("GELU", GeluOptions(approximate=False), _gelu),
    ("ELU", None, _elu),
    ("LOGISTIC", None, _logistic),
)
_AT_X = [function(_X) for _, _, function in _KNOWN]
_COMPARISONS = ("LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")
_OF_NUMPY = ("ABS", "EXP", "LOG", "SQRT", "TANH", "SQUARE", "MAXIMUM", "MINIMUM", *_COMPARISONS)
_FUNCTIONS: dict[str, Callable[..., Array]] = {
    **{op: getattr(np, op.lower()) for op in _OF_NUMPY},
    **{op: _clip(op) for op in _CLIPS},
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
    "DIV": np.divide,
    "NEG": np.negative,
    "SELECT_V2": np.where,
    "LOGISTIC": _logistic,
    "ERF": _ERF,
    "ERFC": lambda x: 1 - _ERF(x),
}


def _part(result: Node) -> tuple[list[Node], list[Value]]:
    """The elementwise operators before a result, in their order, and the tensors that they read."""
    nodes: dict[int, Node] = {}
    leaves: dict[int, Value] = {}
    seen: set[int] = set()

    def visit(v: Value) -> None:
        if scalar_of(v) is not None or id(v) in seen:
            return
        if v.node is None or not _is_inside(v.node, result) or len(nodes) >= _MAX_OPERATORS:
            leaves[id(v)] = v
            return
        seen.add(id(v))
        for source in v.node.inputs:
            visit(source)
        nodes[id(v)] = v.node

    visit(result.output)
    return list(nodes.values()), list(leaves.values())


def _is_inside(node: Node, result: Node) -> bool:
    same = node.output.shape == result.output.shape
    return same and node.op in _FUNCTIONS and not node.keeps and not is_fused(node)


def _points_for(nodes: list[Node]) -> Array:
    """`_X`, and both sides of each constant and its negative."""
    inputs = (v for node in nodes for v in node.inputs if v is not None)
    numbers = {abs(float(n)) for n in map(scalar_of, inputs) if n is not None and np.isfinite(n)}
    own = np.outer(np.array([*numbers]), (1 - 1e-7, 1, 1 + 1e-7)).ravel()
    return np.concatenate([_X, own, -own])


def _steps(nodes: list[Node], source: Value) -> list[Node]:
    """The operators that compute the last one from a tensor and scalars; none: it needs others."""
    known, steps = {id(source)}, []
    for node in nodes:
        if all(id(v) in known or scalar_of(v) is not None for v in node.inputs if v is not None):
            known.add(id(node.output))
            steps.append(node)
    return steps if id(nodes[-1].output) in known else []


def _values(steps: list[Node], source: Value, x: Array) -> Array | None:
    """The result at the points; None: it is not a number, or a choice was not made both ways."""
    known: dict[int, Array] = {id(source): x}
    with np.errstate(all="ignore"):
        for node in steps:
            inputs = [_at(v, known) for v in node.inputs if v is not None]
            y = known[id(node.output)] = _FUNCTIONS[node.op](*inputs)
            if not _goes_both_ways(node.op, inputs, y):
                return None
    return y if y.dtype == np.float64 and y.shape == x.shape else None


def _at(value: Value, known: dict[int, Array]) -> Any:
    return known[id(value)] if id(value) in known else np.float64(scalar_of(value))


def _goes_both_ways(op: str, inputs: list[Any], result: Array) -> bool:
    """Whether a choice was made both ways."""
    if op in _COMPARISONS:
        return bool(np.any(result) and not np.all(result))
    ends = inputs[1:] if op in ("MAXIMUM", "MINIMUM") else _CLIPS.get(op, ())
    return all(
        bool(np.any(inputs[0] < end) and np.any(inputs[0] > end))
        for end in ends
        if end is not math.inf
    )


def _leaky_relu(x: Array, y: Array) -> Found | None:
    alpha = float(-y[x == -1.0][0]) if (x == -1.0).any() else math.nan
    is_one = 0 < alpha < 1 and _are_equal(y, np.where(x > 0, x, alpha * x))
    return ("LEAKY_RELU", LeakyReluOptions(float(np.float32(alpha)))) if is_one else None


def _are_equal(y: Array, known: Array, floor: float = 0.0) -> bool:
    return bool(np.all(np.abs(y - known) <= np.maximum(_TOLERANCE * np.abs(known), floor)))


def _name(x: Array, y: Array) -> Found | None:
    count = len(_X)
    for (op, options, function), at_x in zip(_KNOWN, _AT_X, strict=True):
        floor = _TAIL if op == "GELU" else 0.0
        if _are_equal(y[:count], at_x, floor) and _are_equal(y[count:], function(x[count:]), floor):
            return op, options
    return _leaky_relu(x, y)


def _activation(r: Rewriter, node: Node) -> Value | None:
    if node.output.dtype != np.float32 or is_fused(node):
        return None
    nodes, leaves = _part(node)
    x = _points_for(nodes)
    for source in (*leaves, *(n.output for n in nodes[:-1])):  # those furthest away first
        fits = source.dtype == np.float32 and source.shape == node.output.shape
        steps = _steps(nodes, source) if fits else []
        y = _values(steps, source, x) if steps else None
        found = None if y is None else _name(x, y)
        if found is not None:
            op, options = found
            return r.emitter.op(op, [source], node.output.shape, node.output.dtype, options)
    return None


RULES: dict[str, tuple[Rule, ...]] = dict.fromkeys(_ENDS, (_activation,))
