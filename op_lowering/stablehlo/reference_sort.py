"""SORT, as the StableHLO specification defines it."""

import numpy as np

from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.op_lowering.stablehlo.options import StablehloSortOptions
from jaxdelegate.op_lowering.stablehlo.reference_body import Apply, Call, elementwise
from jaxdelegate.op_lowering.stablehlo.reference_shape import check
from jaxdelegate.reference.kernel import Array, Kernel
from jaxdelegate.reference.pointwise import reject_quantized

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


KERNELS = {"STABLEHLO_SORT": Kernel(sort, sorted_shapes, calls=True)}
