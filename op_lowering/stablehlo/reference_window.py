"""REDUCE, REDUCE_WINDOW and SORT by a body, and the deprecated builtin REDUCE_WINDOW.

Sources: the StableHLO specification, kernels/stablehlo_reduce_window.cc.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.dtypes import HALVES
from jaxdelegate.op_lowering.records.enums import ReduceWindowFunction
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.op_lowering.stablehlo.options import (
    ReduceWindowOptions,
    StablehloReduceOptions,
    StablehloReduceWindowOptions,
    StablehloSortOptions,
)
from jaxdelegate.op_lowering.stablehlo.reference_shape import (
    check,
    check_dims,
    padded,
    shape_of_padded,
)
from jaxdelegate.reference.kernel import Array, Kernel, ResultShapes
from jaxdelegate.reference.pointwise import reject_quantized

Call = Callable[..., tuple[Array, ...]]  # (subgraph, *arrays) -> its outputs
Apply = Callable[..., tuple[Array, ...]]  # (*arrays of one shape) -> arrays of that shape

# ---- bodies: subgraphs that take scalars, applied to whole arrays

_REFUSALS = (ValueError, TypeError, LookupError, ArithmeticError, RuntimeError)


def elementwise(
    call: Call, index: int, arguments: Sequence[np.dtype], results: Sequence[np.dtype]
) -> Apply:
    """The body as a function of arrays, element by element.

    A body that accepts vectors is called once for all elements, any other once for each.
    """
    whole = _runs_on_vectors(call, index, arguments, len(results))

    def apply(*arrays: Array) -> tuple[Array, ...]:
        shape, n = arrays[0].shape, arrays[0].size
        flat = [np.ascontiguousarray(a).reshape(-1) for a in arrays]
        if n == 0:
            columns = [np.zeros(0, dtype) for dtype in results]
        elif whole:
            columns = list(call(index, *flat))
        else:
            rows = [call(index, *(a[i : i + 1].reshape(()) for a in flat)) for i in range(n)]
            columns = [
                np.stack([np.asarray(v).reshape(()) for v in c]) for c in zip(*rows, strict=True)
            ]
        pairs = zip(columns, results, strict=True)
        return tuple(np.asarray(c).astype(dtype).reshape(shape) for c, dtype in pairs)

    return apply


def _runs_on_vectors(call: Call, index: int, arguments: Sequence[np.dtype], n_results: int) -> bool:
    """Whether the body maps vectors to vectors, independently of the values.

    Tried on empty vectors, which have no value for a branch to depend on. A body defined on
    scalars has no axis to reduce or reorder.
    """
    try:
        results = call(index, *(np.zeros(0, dtype) for dtype in arguments))
    except _REFUSALS:
        return False
    return len(results) == n_results and all(np.shape(y) == (0,) for y in results)


def _operands(inputs: Specs) -> Specs:
    n = len(inputs) // 2
    check(
        n > 0 and len(inputs) == 2 * n, f"{len(inputs)} inputs are not operands and initial values"
    )
    check(len({spec.shape for spec in inputs[:n]}) == 1, "the operands differ in shape")
    return inputs[:n]


def _reducer(call: Call, index: int, outputs: Specs) -> Apply:
    dtypes = [spec.dtype for spec in outputs]
    return elementwise(call, index, (*dtypes, *dtypes), dtypes)


# ---- STABLEHLO_REDUCE


def reduced_shapes(o: StablehloReduceOptions, inputs: Specs) -> ResultShapes:
    operands = _operands(inputs)
    shape, dims = operands[0].shape, o.dimensions
    check_dims("dimensions", dims, len(shape))
    kept = tuple(n for d, n in enumerate(shape) if d not in dims)
    return (kept,) * len(operands)


def reduce(
    call: Call, o: StablehloReduceOptions, inputs: Specs, outputs: Specs, *arrays: Array
) -> tuple[Array, ...]:
    """Combine neighbors in row-major order until one is left, then that with the initial value."""
    reject_quantized(inputs)
    n, body = len(outputs), _reducer(call, o.body_subgraph_index, outputs)
    (shape, *_) = reduced_shapes(o, inputs)
    kept = [d for d in range(arrays[0].ndim) if d not in o.dimensions]
    order = [*sorted(o.dimensions), *kept]
    values = [x.transpose(order).reshape(-1, *(shape or ())) for x in arrays[:n]]
    starts = [np.full(shape or (), a.reshape(()), a.dtype) for a in arrays[n:]]
    if len(values[0]) == 0:
        return tuple(starts)
    while (length := len(values[0])) > 1:
        firsts, seconds = ([v[i : length - length % 2 : 2] for v in values] for i in (0, 1))
        paired = body(*firsts, *seconds)
        rest = [v[length - length % 2 :] for v in values]
        values = [np.concatenate(pair) for pair in zip(paired, rest, strict=True)]
    return body(*starts, *(v[0] for v in values))


# ---- STABLEHLO_REDUCE_WINDOW


def _complete(o: StablehloReduceWindowOptions, rank: int) -> StablehloReduceWindowOptions:
    o = o.complete
    columns = (o.window_dimensions, o.window_strides, o.window_dilations, o.base_dilations)
    fits = all(len(column) == rank for column in columns) and len(o.padding) == 2 * rank
    check(fits, f"{o} is not for rank {rank}")
    check(all(min(column, default=1) > 0 for column in columns), f"{o} must be positive")
    return o


def _places(o: StablehloReduceWindowOptions, shape: Shape) -> Shape:
    lengths = shape_of_padded(shape, o.widths)
    rows = zip(lengths, o.window_dimensions, o.window_dilations, o.window_strides, strict=True)
    return tuple(max(n - ((k - 1) * d + 1) + s, 0) // s for n, k, d, s in rows)


def _slide(
    o: StablehloReduceWindowOptions,
    body: Apply,
    operands: Sequence[Array],
    starts: Sequence[Array],
) -> tuple[Array, ...]:
    """Each result combines its initial value with the window's elements in row-major order."""
    places = _places(o, operands[0].shape)
    filled = [padded(x, a, o.widths) for x, a in zip(operands, starts, strict=True)]
    results = tuple(np.full(places, a.reshape(()), a.dtype) for a in starts)
    if 0 in places:
        return results
    for tap in np.ndindex(*o.window_dimensions):
        rows = zip(tap, o.window_dilations, places, o.window_strides, strict=True)
        reads = tuple(slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in rows)
        results = body(*results, *(x[reads] for x in filled))
    return results


