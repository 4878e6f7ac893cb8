"""STABLEHLO_REDUCE, STABLEHLO_REDUCE_WINDOW and STABLEHLO_SORT by a body; and REDUCE_WINDOW.

Semantics: the StableHLO specification and kernels/stablehlo_reduce_window.cc: padding and the gaps
of a dilation hold the initial value, with which each result also starts.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.derivatives import padded
from jaxdelegate.op_lowering.common.movement import integers, why_not_present
from jaxdelegate.op_lowering.common.pointwise import BOOL, BOOLS, INTEGERS, why_not_one_dtype
from jaxdelegate.op_lowering.common.products import nothing
from jaxdelegate.op_lowering.common.signature import ANY, Input, dtypes, typed_rule
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.records.enums import ReduceWindowFunction
from jaxdelegate.op_lowering.rule import (
    Function,
    LoweringContext,
    Op,
    first_reason,
    table,
    why_not_dtype,
)
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.op_lowering.stablehlo.body import Body, Fold, Order, why_not_body
from jaxdelegate.op_lowering.stablehlo.elementwise import ELEMENTS
from jaxdelegate.op_lowering.stablehlo.options import (
    ReduceWindowOptions,
    StablehloReduceOptions,
    StablehloReduceWindowOptions,
    StablehloSortOptions,
)
from jaxdelegate.op_lowering.stablehlo.shape import why_not_one_value

# Larger windows use XLA's reduce-window instead of one slice for each element.
_MOST_TAPS = 64

Arrays = Sequence[Any]


@dataclasses.dataclass(frozen=True)
class _Reducer:
    """How results and values combine.

    `pairs` combines arrays of one shape, element by element: (results, values) -> results.
    `folds` are lax's functions, one for each operand, if they all exist.
    `wide` are the dtypes of the arithmetic.
    """

    pairs: Callable[[Arrays, Arrays], Arrays]
    folds: tuple[Fold, ...] | None
    wide: tuple[np.dtype, ...]

    @classmethod
    def of(cls, context: LoweringContext, index: int, dtypes: Sequence[np.dtype]) -> Self:
        """Sums of half precision have the accumulator's dtype."""
        body = Body.of(context, index, (*dtypes, *dtypes))
        wide = tuple(map(context.precision.accumulator, dtypes))
        all_folds = [body.fold(i, dtype) for i, dtype in enumerate(wide)]
        folds = tuple(fold for fold in all_folds if fold is not None)
        if len(folds) < len(dtypes):
            return cls(lambda x, y: list(body.elements(*x, *y)), None, tuple(dtypes))

        def pairs(x: Arrays, y: Arrays) -> Arrays:
            return [fold.function(a, b) for fold, a, b in zip(folds, x, y, strict=True)]

        return cls(pairs, folds, wide)

    def upcast(self, arrays: Arrays) -> list[jax.Array]:
        return [jnp.asarray(a, d) for a, d in zip(arrays, self.wide, strict=True)]


def _why_not_reduced(inputs: Specs, outputs: Specs) -> str | None:
    """A reason unless n operands, n scalars and n outputs have the same dtypes."""
    n = len(outputs)
    return why_not_present(*inputs) or first_reason(
        *(why_not_dtype(spec, ELEMENTS) for spec in (*inputs, *outputs)),
        *(why_not_one_value(spec) for spec in inputs[n:]),
        *(why_not_one_dtype(x, y) for x, y in zip(inputs[:n], outputs, strict=True)),
        *(why_not_one_dtype(x, y) for x, y in zip(inputs[n:], outputs, strict=True)),
    )


_Options = StablehloReduceOptions | StablehloReduceWindowOptions


def _why_not(op: Op[_Options]) -> str | None:
    dtypes = [spec.dtype for spec in op.outputs]
    return _why_not_reduced(op.inputs, op.outputs) or why_not_body(
        op.context, op.options.body_subgraph_index, (*dtypes, *dtypes), dtypes
    )


# ---- STABLEHLO_REDUCE


