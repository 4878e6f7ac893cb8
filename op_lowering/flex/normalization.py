"""FusedBatchNormV3 and its gradient (core/kernels/fused_batch_norm_op.cc, on a CPU).

In inference TensorFlow leaves the fourth and the fifth result undefined: here they are the given
mean and variance, which the gradient wants.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.flex.options import FlexNormalizationOptions
from jaxdelegate.op_lowering.records.flex import FLEX
from jaxdelegate.op_lowering.rule import (
    Function,
    Op,
    OpRule,
    first_reason,
    table,
    why_not_dtype,
    why_not_result,
)
from jaxdelegate.op_lowering.spec import TensorSpec

_Op = Op[FlexNormalizationOptions]


def _channels(format_: str, rank: int) -> int | None:
    """The axis; None for another format."""
    return {("NHWC", 4): 3, ("NCHW", 4): 1, ("NDHWC", 5): 4, ("NCDHW", 5): 1}.get((format_, rank))


def _why_not_images(op: _Op, x: TensorSpec, *vectors: TensorSpec) -> str | None:
    axis = _channels(op.options.data_format, len(x.shape))
    if axis is None:
        return f"{x.name!r} {list(x.shape)} is not {op.options.data_format!r}"
    wrong = next((v for v in vectors if v.shape != (x.shape[axis],)), None)
    return first_reason(
        why_not_dtype(x, FLOATS),
        *(why_not_dtype(v, np.float32) for v in vectors),
        why_not_result(op.outputs[0], x.dtype),
        *(why_not_result(y, np.float32) for y in op.outputs[1:]),
        None if wrong is None else f"{wrong.name!r} {list(wrong.shape)} is not of the channels",
    )


def _reads_averages(o: FlexNormalizationOptions) -> bool:
    return not o.is_training or o.exponential_avg_factor != 1


def _why_not_normalization(op: _Op) -> str | None:
    x, *vectors = op.inputs[:5]
    return _why_not_images(op, x, *(vectors if _reads_averages(op.options) else vectors[:2]))


def _lower_normalization(op: _Op) -> Function:
    o, rank, dtype = op.options, len(op.inputs[0].shape), op.inputs[0].dtype
    wide = op.context.precision.accumulator(dtype)
    axis = _channels(o.data_format, rank) or 0
    axes = tuple(i for i in range(rank) if i != axis)
    along = tuple(-1 if i == axis else 1 for i in range(rank))
    count = math.prod(op.inputs[0].shape[i] for i in axes)
    old, reads = 1 - o.exponential_avg_factor, _reads_averages(o)

    def averaged(held: jax.Array, found: jax.Array) -> jax.Array:
        return old * held + o.exponential_avg_factor * found if reads else found

    def normalize(x: jax.Array, *vectors: jax.Array) -> tuple[jax.Array, ...]:
        scale, offset, mean, variance = vectors
        x = x.astype(wide)
        if o.is_training:
            center = jnp.mean(x, axes)
            spread = jnp.mean(jnp.square(x - center.reshape(along)), axes)
            new = averaged(mean, center), averaged(variance, spread * (count / max(count - 1, 1)))
        else:
            center, spread = new = mean, variance
        factor = lax.rsqrt(spread + o.epsilon) * scale
        y = (x - center.reshape(along)) * factor.reshape(along) + offset.reshape(along)
        results = *new, center, spread
        return y.astype(dtype), *(v.astype(np.float32) for v in results), jnp.zeros((), np.float32)

    return normalize


# ---- FusedBatchNormGradV3: gradient, x, scale, mean, variance


def _why_not_gradient(op: _Op) -> str | None:
    dy, x, *vectors = op.inputs[:5]
    same = dy.shape == x.shape and dy.dtype == x.dtype
    differ = None if same else f"{dy.name!r} is not {x.dtype} {list(x.shape)}"
    return differ or _why_not_images(op, x, *vectors)


def _lower_gradient(op: _Op) -> Function:
    o, rank, dtype = op.options, len(op.inputs[1].shape), op.inputs[1].dtype
    wide = op.context.precision.accumulator(dtype)
    axis = _channels(o.data_format, rank) or 0
    axes = tuple(i for i in range(rank) if i != axis)
    along = tuple(-1 if i == axis else 1 for i in range(rank))

    def gradient(dy: jax.Array, x: jax.Array, *vectors: jax.Array) -> tuple[jax.Array, ...]:
        scale, mean, variance = (v.reshape(along) for v in vectors[:3])
        dy, factor = dy.astype(wide), lax.rsqrt(variance + o.epsilon)
        normal = (x.astype(wide) - mean) * factor
        dscale, doffset = jnp.sum(dy * normal, axes), jnp.sum(dy, axes)
        if o.is_training:  # mean and variance depend on x, too
            products = jnp.mean(dy * normal, axes, keepdims=True)
            dy = dy - jnp.mean(dy, axes, keepdims=True) - normal * products
        dx = (dy * scale * factor).astype(dtype)
        none = jnp.zeros(0, np.float32)
        return dx, dscale.astype(np.float32), doffset.astype(np.float32), none, none

    return gradient


RULES = table(
    OpRule(
        f"{FLEX}FusedBatchNormV3",
        FlexNormalizationOptions,
        1,
        _why_not_normalization,
        _lower_normalization,
        arity=5,
        results=6,
    ),
    OpRule(
        f"{FLEX}FusedBatchNormGradV3",
        FlexNormalizationOptions,
        1,
        _why_not_gradient,
        _lower_gradient,
        arity=5,
        results=5,
    ),
)
