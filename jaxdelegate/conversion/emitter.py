"""Adds operators to a graph; what has only constants is computed at once."""

import contextlib
import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from jaxdelegate.conversion.errors_at import Place
from jaxdelegate.conversion.graph import Graph, Node, Shape, Value, constant
from jaxdelegate.conversion.ranges import is_int32
from jaxdelegate.op_lowering.dtypes import TENSOR_TYPES
from jaxdelegate.op_lowering.options import (
    CastOptions,
    ConcatenationOptions,
    Options,
    PackOptions,
    ReducerOptions,
    ReshapeOptions,
    ShapeOptions,
)

F32, I32, I64, BOOL = (np.dtype(t) for t in (np.float32, np.int32, np.int64, np.bool_))
_NUMBERS = frozenset((F32, I32, I64))
# The dtypes that kernels compute with; others are computed in a wider one.
_KERNELS_BY_DTYPES = {
    frozenset((F32,)): "SQUARE EXP LOG SQRT RSQRT SIN COS TANH LOGISTIC FLOOR CEIL ROUND ATAN2",
    frozenset((F32, I32)): "ABS SIGN DIV POW FLOOR_DIV SQUARED_DIFFERENCE ARG_MAX ARG_MIN TOPK_V2",
    _NUMBERS: "ADD SUB MAXIMUM MINIMUM NEG FLOOR_MOD LESS LESS_EQUAL GREATER GREATER_EQUAL "
    "CUMSUM SUM REDUCE_PROD REDUCE_MAX REDUCE_MIN",
    _NUMBERS | {np.dtype(np.uint32)}: "MUL",
    _NUMBERS | {BOOL}: "EQUAL NOT_EQUAL",
}
KERNELS = {op: dtypes for dtypes, ops in _KERNELS_BY_DTYPES.items() for op in ops.split()}
_UNSIGNED = frozenset((np.dtype(np.uint16), np.dtype(np.uint32)))
# The dtypes without kernels of operators that only move elements, which move int32 instead.
_NOT_MOVED = {
    **dict.fromkeys(("GATHER", "REVERSE_V2", "PAD", "PADV2", "PACK"), _UNSIGNED),
    "CONCATENATION": frozenset((np.dtype(np.uint16),)),
    "SCATTER_ND": _UNSIGNED | {np.dtype(np.int16)},
}
_WIDER = {
    **{np.dtype(t): I32 for t in (np.int8, np.uint8, np.int16, np.uint16, np.bool_)},
    np.dtype(np.uint32): I64,
}


