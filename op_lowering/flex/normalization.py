"""Batch normalization and its gradient, as on a CPU; losses of softmax, with their gradients.

Sources: core/kernels/{fused_batch_norm_op,xent_op,sparse_xent_op}.cc. In inference TensorFlow
leaves the fourth and the fifth result undefined: here they are the input mean and variance, which
the gradient needs.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.signature import FLOAT, FLOAT32, INDEX, SAME
from jaxdelegate.op_lowering.flex.signature import rule
from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.rule import Function, Op, table

_Op = Op[FlexOptions]


def _reads_averages(o: FlexOptions) -> bool:
    return not o.is_training or o.exponential_avg_factor != 1


def _lower_normalization(op: _Op) -> Function:
    o, rank, dtype = op.options, len(op.inputs[0].shape), op.inputs[0].dtype
    wide = op.context.precision.accumulator(dtype)
    axis = o.data_format.index("C")
    axes = tuple(i for i in range(rank) if i != axis)
    along = tuple(-1 if i == axis else 1 for i in range(rank))
    count = math.prod(op.inputs[0].shape[i] for i in axes)
    old, reads = 1 - o.exponential_avg_factor, _reads_averages(o)

    def averaged(held: jax.Array, new: jax.Array) -> jax.Array:
        return old * held + o.exponential_avg_factor * new if reads else new

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


def _lower_gradient(op: _Op) -> Function:
    o, rank, dtype = op.options, len(op.inputs[1].shape), op.inputs[1].dtype
    wide = op.context.precision.accumulator(dtype)
    axis = o.data_format.index("C")
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


# ---- SoftmaxCrossEntropyWithLogits, SparseSoftmaxCrossEntropyWithLogits: logits, labels


def _why_not_classes(op: _Op) -> str | None:
    logits = op.inputs[0]
    return None if logits.shape[1] else f"{logits.name!r} {list(logits.shape)} has no classes"


def _lower_soft(op: _Op) -> Function:
    return _entropy(op, lambda labels, logits: jnp.broadcast_to(labels, logits.shape))


def _lower_sparse(op: _Op) -> Function:
    """A label outside the classes is an error of TensorFlow's; here its loss is 0."""
    n = op.inputs[0].shape[1]
    return _entropy(op, lambda labels, logits: jax.nn.one_hot(labels, n, dtype=logits.dtype))


def _entropy(op: _Op, as_rows: Callable[[jax.Array, jax.Array], jax.Array]) -> Function:
    dtype, shape = op.inputs[0].dtype, op.outputs[1].shape
    wide = op.context.precision.accumulator(dtype)

    def entropy(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = jnp.broadcast_to(jnp.asarray(logits).astype(wide), shape)
        rows = as_rows(jnp.asarray(labels), logits).astype(wide)
        logs = jax.nn.log_softmax(logits, axis=1)
        # Where a label is 0, an infinite logarithm does not count.
        terms = jnp.where(rows == 0, jnp.zeros_like(rows), rows * logs)
        return (-jnp.sum(terms, 1)).astype(dtype), (jnp.exp(logs) - rows).astype(dtype)

    return entropy


_VECTORS = [FLOAT32] * 4
RULES = table(
    rule(
        "FusedBatchNormGradV3",
        [FLOAT, SAME, *_VECTORS[:3]],
        _lower_gradient,
        results=[0, *[np.float32] * 4],
    ),
    rule(
        "FusedBatchNormV3", [FLOAT, *_VECTORS], _lower_normalization, results=[0, *[np.float32] * 5]
    ),
    rule("SoftmaxCrossEntropyWithLogits", [FLOAT, SAME], _lower_soft, results=[0, 0]),
    rule(
        "SparseSoftmaxCrossEntropyWithLogits",
        [FLOAT, INDEX],
        _lower_sparse,
        _why_not_classes,
        results=[0, 0],
    ),
)