def window_shapes(o: StablehloReduceWindowOptions, inputs: Specs) -> ResultShapes:
    operands = _operands(inputs)
    shape = operands[0].shape
    return (_places(_complete(o, len(shape)), shape),) * len(operands)


def reduce_window(
    call: Call, o: StablehloReduceWindowOptions, inputs: Specs, outputs: Specs, *arrays: Array
) -> tuple[Array, ...]:
    reject_quantized(inputs)
    n, body = len(outputs), _reducer(call, o.body_subgraph_index, outputs)
    return _slide(_complete(o, arrays[0].ndim), body, arrays[:n], arrays[n:])


# ---- REDUCE_WINDOW

_Function = ReduceWindowFunction
_FUNCTIONS: dict[ReduceWindowFunction, Callable[[Array, Array], Any]] = {
    _Function.ADD: np.add,
    _Function.MUL: np.multiply,
    _Function.MINIMUM: lambda total, x: np.where(total <= x, total, x),
    _Function.MAXIMUM: lambda total, x: np.where(total >= x, total, x),
    _Function.ALL: np.logical_and,
    _Function.ANY: np.logical_or,
}


def _builtin(sizes: Array, strides: Array, dilations: Array) -> StablehloReduceWindowOptions:
    size, stride, dilation = (tuple(a.tolist()) for a in (sizes, strides, dilations))
    options = StablehloReduceWindowOptions(size, stride, window_dilations=dilation)
    return _complete(options, len(size))


def builtin_shape(_o: ReduceWindowOptions, inputs: Specs) -> ResultShapes:
    """None where sizes, strides and dilations are not constant."""
    sizes, strides, dilations = (spec.const for spec in inputs[2:5])
    if sizes is None or strides is None or dilations is None:
        return (None,)
    check(len(sizes) == len(inputs[0].shape), f"windows {sizes} are not for {inputs[0].shape}")
    return (_places(_builtin(sizes, strides, dilations), inputs[0].shape),)


def builtin_reduce_window(
    o: ReduceWindowOptions, inputs: Specs, outputs: Specs, x: Array, start: Array, *windows: Array
) -> tuple[Array]:
    reject_quantized(inputs)
    dtype = outputs[0].dtype
    check(o.reduce_function in _FUNCTIONS, f"there is no function {o.reduce_function.name}")
    wide = np.dtype(np.float32) if dtype in HALVES else dtype

    def body(total: Array, value: Array) -> tuple[Array]:
        return (np.asarray(_FUNCTIONS[o.reduce_function](total, value)).astype(wide),)

    with np.errstate(all="ignore"):
        (y,) = _slide(_builtin(*windows), body, [x.astype(wide)], [start.astype(wide)])
    return (y.astype(dtype),)


# ---- STABLEHLO_SORT

_BOOL = np.dtype(np.bool_)


def sorted_shapes(o: StablehloSortOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    shape = inputs[0].shape
    check(all(spec.shape == shape for spec in inputs), "the operands differ in shape")
    check(-len(shape) <= o.dimension < len(shape), f"dimension {o.dimension} of {list(shape)}")
    return (shape,) * len(inputs)


def sort(
    call: Call, o: StablehloSortOptions, inputs: Specs, _outputs: Specs, *operands: Array
) -> tuple[Array, ...]:
    """The sort is always stable."""
    reject_quantized(inputs)
    arguments = [x.dtype for x in operands for _ in range(2)]
    less = elementwise(call, o.comparator_subgraph_index, arguments, [_BOOL])
    rows = [np.moveaxis(x, o.dimension, 0) for x in operands]  # [n, ...]
    order = _order(rows, less)
    sorted_rows = (np.take_along_axis(x, order, 0) for x in rows)
    return tuple(np.ascontiguousarray(np.moveaxis(y, 0, o.dimension)) for y in sorted_rows)


def _order(rows: list[Array], less: Apply) -> Array:
    """The source of each place, [n, ...]. An element's place is the number that precede it."""
    n = len(rows[0])
    places = np.zeros(rows[0].shape, np.int64)
    position = np.arange(n).reshape(-1, *(1 for _ in rows[0].shape[1:]))
    for i in range(n):
        one = [np.broadcast_to(x[i], x.shape) for x in rows]
        pairs = list(zip(rows, one, strict=True))
        (below,) = less(*(side for x, c in pairs for side in (x, c)))
        (above,) = less(*(side for x, c in pairs for side in (c, x)))
        precedes = np.where(below == above, position < i, below)  # equals keep their order
        places[i] = precedes.sum(0)
    return np.argsort(places, axis=0, kind="stable")


KERNELS = {
    "STABLEHLO_REDUCE": Kernel(reduce, reduced_shapes, calls=True),
    "STABLEHLO_REDUCE_WINDOW": Kernel(reduce_window, window_shapes, calls=True),
    "REDUCE_WINDOW": Kernel(builtin_reduce_window, builtin_shape),
    "STABLEHLO_SORT": Kernel(sort, sorted_shapes, calls=True),
}
