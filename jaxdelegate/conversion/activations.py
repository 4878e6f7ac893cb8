"""Recognizes activation functions by their values, however a function writes them.

A part of the graph that computes one tensor elementwise from one other tensor and scalars is a
function of one number. If it has the values of a known function, one operator replaces it. It is
compared at many numbers, and around its own constants. Each comparison, maximum and minimum in it
must turn out both ways there, because what never happened was not compared.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jaxdelegate.conversion.graph import Node, Value, scalar_of
from jaxdelegate.conversion.layouts import BINARY, UNARY
from jaxdelegate.conversion.rewriter import Rewriter, Rule
from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    GeluOptions,
    LeakyReluOptions,
    Options,
)

_MAX_OPERATORS = 24  # in a part
_TOLERANCE = 2e-6  # relative
_TAIL = 1e-12  # where GELU is smaller, float32 constants change its digits
_ENDS = ("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SELECT_V2")
Array = np.ndarray
_ERF = np.vectorize(math.erf, otypes=[np.float64])


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


_KNOWN: tuple[tuple[str, Options | None, Callable[[Array], Any]], ...] = (
    ("RELU", None, lambda x: np.maximum(x, 0)),
    ("RELU6", None, lambda x: np.clip(x, 0, 6)),
    ("RELU_N1_TO_1", None, lambda x: np.clip(x, -1, 1)),
    ("HARD_SWISH", None, _hard_swish),
    ("GELU", GeluOptions(approximate=True), _gelu_tanh),
    ("GELU", GeluOptions(approximate=False), _gelu),
    ("ELU", None, _elu),
    ("LOGISTIC", None, _logistic),
)
_AT_X = [function(_X) for _, _, function in _KNOWN]

_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "ABS": np.abs,
    "NEG": np.negative,
    "EXP": np.exp,
    "LOG": np.log,
    "SQRT": np.sqrt,
    "TANH": np.tanh,
    "LOGISTIC": _logistic,
    "SQUARE": np.square,
    "RELU": lambda x: np.maximum(x, 0),
    "RELU6": lambda x: np.clip(x, 0, 6),
    "RELU_N1_TO_1": lambda x: np.clip(x, -1, 1),
    "ERF": _ERF,
    "ERFC": lambda x: 1 - _ERF(x),
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
    "DIV": np.divide,
    "MAXIMUM": np.maximum,
    "MINIMUM": np.minimum,
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
    "SELECT_V2": np.where,
}
_COMPARISONS = ("LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")
_BENDS = {"RELU": (0,), "RELU6": (0, 6), "RELU_N1_TO_1": (-1, 1)}
_ELEMENTWISE = frozenset(_FUNCTIONS).intersection(UNARY + BINARY + tuple(_FUNCTIONS))


@dataclasses.dataclass
class _Part:
    """The operators between a result and the tensors that they read."""

    nodes: list[Node]  # in the order of execution
    leaves: list[Value]


def _part(result: Node) -> _Part:
    nodes: dict[int, Node] = {}
    leaves: dict[int, Value] = {}
    waiting = [result.output]
    while waiting:
        v = waiting.pop()
        if id(v) in leaves or (v.node is not None and id(v.node) in nodes):
            continue
        if v.node is not None and _is_inside(v.node, result) and len(nodes) < _MAX_OPERATORS:
            nodes[id(v.node)] = v.node
            waiting += [i for i in v.node.inputs if i is not None and scalar_of(i) is None]
        else:
            leaves[id(v)] = v
    return _Part(_ordered(result, nodes), list(leaves.values()))


def _is_inside(node: Node, result: Node) -> bool:
    fused = getattr(node.options, "fused_activation_function", ActivationFunctionType.NONE)
    same = node.output.shape == result.output.shape
    plain = node.op in _ELEMENTWISE and not node.keeps and fused == ActivationFunctionType.NONE
    return same and plain


def _ordered(result: Node, nodes: dict[int, Node]) -> list[Node]:
    order: list[Node] = []
    done: set[int] = set()

    def visit(node: Node) -> None:
        if id(node) in done:
            return
        done.add(id(node))
        for v in node.inputs:
            if v is not None and v.node is not None and id(v.node) in nodes:
                visit(v.node)
        order.append(node)

    visit(result)
    return order


def _sources(part: _Part) -> Iterator[Value]:
    """The tensors of which alone the result is a function, those furthest away first."""
    candidates = [*part.leaves, *(n.output for n in part.nodes[:-1])]
    for source in candidates:
        if source.dtype == np.float32 and _depends_only_on(part, source):
            yield source


def _depends_only_on(part: _Part, source: Value) -> bool:
    leaves, seen = {id(v) for v in part.leaves} - {id(source)}, set()
    waiting = [part.nodes[-1].output]
    inside = {id(n) for n in part.nodes}
    while waiting:
        v = waiting.pop()
        if v is source or scalar_of(v) is not None or id(v) in seen:
            continue
        seen.add(id(v))
        if id(v) in leaves or v.node is None or id(v.node) not in inside:
            return False
        waiting += [i for i in v.node.inputs if i is not None]
    return True


def _points_for(part: _Part) -> Array:
    """`_X`, and both sides of each constant and its negative."""
    inputs = (v for node in part.nodes for v in node.inputs if v is not None)
    numbers = {abs(float(n)) for n in map(scalar_of, inputs) if n is not None and np.isfinite(n)}
    own = np.outer(np.array([*numbers]), (1 - 1e-7, 1, 1 + 1e-7)).ravel()
    return np.concatenate([_X, own, -own])


def _values(part: _Part, source: Value, x: Array) -> Array | None:
    """The result at the points; None: it is not a function of them, or a part was not reached."""
    known: dict[int, Array] = {id(source): x}
    with np.errstate(all="ignore"):
        for node in part.nodes:
            if node.output is source:
                continue
            inputs = [_at(v, known) for v in node.inputs if v is not None]
            if all(v is not None for v in inputs):
                known[id(node.output)] = _FUNCTIONS[node.op](*inputs)
                if not _goes_both_ways(node.op, inputs, known[id(node.output)]):
                    return None
    result = known.get(id(part.nodes[-1].output))
    return result if result is not None and result.dtype == np.float64 else None


def _goes_both_ways(op: str, inputs: list[Any], result: Array) -> bool:
    """Whether a choice was made both ways."""
    if op in _COMPARISONS:
        return bool(np.any(result) and not np.all(result))
    if op in ("MAXIMUM", "MINIMUM"):
        return bool(np.any(inputs[0] > inputs[1]) and np.any(inputs[0] < inputs[1]))
    return all(
        bool(np.any(inputs[0] < bend) and np.any(inputs[0] > bend)) for bend in _BENDS.get(op, ())
    )


def _at(value: Value, known: dict[int, Array]) -> Any:
    number = scalar_of(value)
    return known.get(id(value)) if number is None else np.float64(number)


def _leaky_relu(x: Array, y: Array) -> tuple[str, Options | None] | None:
    alpha = float(-y[x == -1.0][0]) if (x == -1.0).any() else math.nan
    is_one = 0 < alpha < 1 and _are_equal(y, np.where(x > 0, x, alpha * x))
    return ("LEAKY_RELU", LeakyReluOptions(float(np.float32(alpha)))) if is_one else None


def _are_equal(y: Array, known: Array, floor: float = 0.0) -> bool:
    return bool(np.all(np.abs(y - known) <= np.maximum(_TOLERANCE * np.abs(known), floor)))


def _name(x: Array, y: Array) -> tuple[str, Options | None] | None:
    count = len(_X)
    for (op, options, function), at_x in zip(_KNOWN, _AT_X, strict=True):
        floor = _TAIL if op == "GELU" else 0.0
        if _are_equal(y[:count], at_x, floor) and _are_equal(y[count:], function(x[count:]), floor):
            return op, options
    return _leaky_relu(x, y)


def _activation(r: Rewriter, node: Node) -> Value | None:
    if node.output.dtype != np.float32:
        return None
    part = _part(node)
    x = _points_for(part)
    for source in _sources(part):
        if source.shape != node.output.shape:
            continue
        y = _values(part, source, x)
        found = None if y is None or y.shape != x.shape else _name(x, y)
        if found is not None:
            op, options = found
            return r.emitter.op(op, [source], node.output.shape, node.output.dtype, options)
    return None


RULES: dict[str, tuple[Rule, ...]] = dict.fromkeys(_ENDS, (_activation,))
