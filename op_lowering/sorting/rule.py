"""Operators that order values: TOPK_V2 and BUCKETIZE."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.pointwise import why_not_count
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.records.record import NoOptions
from jaxdelegate.op_lowering.reduction.rule import why_not_ordered
from jaxdelegate.op_lowering.rule import (
    Function,
    Op,
    first_reason,
    rule,
    table,
    why_not_const,
    why_not_dtype,
    why_not_result,
)
from jaxdelegate.op_lowering.sorting.options import BucketizeOptions


def top_k(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """The k largest values along the last axis, descending, and their indices (int32).

    Equal values are ordered by index, and NaN comes after every number (kernels/topk_v2.cc).
    """
    keys = _keys(x)
    if k == 1:  # without a sort, which direct calls (jaxdelegate/thunks) leave to XLA's runtime
        indices = lax.argmax(keys, keys.ndim - 1, np.int32)[..., None]
    else:
        _, indices = lax.top_k(keys, k)
    return jnp.take_along_axis(x, indices, axis=-1), indices


def _keys(x: jax.Array) -> jax.Array:
    """Integers in the order of the values: lax.top_k itself puts NaN first and 0 before -0."""
    if x.dtype not in FLOATS:
        return x
    integer = np.dtype(f"int{8 * x.dtype.itemsize}")
    limits = np.iinfo(integer)
    bits = lax.bitcast_convert_type(jnp.where(x == 0, jnp.zeros_like(x), x), integer)
    mirrored = bits ^ jnp.asarray(limits.max, integer)  # negative floats grow as their bits fall
    keys = jnp.where(bits < 0, mirrored, bits)
    return jnp.where(jnp.isnan(x), jnp.asarray(limits.min, integer), keys)


def _why_not_topk(op: Op[NoOptions]) -> str | None:
    x, k = op.inputs[:2]
    if len(op.outputs) != 2:
        return why_not_count(op.outputs, 2, "outputs")
    reason = first_reason(
        why_not_const(k),
        why_not_dtype(k, np.int16, np.int32),
        why_not_dtype(op.outputs[1], np.int16, np.int32),
        why_not_ordered(op.context, x, op.outputs[0]),
        None if x.shape else f"{x.name!r} is a scalar: it has no last axis",
    )
    if reason is not None or k.const is None:
        return reason
    if k.const.size != 1:
        return f"{k.name!r} holds {k.const.size} values, not one"
    largest = int(k.const.ravel()[0])
    return f"k is {largest}, of {x.shape[-1]} values" if largest > x.shape[-1] else None


def _lower_topk(op: Op[NoOptions]) -> Function:
    k = op.outputs[0].shape[-1]  # 0 where the input is negative
    index_dtype = op.outputs[1].dtype

    def topk(x: jax.Array, _k: jax.Array) -> tuple[jax.Array, jax.Array]:
        values, indices = top_k(x, k)
        return values, indices.astype(index_dtype)

    return topk


def _why_not_bucketize(op: Op[BucketizeOptions]) -> str | None:
    boundaries = op.options.boundaries
    ascending = all(a <= b for a, b in itertools.pairwise(boundaries))
    return first_reason(
        why_not_dtype(op.inputs[0], FLOATS, np.int32, np.int64),
        why_not_result(op.outputs[0], np.int32),
        None if ascending else "the boundaries are not sorted",
    )


def _lower_bucketize(op: Op[BucketizeOptions]) -> Function:
    # The boundaries are float32: C++ compares integers with them in float32, doubles in float64.
    compared = np.float64 if op.inputs[0].dtype == np.float64 else np.float32
    boundaries = np.asarray(op.options.boundaries, np.float32).astype(compared)

    def bucketize(x: jax.Array) -> tuple[jax.Array]:
        below = x.astype(compared)[..., None] < boundaries.reshape((1,) * x.ndim + (-1,))
        return (jnp.sum(~below, axis=-1, dtype=np.int32),)  # NaN is below nothing: the last bucket

    return bucketize


RULES = table(
    rule("TOPK_V2", 3, _why_not_topk, _lower_topk, arity=2),
    rule("BUCKETIZE", 1, _why_not_bucketize, _lower_bucketize),
)