class Emitter:
    """Writes the operators of one primitive after the other into a graph."""

    def __init__(self, graph: Graph, table: Mapping[str, Any]) -> None:
        """`table` are the records of all primitives by their names."""
        self.graph, self.table = graph, table
        self.eqn: Any = None
        self.place = Place()
        self._is_own = False

    @contextlib.contextmanager
    def at(self, eqn: Any) -> Iterator[None]:
        """While it is open, the operators are those of an equation."""
        before = self.eqn, self.place
        self.eqn, self.place = eqn, self.place if self._is_own else self.place.of(eqn)
        yield
        self.eqn, self.place = before

    @contextlib.contextmanager
    def as_own(self) -> Iterator[None]:
        """While it is open, equations are no code of the user, but a part of the present one."""
        before, self._is_own = self._is_own, True
        yield
        self._is_own = before

    @property
    def shape(self) -> Shape:
        """The shape of the (first) result of the equation."""
        return tuple(self.eqn.outvars[0].aval.shape)

    def refuse(self, reason: str, remedy: str) -> NoReturn:
        self.place.refuse(reason, remedy)

    def under(self, graph: Graph) -> "Emitter":
        """An emitter for a subgraph that an operator calls."""
        other = copy.copy(self)
        other.graph = graph
        return other

    # ---- operators

    def node(
        self,
        op: str,
        inputs: Sequence[Value | None],
        results: Sequence[tuple[Shape, Any]],
        options: Options | None = None,
        **more: Any,
    ) -> list[Value]:
        """Add an operator whose results have these shapes and dtypes."""
        outputs = [
            Value(tuple(s), np.dtype(d), f"{self.place.scope}/{op.lower()}") for s, d in results
        ]
        node = Node(op, list(inputs), outputs, options, **more)
        for output in outputs:
            output.node = node
        self.graph.nodes.append(node)
        return outputs

    def op(
        self,
        op: str,
        inputs: Sequence[Value | None],
        shape: Shape,
        dtype: Any,
        options: Options | None = None,
    ) -> Value:
        dtype = np.dtype(dtype)
        if dtype not in _NOT_MOVED.get(op, ()):
            return self.node(op, inputs, [(shape, dtype)], options)[0]
        as_int32 = [self.cast(v, I32) if v and v.dtype == dtype else v for v in inputs]
        return self.cast(self.op(op, as_int32, shape, I32, options), dtype)

    def compute(
        self, op: str, *inputs: Value, dtype: Any = None, options: Options | None = None
    ) -> Value:
        """An elementwise operator, which repeats dimensions of size 1 of its inputs."""
        x, allowed = inputs[0], KERNELS.get(op)
        if allowed is not None and x.dtype not in allowed:
            return self._compute_wider(op, inputs, dtype, options)
        shape = self.broadcast_shape(*(v.shape for v in inputs))
        return self.op(op, inputs, shape, dtype or x.dtype, options)

    def _compute_wider(
        self, op: str, inputs: Sequence[Value], dtype: Any, options: Options | None
    ) -> Value:
        x = inputs[0]
        in_32 = x.dtype == np.uint32 and I32 in KERNELS[op] and is_int32(*inputs)
        wide = I32 if in_32 else self.wider(op, x.dtype)
        result = self.compute(
            op, *(self.cast(v, wide) for v in inputs), dtype=dtype, options=options
        )
        return result if dtype is not None else self.cast(result, x.dtype)

    def wider(self, op: str, dtype: np.dtype) -> np.dtype:
        """The dtype in which an operator computes instead of one that its kernel lacks."""
        allowed = KERNELS[op]
        if dtype in allowed:
            return dtype
        wide = _WIDER.get(dtype)
        if wide not in allowed:
            names = " or ".join(sorted(t.name for t in allowed))
            self.refuse(f"{op} has no kernel for {dtype.name}", f"convert its inputs to {names}")
        return wide

    def broadcast_shape(self, *shapes: Shape) -> Shape:
        rank = max(map(len, shapes))
        padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
        return tuple(
            next((n for n in sizes if not (isinstance(n, int) and n == 1)), 1)
            for sizes in zip(*padded, strict=True)
        )

    # ---- constants

    def const(self, array: Any, dtype: Any = None, name: str = "") -> Value:
        return constant(np.asarray(array, dtype), name)

    def like(self, value: Value, number: float) -> Value:
        """A scalar constant of a tensor's dtype."""
        return self.const(number, value.dtype)

    def sizes(self, numbers: Sequence[Any]) -> Value:
        """A vector of sizes; symbolic ones are read from the shape of an input."""
        if all(isinstance(n, int | np.integer) for n in numbers):
            return self.const(np.asarray(numbers, np.int32).reshape(-1))
        parts = [self.const(n, I32) if isinstance(n, int) else self._dimension(n) for n in numbers]
        return self.op("PACK", parts, (len(parts),), I32, PackOptions(len(parts), 0))

    def _dimension(self, n: Any) -> Value:
        for v in self.graph.inputs:
            for i, size in enumerate(v.shape):
                if not isinstance(size, int) and size == n:
                    options = ShapeOptions(TENSOR_TYPES[I32])
                    shape = self.op("SHAPE", [v], (v.rank,), I32, options)
                    return self.reshape(self.slice(shape, [i], (1,)), ())
        reason = f"the symbolic dimension {n} is not one of an input"
        return self.refuse(reason, "give an example with constant dimensions")

    # ---- movements

    def reshape(self, x: Value, shape: Shape) -> Value:
        shape = tuple(shape)
        if shape == x.shape:
            return x
        if isinstance(x.data, np.ndarray):
            return constant(np.reshape(x.data, shape), x.name)
        target = self._reshape_target(shape)
        known = all(isinstance(n, int | np.integer) for n in target)
        options = ReshapeOptions(tuple(target) if known else ())
        return self.op("RESHAPE", [x, self.sizes(target)], shape, x.dtype, options)

    def _reshape_target(self, shape: Shape) -> list[Any]:
        """The sizes, with -1 for one symbolic dimension."""
        free = [i for i, n in enumerate(shape) if not isinstance(n, int | np.integer)]
        return [-1 if [i] == free else n for i, n in enumerate(shape)]

    def transpose(self, x: Value, perm: Sequence[int] | np.ndarray) -> Value:
        perm = tuple(map(int, perm))
        if perm == tuple(range(x.rank)):
            return x
        if isinstance(x.data, np.ndarray):
            return constant(np.transpose(x.data, perm), x.name)
        shape = tuple(x.shape[i] for i in perm)
        return self.op("TRANSPOSE", [x, self.sizes(perm)], shape, x.dtype)

    def broadcast(self, x: Value, shape: Shape) -> Value:
        shape = tuple(shape)
        if shape == x.shape:
            return x
        if isinstance(x.data, np.ndarray) and all(isinstance(n, int) for n in shape):
            return Value(shape, x.dtype, x.name, np.broadcast_to(x.data, shape))
        if x.rank < len(shape):
            x = self.reshape(x, (1,) * (len(shape) - x.rank) + x.shape)
        return self.op("BROADCAST_TO", [x, self.sizes(shape)], shape, x.dtype)

    def cast(self, x: Value, dtype: Any) -> Value:
        dtype = np.dtype(dtype)
        if x.dtype == dtype:
            return x
        if isinstance(x.data, np.ndarray):
            return constant(x.data.astype(dtype), x.name)
        if dtype == BOOL and x.dtype in KERNELS["NOT_EQUAL"]:
            return self.compute("NOT_EQUAL", x, self.like(x, 0), dtype=BOOL)
        options = CastOptions(TENSOR_TYPES[x.dtype], TENSOR_TYPES[dtype])
        return self.op("CAST", [x], x.shape, dtype, options)

    def slice(self, x: Value, starts: Sequence[int], sizes: Sequence[Any]) -> Value:
        if tuple(sizes) == x.shape:
            return x
        whole = [
            -1 if not isinstance(n, int | np.integer) and s == 0 else n
            for s, n in zip(starts, sizes, strict=True)
        ]
        inputs = [x, self.sizes(starts), self.sizes(whole)]
        return self.op("SLICE", inputs, tuple(sizes), x.dtype)

    def pad(self, x: Value, pads: Sequence[tuple[int, int]], value: Value | None = None) -> Value:
        """Pads of at least 0 around a tensor: zeros, or a scalar."""
        if not any(map(any, pads)):
            return x
        shape = tuple(n + low + high for n, (low, high) in zip(x.shape, pads, strict=True))
        widths = self.const(np.asarray(pads, np.int32).reshape(-1, 2))
        if value is None:
            return self.op("PAD", [x, widths], shape, x.dtype)
        return self.op("PADV2", [x, widths, value], shape, x.dtype)

    def concatenate(self, parts: Sequence[Value], axis: int) -> Value:
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].shape)
        shape[axis] = sum(p.shape[axis] for p in parts)
        return self.op(
            "CONCATENATION", parts, tuple(shape), parts[0].dtype, ConcatenationOptions(axis)
        )

    def reduce(self, op: str, x: Value, axes: Sequence[int], *, keep: bool = False) -> Value:
        shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape) if keep or i not in axes)
        return self.op(op, [x, self.sizes(axes)], shape, x.dtype, ReducerOptions(keep))

    def flat(self, x: Value) -> Value:
        return self.reshape(x, (math.prod(x.shape),))