def _lower_reduce(op: Op[StablehloReduceOptions]) -> Function:
    n, dtypes = len(op.outputs), [spec.dtype for spec in op.outputs]
    reducer = _Reducer.of(op.context, op.options.body_subgraph_index, dtypes)

    def reduce(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        operands = reducer.upcast(arrays[:n])
        starts = [a.reshape(()) for a in reducer.upcast(arrays[n:])]
        reduced = _reduce(reducer, operands, starts, op.options.dimensions)
        return tuple(y.astype(d) for y, d in zip(reduced, dtypes, strict=True))

    return reduce


def _reduce(reducer: _Reducer, operands: Arrays, starts: Arrays, dims: Sequence[int]) -> Arrays:
    """Folds start with their identity, so that each result combines with its start exactly once."""
    shape = operands[0].shape
    if reducer.folds is None and math.prod(shape[d] for d in dims) == 1:
        # XLA removes a reduction over one element, together with its start.
        one = [lax.squeeze(x, dims) for x in operands]
        return reducer.pairs([jnp.full_like(y, a) for y, a in zip(one, starts, strict=True)], one)
    if reducer.folds is None:
        return list(lax.reduce(operands, starts, reducer.pairs, dims))
    totals = [
        lax.reduce(x, fold.start(x.dtype), fold.function, dims)
        for fold, x in zip(reducer.folds, operands, strict=True)
    ]
    return reducer.pairs([jnp.full_like(y, a) for y, a in zip(totals, starts, strict=True)], totals)


# ---- STABLEHLO_REDUCE_WINDOW


def _read(
    o: StablehloReduceWindowOptions, padded: jax.Array, tap: Sequence[int], out: Shape
) -> jax.Array:
    """[*padded] -> [*out]: the element at one position of all windows, as a strided slice."""
    first = [t * d for t, d in zip(tap, o.window_dilations, strict=True)]
    ends = zip(first, out, o.window_strides, strict=True)
    return lax.slice(padded, first, [a + (n - 1) * s + 1 for a, n, s in ends], o.window_strides)


def _slide(
    reducer: _Reducer,
    o: StablehloReduceWindowOptions,
    operands: Arrays,
    starts: Arrays,
    out: Shape,
) -> Arrays:
    """Reduce every window, in row-major order; each result starts with its initial value."""
    wide = [padded(x, a, o.widths) for x, a in zip(operands, starts, strict=True)]
    results: Arrays = [jnp.full(out, a, a.dtype) for a in starts]
    if math.prod(o.window_dimensions) <= _MOST_TAPS:
        for tap in np.ndindex(*o.window_dimensions):
            results = reducer.pairs(results, [_read(o, x, tap, out) for x in wide])
        return results
    if reducer.folds is None:
        return list(_reduce_window(o, wide, starts, reducer.pairs))
    folded = [
        _reduce_window(o, x, fold.start(x.dtype), fold.function)
        for fold, x in zip(reducer.folds, wide, strict=True)
    ]
    return reducer.pairs(results, folded)


def _reduce_window(o: StablehloReduceWindowOptions, padded: Any, starts: Any, function: Any) -> Any:
    return lax.reduce_window(
        padded,
        starts,
        function,
        o.window_dimensions,
        o.window_strides,
        padding=[(0, 0)] * len(o.window_dimensions),
        window_dilation=o.window_dilations,
    )


def _lower_windows(o: StablehloReduceWindowOptions, reducer: _Reducer, outputs: Specs) -> Function:
    n, out, complete = len(outputs), outputs[0].shape, o.complete
    if math.prod(out) == 0:
        return nothing(outputs)

    def reduce_window(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        operands = reducer.upcast(arrays[:n])
        starts = [a.reshape(()) for a in reducer.upcast(arrays[n : 2 * n])]
        reduced = _slide(reducer, complete, operands, starts, out)
        return tuple(y.astype(spec.dtype) for y, spec in zip(reduced, outputs, strict=True))

    return reduce_window


def _lower_reduce_window(op: Op[StablehloReduceWindowOptions]) -> Function:
    dtypes = [spec.dtype for spec in op.outputs]
    reducer = _Reducer.of(op.context, op.options.body_subgraph_index, dtypes)
    return _lower_windows(op.options, reducer, op.outputs)


# ---- REDUCE_WINDOW

_Pair = Callable[[jax.Array, jax.Array], jax.Array]


def _logical(function: _Pair) -> _Pair:
    """A function of truth values; the result is 0 or 1 in the values' dtype."""
    return lambda x, y: function(x != jnp.zeros_like(x), y != jnp.zeros_like(y)).astype(x.dtype)


_Function = ReduceWindowFunction
# The kernel's order of arguments is (result so far, value): a NaN among the values is replaced.
_FUNCTIONS: dict[ReduceWindowFunction, _Pair] = {
    _Function.ADD: jnp.add,
    _Function.MUL: jnp.multiply,
    _Function.MINIMUM: lambda x, y: jnp.where(x <= y, x, y),
    _Function.MAXIMUM: lambda x, y: jnp.where(x >= y, x, y),
    _Function.ALL: _logical(jnp.logical_and),
    _Function.ANY: _logical(jnp.logical_or),
}


def _why_not_builtin(op: Op[ReduceWindowOptions]) -> str | None:
    x, function = op.inputs[0], op.options.reduce_function
    return (
        _why_not_reduced(op.inputs[:2], op.outputs)
        or why_not_dtype(x, FLOATS, INTEGERS, BOOLS)
        or (None if function in _FUNCTIONS else f"there is no function {function.name}")
    )


def _lower_builtin(op: Op[ReduceWindowOptions]) -> Function:
    function = _FUNCTIONS[op.options.reduce_function]
    wide = op.context.precision.accumulator(op.outputs[0].dtype)
    sizes, strides, dilations = map(integers, op.inputs[2:5])
    options = StablehloReduceWindowOptions(sizes, strides, (), dilations)

    def pairs(x: Arrays, y: Arrays) -> Arrays:
        return [function(x[0], y[0])]

    reducer = _Reducer(pairs, folds=None, wide=(wide,))
    return _lower_windows(options, reducer, op.outputs)


_SIZES = Input(dtypes(np.int64), is_constant=True)

_MOST_PAIRS = 1 << 24  # comparators without a single key compare every pair


# ---- STABLEHLO_SORT: several operands at once, along one dimension, by any comparator


def _arguments(specs: Specs) -> list[np.dtype]:
    """The comparator's arguments: both sides of the first operand, of the second..."""
    return [spec.dtype for spec in specs for _ in range(2)]


def _why_not_sort(op: Op[StablehloSortOptions]) -> str | None:
    reason = why_not_present(*op.inputs) or first_reason(
        *(why_not_dtype(spec, ELEMENTS) for spec in op.inputs),
        *(why_not_one_dtype(x, y) for x, y in zip(op.inputs, op.outputs, strict=True)),
    )
    if reason is not None:
        return reason
    index, arguments = op.options.comparator_subgraph_index, _arguments(op.inputs)
    reason = why_not_body(op.context, index, arguments, [BOOL])
    if reason is not None or Body.of(op.context, index, arguments).order() is not None:
        return reason
    shape = op.inputs[0].shape
    pairs = math.prod(shape) * shape[op.options.dimension]
    if pairs <= _MOST_PAIRS:
        return None
    return f"its comparator, subgraph {index}, orders by no single key, and there are {pairs} pairs"


def _lower_sort(op: Op[StablehloSortOptions]) -> Function:
    body = Body.of(op.context, op.options.comparator_subgraph_index, _arguments(op.inputs))
    order, axis = body.order(), op.options.dimension % len(op.inputs[0].shape)

    def sort(*operands: jax.Array) -> tuple[jax.Array, ...]:
        arrays = [jnp.asarray(x) for x in operands]
        if arrays[0].size == 0:
            return tuple(arrays)
        if order is not None:
            return _by_key(order, arrays, axis, is_stable=op.options.is_stable)
        return _by_rank(body, arrays, axis)

    return sort


def _by_key(
    order: Order, arrays: list[jax.Array], axis: int, *, is_stable: bool
) -> tuple[jax.Array, ...]:
    """Descending is ascending reversed; reversing the input as well keeps equals in order."""
    operands = arrays if order.ascending else [lax.rev(x, [axis]) for x in arrays]
    key = order.operand
    keys = operands[key] if key is not None else order.keys(operands)
    rest = [x for i, x in enumerate(operands) if i != key]
    results = list(lax.sort([keys, *rest], dimension=axis, is_stable=is_stable, num_keys=1))
    if key is None:
        results = results[1:]
    else:
        results.insert(key, results.pop(0))
    return tuple(y if order.ascending else lax.rev(y, [axis]) for y in results)


def _by_rank(body: Body, arrays: list[jax.Array], axis: int) -> tuple[jax.Array, ...]:
    """An element's rank is the number of elements that precede it; equals keep their order."""
    rows = [jnp.moveaxis(x, axis, -1) for x in arrays]  # [..., n]
    n = rows[0].shape[-1]
    square = (*rows[0].shape, n)
    sides = [
        jnp.broadcast_to(side, square) for x in rows for side in (x[..., None], x[..., None, :])
    ]
    (less,) = body.elements(*sides)  # [..., i, j]: i is less than j
    more = jnp.swapaxes(less, -1, -2)
    earlier = jnp.broadcast_to(jnp.asarray(np.triu(np.ones((n, n), bool), 1)), square)
    before = jnp.where(less == more, earlier, less)
    ranks = jnp.sum(before.astype(np.int32), axis=-2)
    places = jnp.argsort(ranks, axis=-1, stable=True)
    results = (jnp.take_along_axis(x, places, axis=-1) for x in rows)
    return tuple(jnp.moveaxis(y, -1, axis) for y in results)


RULES = table(
    typed_rule("STABLEHLO_REDUCE", [ANY, ANY], _lower_reduce, _why_not),
    typed_rule("STABLEHLO_REDUCE_WINDOW", [ANY, ANY], _lower_reduce_window, _why_not),
    typed_rule(
        "REDUCE_WINDOW", [ANY, ANY, _SIZES, _SIZES, _SIZES], _lower_builtin, _why_not_builtin
    ),
    typed_rule("STABLEHLO_SORT", [ANY], _lower_sort, _why_not_sort),
)
