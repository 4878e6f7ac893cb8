"""Reductions by sorted segments, also of chosen rows (core/kernels/segment_reduction_ops*.cc)."""

import itertools
from collections.abc import Callable

import numpy as np

from jaxdelegate.op_lowering.flex.reference_named import named
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel
from jaxdelegate.reference.movement import ints
from jaxdelegate.reference.pointwise import widen

_Shapes = tuple[Shape | None, ...]
_Reduce = Callable[[Array], Array]
_REDUCE: dict[str, _Reduce] = {
    "Max": lambda rows: rows.max(axis=0),
    "Mean": lambda rows: rows.mean(axis=0),
    "Min": lambda rows: rows.min(axis=0),
    "Prod": lambda rows: rows.prod(axis=0),
    "SqrtN": lambda rows: rows.sum(axis=0) / np.sqrt(len(rows)).astype(rows.dtype),
    "Sum": lambda rows: rows.sum(axis=0),
}


def _checked(ids: Array, n: int, segments: int | None = None) -> list[int]:
    found = ints(ids)
    if ids.ndim != 1 or len(found) != n:
        raise ValueError(f"{list(ids.shape)} segments of {n} rows")
    rises = all(a <= b for a, b in itertools.pairwise([0, *found]))
    if not rises or (segments is not None and found and found[-1] >= segments):
        most = "" if segments is None else f" to below {segments}"
        raise ValueError(f"segments {found}: expected to rise from 0 or more{most}")
    return found


def _joined(rows: Array, ids: list[int], n: int, kind: str) -> Array:
    """The rows of n segments; one without rows is 0, or 1 for products."""
    y = np.full((n, *rows.shape[1:]), kind == "Prod", widen(rows).dtype)
    start = 0
    for segment, group in itertools.groupby(ids):
        end = start + len(list(group))
        y[segment] = _REDUCE[kind](widen(rows[start:end]))
        start = end
    return y


def _count(ids: list[int]) -> int:
    return ids[-1] + 1 if ids else 0


def segment_shape(_o: FlexOptions, inputs: Specs) -> _Shapes:
    x, ids = inputs
    if not x.shape or ids.const is None:
        return (None,)
    return ((_count(_checked(np.asarray(ids.const), x.shape[0])), *x.shape[1:]),)


def _segment(kind: str) -> Kernel:
    def run(_o: FlexOptions, _inputs: Specs, outputs: Specs, x: Array, ids: Array) -> tuple[Array]:
        found = _checked(ids, len(x))
        return (_joined(x, found, _count(found), kind).astype(outputs[0].dtype),)

    return Kernel(run, segment_shape)


def sparse_shape(_o: FlexOptions, inputs: Specs) -> _Shapes:
    x, indices, ids, *number = inputs
    if not x.shape or len(indices.shape) != 1:
        raise ValueError(f"rows {list(indices.shape)} of {list(x.shape)}")
    if ids.const is None or any(spec.const is None for spec in number):
        return (None,)
    count = ints(np.asarray(number[0].const))[0] if number else None
    found = _checked(np.asarray(ids.const), indices.shape[0], count)
    return ((_count(found) if count is None else count, *x.shape[1:]),)


def _sparse(kind: str) -> Kernel:
    def run(
        _o: FlexOptions,
        _inputs: Specs,
        outputs: Specs,
        x: Array,
        indices: Array,
        ids: Array,
        *number: Array,
    ) -> tuple[Array]:
        wrong = indices[(indices < 0) | (indices >= len(x))]
        if wrong.size:
            raise ValueError(f"SparseSegment{kind}: row {wrong[0]} of {len(x)}")
        count = ints(number[0])[0] if number else None
        found = _checked(ids, len(indices), count)
        n = _count(found) if count is None else count
        return (_joined(x[indices], found, n, kind).astype(outputs[0].dtype),)

    return Kernel(run, sparse_shape)


KERNELS = named(
    {
        **{f"{FLEX}Segment{kind}": _segment(kind) for kind in ("Max", "Mean", "Min", "Prod")},
        **{
            f"{FLEX}SparseSegment{kind}{suffix}": _sparse(kind)
            for kind in ("Mean", "SqrtN", "Sum")
            for suffix in ("", "WithNumSegments")
        },
    }
)
