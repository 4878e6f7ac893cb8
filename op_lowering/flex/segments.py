"""Reductions by sorted segments, also of chosen rows (core/kernels/segment_reduction_ops*.cc)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.common.movement import integers
from jaxdelegate.op_lowering.dtypes import FLOATS, INDICES
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.rule import (
    Function,
    Op,
    OpRule,
    first_reason,
    table,
    why_not_const,
    why_not_dtype,
    why_not_result,
)
from jaxdelegate.op_lowering.segment.rule import multiplied
from jaxdelegate.op_lowering.spec import Shape, TensorSpec

_Op = Op[FlexOptions]
# By name: how rows are joined, what a segment begins with, and what its count divides.
_SEGMENTS: dict[str, tuple[str, float]] = {
    "Max": ("max", -np.inf),
    "Mean": ("add", 0),
    "Min": ("min", np.inf),
    "Prod": ("multiply", 1),
    "SqrtN": ("add", 0),
    "Sum": ("add", 0),
}
_ROOTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"Mean": np.asarray, "SqrtN": np.sqrt}


def _why_not_ids(ids: TensorSpec, rows: Shape) -> str | None:
    reason = why_not_const(ids) or why_not_dtype(ids, INDICES)
    if reason is not None:
        return reason
    values = integers(ids)
    is_sorted = list(values) == sorted(values) and min(values, default=0) >= 0
    return first_reason(
        None if ids.shape == rows else f"{list(ids.shape)} segments of {list(rows)} rows",
        None if is_sorted else f"{ids.name!r} does not rise from 0 or more",
    )


def _why_not_segment(op: _Op) -> str | None:
    x, ids = op.inputs[:2]
    return first_reason(
        why_not_dtype(x, FLOATS),
        why_not_result(op.outputs[0], x.dtype),
        _why_not_ids(ids, x.shape[:1]),
    )


def _why_not_sparse(op: _Op) -> str | None:
    x, indices, ids = op.inputs[:3]
    counts = op.inputs[3:4]
    reason = first_reason(
        why_not_dtype(x, FLOATS),
        why_not_dtype(indices, INDICES),
        why_not_result(op.outputs[0], x.dtype),
        None if x.shape and x.shape[0] else f"{x.name!r} {list(x.shape)} has no rows",
        _why_not_ids(ids, indices.shape),
        why_not_const(*counts),
    )
    if reason is not None:
        return reason
    last, n = max(integers(ids), default=-1), op.outputs[0].shape[0]
    return None if last < n else f"segment {last} of {n}"


def _reduced(op: _Op, kind: str, ids: np.ndarray) -> Callable[[jax.Array], jax.Array]:
    """The rows of each segment; one without rows is 0, or 1 for products."""
    y = op.outputs[0]
    scatter, first = _SEGMENTS[kind]
    wide = op.context.precision.accumulator(y.dtype)
    counts = np.bincount(ids, minlength=y.shape[0]).reshape(-1, *[1] * (len(y.shape) - 1))
    divisors = np.maximum(_ROOTS.get(kind, np.ones_like)(counts), 1).astype(wide)
    empty = np.asarray(first if kind == "Prod" else 0, wide)

    def reduce(rows: jax.Array) -> jax.Array:
        start, values = jnp.full(y.shape, first, wide), jnp.asarray(rows, wide)
        if kind == "Prod":
            joined = multiplied(values, jnp.asarray(ids), start)
        else:
            joined = getattr(start.at[ids], scatter)(values, indices_are_sorted=True)
        return jnp.where(counts > 0, joined / divisors, empty).astype(y.dtype)

    return reduce


def _segment(kind: str) -> OpRule[FlexOptions]:
    def lower(op: _Op) -> Function:
        reduce = _reduced(op, kind, np.array(integers(op.inputs[1]), int))
        return lambda x, _ids: (reduce(x),)

    return OpRule(f"{FLEX}Segment{kind}", FlexOptions, 1, _why_not_segment, lower, arity=2)


def _sparse(kind: str, suffix: str) -> OpRule[FlexOptions]:
    def lower(op: _Op) -> Function:
        """An index outside is an error of TensorFlow's; here it is the nearest row."""
        reduce = _reduced(op, kind, np.array(integers(op.inputs[2]), int))
        return lambda x, indices, *_: (reduce(jnp.take(x, indices, axis=0, mode="clip")),)

    name = f"{FLEX}SparseSegment{kind}{suffix}"
    return OpRule(name, FlexOptions, 1, _why_not_sparse, lower, arity=4 if suffix else 3)


RULES = table(
    *map(_segment, ("Max", "Mean", "Min", "Prod")),
    *(
        _sparse(kind, suffix)
        for kind in ("Mean", "SqrtN", "Sum")
        for suffix in ("", "WithNumSegments")
    ),
)
