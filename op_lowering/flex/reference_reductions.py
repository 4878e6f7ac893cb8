"""Sums, products, scans, histograms, and reductions of sorted segments.

Sources: core/kernels/{bias_op,bincount_op,cumulative_logsumexp_op,reduction_ops*,scan_ops}.cc,
segment_reduction_ops*.cc.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.flex.reference_kernels import kernels
from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.reduction import reference as reduction
from jaxdelegate.op_lowering.reduction.options import ReducerOptions
from jaxdelegate.op_lowering.spec import Specs
from jaxdelegate.reference.kernel import Array, Function, ResultShapes, same_shape
from jaxdelegate.reference.movement import ints, resolved_axis
from jaxdelegate.reference.pointwise import widen

# ---- BiasAddGrad


def _channel_axis(o: FlexOptions, rank: int) -> int:
    if rank < 2 or o.data_format not in ("NHWC", "NCHW"):
        raise ValueError(f"BiasAddGrad of rank {rank}, {o.data_format!r}")
    return rank - 1 if o.data_format == "NHWC" else 1


def bias_add_grad_shape(o: FlexOptions, inputs: Specs) -> ResultShapes:
    shape = inputs[0].shape
    return ((shape[_channel_axis(o, len(shape))],),)


def bias_add_grad(o: FlexOptions, dy: Array) -> Array:
    """The sum of each channel."""
    channels = _channel_axis(o, dy.ndim)
    others = tuple(i for i in range(dy.ndim) if i != channels)
    wide = np.int64 if dy.dtype.kind in "iu" else np.float64
    return np.asarray(dy.astype(wide).sum(others))


# ---- Mean, Prod, Sum: values, axes


def reduced_shape(o: FlexOptions, inputs: Specs) -> ResultShapes:
    return reduction.reduced_shape(ReducerOptions(o.keep_dims), inputs)


def _reduced(function: Callable[..., Any]) -> Function:
    def run(o: FlexOptions, x: Array, axes: Array) -> Array:
        over = {resolved_axis(axis, x.ndim, "a reduction") for axis in ints(axes)}
        y: Array = function(widen(x), axis=tuple(over), keepdims=o.keep_dims)
        return y

    return run


# ---- Cumprod, CumulativeLogsumexp: values, axis


def _scan(name: str, function: np.ufunc, neutral: float) -> Function:
    """The function of the values up to each place, or before it: `neutral` before the first."""

    def run(o: FlexOptions, x: Array, axis: Array) -> Array:
        at = resolved_axis(int(axis.reshape(())), x.ndim, name)
        lines = np.moveaxis(widen(x), at, 0)
        y = function.accumulate(lines[::-1] if o.reverse else lines, axis=0)
        if o.exclusive and len(y):
            y = np.concatenate([np.full_like(y[:1], neutral), y[:-1]])
        return np.moveaxis(y[::-1] if o.reverse else y, 0, at)

    return run


# ---- Bincount, DenseBincount: values, size, weights (empty: ones)


def bincount_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    size = inputs[1].const
    return (None if size is None else (_count(size),),)


def _count(size: Array) -> int:
    n = int(np.asarray(size).reshape(()))
    if n < 0:
        raise ValueError(f"a histogram of {n} values")
    return n


def bincount(_o: FlexOptions, x: Array, size: Array, weights: Array) -> Array:
    """The number of each value, or the sum of its weights; values from `size` do not count."""
    if (x < 0).any():
        raise ValueError("Bincount: a value is negative")
    if weights.size and weights.shape != x.shape:
        raise ValueError(f"Bincount: weights {list(weights.shape)} for values {list(x.shape)}")
    y = np.zeros(int(size.reshape(())), weights.dtype)
    inside = x < len(y)
    np.add.at(y, x[inside], weights[inside] if weights.size else y.dtype.type(1))
    return y


def dense_bincount_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    if len(inputs[0].shape) not in (1, 2):
        raise ValueError(f"DenseBincount of values {list(inputs[0].shape)}")
    size = inputs[1].const
    rows = inputs[0].shape[:-1]
    return (None if size is None else (*rows, _count(size)),)


def dense_bincount(o: FlexOptions, x: Array, size: Array, weights: Array) -> Array:
    """The counts of each row; with `binary_output`, whether there is such a value."""
    if x.ndim == 2:
        each = weights if weights.size else np.zeros((len(x), 0), weights.dtype)
        rows = [dense_bincount(o, row, size, w) for row, w in zip(x, each, strict=True)]
        return np.stack(rows) if rows else np.zeros((0, int(size.reshape(()))))
    y = bincount(o, x, size, weights[:0] if o.binary_output else weights)
    return y > 0 if o.binary_output else y


# ---- Segment...: rows, segments
# ---- SparseSegment...: rows, indices of rows, segments, and their number

_REDUCE: dict[str, Callable[[Array], Array]] = {
    "Max": lambda rows: rows.max(axis=0),
    "Mean": lambda rows: rows.mean(axis=0),
    "Min": lambda rows: rows.min(axis=0),
    "Prod": lambda rows: rows.prod(axis=0),
    "SqrtN": lambda rows: rows.sum(axis=0) / np.sqrt(len(rows)).astype(rows.dtype),
    "Sum": lambda rows: rows.sum(axis=0),
}


def _checked(ids: Array, n: int, segments: int | None = None) -> tuple[list[int], int]:
    """The segment of each of n rows, and the number of segments."""
    numbers = ints(ids)
    if ids.ndim != 1 or len(numbers) != n:
        raise ValueError(f"{list(ids.shape)} segments of {n} rows")
    rises = all(a <= b for a, b in itertools.pairwise([0, *numbers]))
    if not rises or (segments is not None and numbers and numbers[-1] >= segments):
        most = "" if segments is None else f" to below {segments}"
        raise ValueError(f"segments {numbers}: expected to rise from 0 or more{most}")
    return numbers, numbers[-1] + 1 if segments is None and numbers else segments or 0


def _joined(rows: Array, ids: list[int], n: int, kind: str) -> Array:
    """The rows of n segments; one without rows is 0, or 1 for products."""
    y = np.full((n, *rows.shape[1:]), kind == "Prod", widen(rows).dtype)
    start = 0
    for segment, group in itertools.groupby(ids):
        end = start + len(list(group))
        y[segment] = _REDUCE[kind](widen(rows[start:end]))
        start = end
    return y


def segment_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    x, ids = inputs
    if not x.shape or ids.const is None:
        return (None,)
    return ((_checked(np.asarray(ids.const), x.shape[0])[1], *x.shape[1:]),)


def _segment(kind: str) -> Function:
    def segment(_o: FlexOptions, x: Array, ids: Array) -> Array:
        return _joined(x, *_checked(ids, len(x)), kind)

    return segment


def sparse_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    x, indices, ids, *number = inputs
    if not x.shape or len(indices.shape) != 1:
        raise ValueError(f"rows {list(indices.shape)} of {list(x.shape)}")
    if ids.const is None or any(spec.const is None for spec in number):
        return (None,)
    count = ints(np.asarray(number[0].const))[0] if number else None
    _, n = _checked(np.asarray(ids.const), indices.shape[0], count)
    return ((n, *x.shape[1:]),)


def _sparse_segment(kind: str) -> Function:
    def run(_o: FlexOptions, x: Array, indices: Array, ids: Array, *number: Array) -> Array:
        wrong = indices[(indices < 0) | (indices >= len(x))]
        if wrong.size:
            raise ValueError(f"SparseSegment{kind}: row {wrong[0]} of {len(x)}")
        count = ints(number[0])[0] if number else None
        return _joined(x[indices], *_checked(ids, len(indices), count), kind)

    return run


KERNELS = kernels(
    {
        "BiasAddGrad": (bias_add_grad, bias_add_grad_shape),
        "Bincount": (bincount, bincount_shape),
        "Cumprod": (_scan("Cumprod", np.multiply, 1), same_shape),
        "CumulativeLogsumexp": (
            _scan("CumulativeLogsumexp", np.logaddexp, -np.inf),
            same_shape,
        ),
        "DenseBincount": (dense_bincount, dense_bincount_shape),
        "Mean": (_reduced(np.mean), reduced_shape),
        "Prod": (_reduced(np.prod), reduced_shape),
        "Sum": (_reduced(np.sum), reduced_shape),
        **{
            f"Segment{kind}": (_segment(kind), segment_shape)
            for kind in ("Max", "Mean", "Min", "Prod")
        },
        **{
            f"SparseSegment{kind}{suffix}": (_sparse_segment(kind), sparse_shape)
            for kind in ("Mean", "SqrtN", "Sum")
            for suffix in ("", "WithNumSegments")
        },
    }
)
