"""Operators that order values, as kernels/topk_v2.cc and kernels/bucketize.cc compute them."""

import numpy as np

from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.records.record import NoOptions
from jaxdelegate.op_lowering.reduction.reference import accumulator, refuse_quantized
from jaxdelegate.op_lowering.sorting.options import BucketizeOptions
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel, same_shape


def topk_shapes(_o: NoOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """Values and indices; k is 0 where it is negative."""
    x, k = inputs[:2]
    if k.const is None:
        return None, None
    shape = (*x.shape[:-1], max(int(k.const.ravel()[0]), 0))
    return shape, shape


def topk(_o: NoOptions, _inputs: Specs, outputs: Specs, x: Array, k: Array) -> tuple[Array, Array]:
    """Values descend; equal ones are ordered by index, and NaN is last."""
    n, wanted = x.shape[-1], max(int(k.ravel()[0]), 0)
    if wanted > n:
        raise ValueError(f"k is {wanted}, of {n} values")
    # A stable sort of the reversed row: read backwards, equal values are ordered by index.
    backwards = x[..., ::-1].astype(accumulator(x.dtype))
    is_number = ~np.isnan(backwards) if x.dtype in FLOATS else np.ones(x.shape, bool)
    ascending = np.lexsort((backwards, is_number), axis=-1)
    indices = (n - 1 - ascending[..., ::-1])[..., :wanted]
    values = np.take_along_axis(x, indices, axis=-1)
    return values.astype(outputs[0].dtype), indices.astype(outputs[1].dtype)


def bucketize(o: BucketizeOptions, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """How many boundaries are not above each value; all of them for NaN."""
    refuse_quantized("BUCKETIZE", inputs[0])
    boundaries = np.asarray(o.boundaries, np.float32)
    if np.any(np.diff(boundaries) < 0):
        raise ValueError("the boundaries are not sorted")
    compared = x if x.dtype == np.float64 else x.astype(np.float32)
    return (np.searchsorted(boundaries, compared, side="right").astype(outputs[0].dtype),)


KERNELS = {
    "TOPK_V2": Kernel(topk, topk_shapes),
    "BUCKETIZE": Kernel(bucketize, same_shape),
}
