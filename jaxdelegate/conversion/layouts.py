"""Rules that move transposes and reshapes towards the outputs, where they meet and cancel."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdelegate.conversion.graph import Node, Value, constant, scalar_of
from jaxdelegate.conversion.rewriter import Rewriter, Rule
from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    BatchMatMulOptions,
    ConcatenationOptions,
)

UNARY = (
    "ABS", "NEG", "SIGN", "EXP", "LOG", "SQRT", "RSQRT", "SIN", "COS", "TANH", "LOGISTIC", "FLOOR",
    "CEIL", "ROUND", "SQUARE", "RELU", "RELU6", "GELU", "HARD_SWISH", "ELU", "LEAKY_RELU",
    "LOGICAL_NOT", "CAST", "ERF", "ERFC",
)  # fmt: skip
BINARY = (
    "ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "POW", "SQUARED_DIFFERENCE", "FLOOR_MOD",
    "EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL", "LOGICAL_AND",
    "LOGICAL_OR", "SELECT_V2",
)  # fmt: skip
_REDUCERS = ("SUM", "MEAN", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "REDUCE_ANY", "REDUCE_ALL")


def numbers(value: Value) -> tuple[int, ...]:
    """The elements of a constant vector."""
    return tuple(int(n) for n in np.ravel(value.data))


def is_fused(node: Node) -> bool:
    activation = getattr(node.options, "fused_activation_function", None)
    return activation not in (None, ActivationFunctionType.NONE)


def producer(value: Value | None, *ops: str) -> Node | None:
    """The operator that computes a value, if it is one of these."""
    node = None if value is None else value.node
    return node if node is not None and node.op in ops and not node.keeps else None


# ---- transposes


def _merged_transposes(r: Rewriter, node: Node) -> Value | None:
    perm, x = numbers(node.inputs[1]), node.source
    before = producer(x, "TRANSPOSE")
    if before is not None:
        first = numbers(before.inputs[1])
        return r.emitter.transpose(before.source, [first[i] for i in perm])
    if perm == tuple(range(len(perm))):
        return x
    moved = [i for i in perm if not _is_one(x.shape[i])]
    return r.emitter.reshape(x, node.output.shape) if moved == sorted(moved) else None


def _is_one(n: Any) -> bool:
    return isinstance(n, int) and n == 1


def _permutation(inputs: Sequence[Any], rank: int) -> tuple[int, ...] | None:
    """How all inputs of an operator are transposed; None if they are not, or differ."""
    perms = set()
    for v in inputs:
        before = producer(v, "TRANSPOSE")
        if before is not None and v.rank == rank:
            perms.add(numbers(before.inputs[1]))
        elif not isinstance(v.data, np.ndarray) and v.size != 1:
            return None
    return perms.pop() if len(perms) == 1 else None


def _below(r: Rewriter, value: Value, perm: tuple[int, ...]) -> Value:
    """An input of the operator that moves before its transpose."""
    before = producer(value, "TRANSPOSE")
    if before is not None and value.rank == len(perm):
        return before.source
    if value.size == 1:
        return r.emitter.reshape(value, ()) if value.rank else value
    full = value.data.reshape((1,) * (len(perm) - value.rank) + value.shape)
    return constant(np.transpose(full, np.argsort(perm)), value.name)


def _elementwise_first(r: Rewriter, node: Node) -> Value | None:
    perm = _permutation(node.inputs, node.output.rank)
    if perm is None:
        return None
    inputs = [_below(r, v, perm) for v in node.inputs if v is not None]
    shape = tuple(node.output.shape[i] for i in np.argsort(perm))
    y = r.emitter.op(node.op, inputs, shape, node.output.dtype, node.options)
    return r.emitter.transpose(y, perm)


def _reduction_first(r: Rewriter, node: Node) -> Value | None:
    before = producer(node.inputs[0], "TRANSPOSE")
    if before is None:
        return None
    perm, axes = numbers(before.inputs[1]), numbers(node.inputs[1])
    keep = bool(getattr(node.options, "keep_dims", False))
    y = r.emitter.reduce(node.op, before.source, sorted(perm[i] for i in axes), keep=keep)
    kept = list(perm) if keep else [p for i, p in enumerate(perm) if i not in axes]
    return r.emitter.transpose(y, np.argsort(np.argsort(kept)))


def _vectors_first(r: Rewriter, node: Node) -> Value | None:
    """An operator whose vectors have an element for each dimension: a pad or a slice."""
    before = producer(node.inputs[0], "TRANSPOSE")
    others = [v for v in node.inputs[1:] if v is not None]
    if before is None or not all(v.is_constant or not v.rank for v in others):
        return None
    perm = numbers(before.inputs[1])
    inverse = np.argsort(perm)
    vectors = [constant(np.asarray(v.data)[inverse]) if v.rank else v for v in others]
    shape = tuple(node.output.shape[i] for i in inverse)
    y = r.emitter.op(node.op, [before.source, *vectors], shape, node.output.dtype, node.options)
    return r.emitter.transpose(y, perm)


def _concatenation_first(r: Rewriter, node: Node) -> Value | None:
    perms = {
        numbers(p.inputs[1]) if (p := producer(v, "TRANSPOSE")) is not None else None
        for v in node.inputs
    }
    perm = perms.pop() if len(perms) == 1 else None
    if perm is None or not isinstance(node.options, ConcatenationOptions):
        return None
    parts = [v.node.source for v in node.inputs if v is not None and v.node is not None]
    return r.emitter.transpose(r.emitter.concatenate(parts, perm[node.options.axis]), perm)


# ---- reshapes


def _merged_reshapes(r: Rewriter, node: Node) -> Value | None:
    x = node.source
    if x.shape == node.output.shape:
        return x
    before = producer(x, "RESHAPE")
    if before is not None:
        return r.emitter.reshape(before.source, node.output.shape)
    return _reshape_of_transpose(r, node)


def _reshape_of_transpose(r: Rewriter, node: Node) -> Value | None:
    """A reshape that only adds or removes dimensions of size 1, before a transpose."""
    before = producer(node.inputs[0], "TRANSPOSE")
    places = None if before is None else _places(node.source.shape, node.output.shape)
    if before is None or places is None or not r.is_read_once(before.output):
        return None
    x, perm = before.source, numbers(before.inputs[1])
    sources = {i: perm[j] for i, j in places.items()}  # dimension of y: dimension of x
    place = dict(zip(sorted(sources.values()), sorted(sources), strict=True))
    shape = [1] * node.output.rank
    for i, j in place.items():
        shape[j] = x.shape[i]
    order = [place[sources[i]] if i in sources else i for i in range(len(shape))]
    return r.emitter.transpose(r.emitter.reshape(x, tuple(shape)), order)


def _kept_dimensions(r: Rewriter, node: Node) -> Value | None:
    """A reduction whose dimensions come back keeps them, before a reshape that leaves them out."""
    x, axes = node.source, numbers(node.inputs[1])
    kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    if kept == node.output.shape or not _comes_back(r, node.output, kept):
        return None
    return r.emitter.reshape(r.emitter.reduce(node.op, x, axes, keep=True), node.output.shape)


def _comes_back(r: Rewriter, value: Value, shape: Sequence[Any]) -> bool:
    """Whether a reshape gives a value, or what is computed from it, a shape."""
    waiting, seen = [value], set()
    while waiting:
        for node in r.readers[id(waiting.pop())]:
            if node.op == "RESHAPE" and node.output.shape == shape:
                return True
            same = node.op in (*UNARY, *BINARY) and node.output.shape == value.shape
            if same and id(node) not in seen:
                seen.add(id(node))
                waiting.append(node.output)
    return False


def _reshape_last(r: Rewriter, node: Node) -> Value | None:
    """The operator before a reshape of all that is not constant in it."""
    reshapes = [producer(v, "RESHAPE") for v in node.inputs if v is not None and not v.is_constant]
    if not reshapes or None in reshapes:
        return None
    outputs = {id(b.output): b for b in reshapes if b is not None}
    shapes = {(b.source.shape, b.output.shape) for b in outputs.values()}
    ((x, y), *others) = shapes
    once = all(r.is_read_once(b.output) for b in outputs.values())
    if others or not x or y != node.output.shape or not once:
        return None
    inputs: list[Value | None] = []
    for v in node.inputs:
        small = _row(v, x, y) if v.is_constant else outputs[id(v)].source
        if small is None:
            return None
        inputs.append(small)
    result = r.emitter.op(node.op, inputs, x, node.output.dtype, node.options)
    return r.emitter.reshape(result, y)


def _places(x: Sequence[Any], y: Sequence[Any]) -> dict[int, int] | None:
    """The dimension in x of each in y that is not 1, if a reshape only adds or removes ones."""
    old, new = ([i for i, n in enumerate(s) if not _is_one(n)] for s in (x, y))
    same = [x[i] for i in old] == [y[i] for i in new]
    return dict(zip(new, old, strict=True)) if same else None


def _row(v: Value, x: Sequence[Any], y: Sequence[Any]) -> Value | None:
    """A constant for y as one for x, of which y is a reshape; None if it has no such form."""
    if scalar_of(v) is not None:
        return constant(np.asarray(scalar_of(v)), v.name)
    if y and x[-1:] == y[-1:] and v.rank and v.size == v.shape[-1]:
        return constant(np.reshape(v.data, v.shape[-1:]), v.name)
    full = (1,) * (len(y) - v.rank) + v.shape
    places = _places(x, y)
    if places is None:
        return _joined_channels(v, full, x[-1], y)
    shape = [1] * len(x)
    for i, j in places.items():
        shape[j] = full[i]
    return constant(np.reshape(v.data, shape), v.name)


def _joined_channels(v: Value, full: Sequence[Any], n: Any, y: Sequence[Any]) -> Value | None:
    """A constant for the last dimensions of y, which a reshape splits one dimension into."""
    first = next((i for i in range(len(y)) if math.prod(y[i:]) == n), 0)
    if tuple(full) != (*[1] * first, *y[first:]):
        return None
    return constant(np.reshape(v.data, (n,)), v.name)


def _reduction_of_reshape(r: Rewriter, node: Node) -> Value | None:
    """A reduction before a reshape that only adds or removes dimensions of size 1."""
    before, axes = producer(node.inputs[0], "RESHAPE"), numbers(node.inputs[1])
    places = None if before is None else _places(before.source.shape, before.output.shape)
    if before is None or places is None or not all(i in places for i in axes):
        return None
    keep = bool(getattr(node.options, "keep_dims", False))
    y = r.emitter.reduce(node.op, before.source, sorted(places[i] for i in axes), keep=keep)
    return r.emitter.reshape(y, node.output.shape)


# ---- broadcasts


def _without_broadcast(r: Rewriter, node: Node) -> Value | None:
    """An elementwise operator repeats what is broadcast before."""
    for i, v in enumerate(node.inputs):
        before = producer(v, "BROADCAST_TO")
        if before is None:
            continue
        inputs = [*node.inputs[:i], before.source, *node.inputs[i + 1 :]]
        shapes = [v.shape for v in inputs if v is not None]
        if r.emitter.broadcast_shape(*shapes) == node.output.shape:
            return r.emitter.op(node.op, inputs, node.output.shape, node.output.dtype, node.options)
    return None


def _same_shape(r: Rewriter, node: Node) -> Value | None:
    x = node.source
    if x.shape == node.output.shape:
        return x
    before = producer(x, "BROADCAST_TO")
    return r.emitter.broadcast(before.source, node.output.shape) if before is not None else None


def _swapped_columns(r: Rewriter, node: Node) -> Value | None:
    """BATCH_MATMUL reads its second matrix transposed."""
    before = producer(node.inputs[1], "TRANSPOSE")
    if before is None or not isinstance(node.options, BatchMatMulOptions):
        return None
    perm = numbers(before.inputs[1])
    if perm != (*range(len(perm) - 2), len(perm) - 1, len(perm) - 2):
        return None
    options = BatchMatMulOptions(adj_x=node.options.adj_x, adj_y=not node.options.adj_y)
    inputs = [node.inputs[0], before.source]
    return r.emitter.op("BATCH_MATMUL", inputs, node.output.shape, node.output.dtype, options)


RULES: dict[str, tuple[Rule, ...]] = {
    "TRANSPOSE": (_merged_transposes,),
    "RESHAPE": (_merged_reshapes,),
    "BROADCAST_TO": (_same_shape,),
    "BATCH_MATMUL": (_swapped_columns,),
    **dict.fromkeys(("PAD", "PADV2", "SLICE", "STRIDED_SLICE"), (_vectors_first,)),
    "CONCATENATION": (_concatenation_first,),
    **dict.fromkeys(_REDUCERS, (_kept_dimensions, _reduction_first, _reduction_of_reshape)),
    **dict.fromkeys(UNARY, (_elementwise_first, _reshape_last)),
    **dict.fromkeys(BINARY, (_without_broadcast, _elementwise_first, _reshape_last)),
}
