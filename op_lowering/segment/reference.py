"""Reductions by segment, as kernels/{segment_sum,unsorted_segment}.cc compute them."""

from collections.abc import Callable

import numpy as np

from jaxdelegate.op_lowering.records.record import NoOptions, Options
from jaxdelegate.op_lowering.reduction.reference import accumulator, limits, refuse_quantized
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel


def segment_sum_shape(_o: NoOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """The last id is the highest."""
    x, ids = inputs[:2]
    if ids.const is None:
        return (None,)
    return ((_count_segments(ids.const), *x.shape[1:]),)


def _count_segments(ids: Array) -> int:
    return int(ids[-1]) + 1 if ids.size else 0


@np.errstate(all="ignore")
def segment_sum(_o: NoOptions, inputs: Specs, outputs: Specs, x: Array, ids: Array) -> tuple[Array]:
    refuse_quantized("SEGMENT_SUM", inputs[0])
    if ids.shape != x.shape[:1]:
        raise ValueError(f"segment ids {list(ids.shape)} do not name the rows of {list(x.shape)}")
    previous = 0
    for current in ids.tolist():
        if current not in (previous, previous + 1) or (previous == 0 and ids[0] != 0):
            raise ValueError("segment ids do not rise from 0 in steps of at most 1")
        previous = current
    y = np.zeros((_count_segments(ids), *x.shape[1:]), accumulator(x.dtype))
    np.add.at(y, ids, x.astype(y.dtype))
    return (y.astype(outputs[0].dtype),)


def unsorted_shape(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    """The number of segments in place of the dimensions that the ids cover."""
    x, ids, count = inputs[:3]
    if count.const is None:
        return (None,)
    return ((int(count.const.ravel()[0]), *x.shape[len(ids.shape) :]),)


def _unsorted(operator: str, reduce: np.ufunc, initial: Callable[[np.dtype], float]) -> Kernel:
    @np.errstate(all="ignore")
    def kernel(
        _o: Options, inputs: Specs, outputs: Specs, x: Array, ids: Array, count: Array
    ) -> tuple[Array]:
        refuse_quantized(operator, inputs[0])
        n_segments, rest = int(count.ravel()[0]), x.shape[ids.ndim :]
        if x.shape[: ids.ndim] != ids.shape or n_segments < 0 or np.any(ids >= n_segments):
            raise ValueError(
                f"{operator}: ids {list(ids.shape)} for {list(x.shape)}, {n_segments} segments"
            )
        y = np.full((n_segments, *rest), initial(x.dtype), accumulator(x.dtype))
        kept = ids >= 0  # values with a negative id are dropped
        reduce.at(y, ids[kept], x[kept].astype(y.dtype))
        return (y.astype(outputs[0].dtype),)

    return Kernel(kernel, unsorted_shape)


KERNELS = {
    "SEGMENT_SUM": Kernel(segment_sum, segment_sum_shape),
    # fmax and fmin ignore NaN, as the kernel's comparisons do.
    "UNSORTED_SEGMENT_MAX": _unsorted("UNSORTED_SEGMENT_MAX", np.fmax, lambda d: limits(d)[0]),
    "UNSORTED_SEGMENT_MIN": _unsorted("UNSORTED_SEGMENT_MIN", np.fmin, lambda d: limits(d)[1]),
    "UNSORTED_SEGMENT_PROD": _unsorted("UNSORTED_SEGMENT_PROD", np.multiply, lambda _: 1),
    "UNSORTED_SEGMENT_SUM": _unsorted("UNSORTED_SEGMENT_SUM", np.add, lambda _: 0),
}
