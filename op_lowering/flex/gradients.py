"""Gradients of slices, and of softmax with its loss (core/kernels/)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.common.basics import why_not_broadcast
from jaxdelegate.op_lowering.common.movement import MOVABLE, integers
from jaxdelegate.op_lowering.dtypes import FLOATS, INDICES
from jaxdelegate.op_lowering.flex.options import FlexSliceOptions
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

_Slice = Op[FlexSliceOptions]


# ---- StridedSliceGrad: shape, begin, end, strides, gradient


def _why_not_slice(op: _Slice) -> str | None:
    *numbers, dy = op.inputs[:5]
    return first_reason(
        *(why_not_const(n) or why_not_dtype(n, INDICES) for n in numbers),
        why_not_dtype(dy, MOVABLE),
        why_not_result(op.outputs[0], dy.dtype),
    ) or _why_not_taken(op)


def _why_not_taken(op: _Slice) -> str | None:
    shape, *entries = map(integers, op.inputs[:4])
    try:
        index = op.options.index(*entries)
        taken = np.broadcast_to(np.int8(0), shape)[index].shape
    except (ValueError, IndexError) as error:
        return f"a slice of {list(shape)}: {error}"
    given = op.inputs[4].shape
    return None if taken == given else f"a slice is {list(taken)}, its gradient {list(given)}"


def _lower_slice(op: _Slice) -> Function:
    shape, *entries = map(integers, op.inputs[:4])
    index, dtype = op.options.index(*entries), op.outputs[0].dtype
    return lambda *arrays: (jnp.zeros(shape, dtype).at[index].set(arrays[4]),)


# ---- SoftmaxCrossEntropyWithLogits, SparseSoftmaxCrossEntropyWithLogits: logits, labels


def _why_not_logits(op: Op[FlexOptions]) -> str | None:
    logits, loss, gradient = op.inputs[0], *op.outputs[:2]
    return first_reason(
        why_not_dtype(logits, FLOATS),
        *(why_not_result(y, logits.dtype) for y in (loss, gradient)),
        None if len(logits.shape) == 2 else f"{logits.name!r} {list(logits.shape)} is not a matrix",
    )


def _why_not_soft(op: Op[FlexOptions]) -> str | None:
    logits, labels = op.inputs[:2]
    return (
        _why_not_logits(op)
        or why_not_dtype(labels, logits.dtype.type)
        or why_not_broadcast(logits.shape, labels.shape)
    )


def _why_not_sparse(op: Op[FlexOptions]) -> str | None:
    logits, labels = op.inputs[:2]
    fits = labels.shape == logits.shape[:1] and 0 not in logits.shape[1:]
    differ = f"{list(labels.shape)} labels for logits {list(logits.shape)}"
    return _why_not_logits(op) or why_not_dtype(labels, INDICES) or (None if fits else differ)


def _lower_soft(op: Op[FlexOptions]) -> Function:
    return _entropy(op, lambda labels, logits: jnp.broadcast_to(labels, logits.shape))


def _lower_sparse(op: Op[FlexOptions]) -> Function:
    """A label outside the classes is an error of TensorFlow's; here its loss is 0."""
    n = op.inputs[0].shape[1]
    return _entropy(op, lambda labels, logits: jax.nn.one_hot(labels, n, dtype=logits.dtype))


def _entropy(op: Op[FlexOptions], as_rows: Callable[[jax.Array, jax.Array], jax.Array]) -> Function:
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


RULES = table(
    OpRule(
        f"{FLEX}SoftmaxCrossEntropyWithLogits",
        FlexOptions,
        1,
        _why_not_soft,
        _lower_soft,
        arity=2,
        results=2,
    ),
    OpRule(
        f"{FLEX}SparseSoftmaxCrossEntropyWithLogits",
        FlexOptions,
        1,
        _why_not_sparse,
        _lower_sparse,
        arity=2,
        results=2,
    ),
    OpRule(f"{FLEX}StridedSliceGrad", FlexSliceOptions, 1, _why_not_slice, _lower_slice, arity=5),
)
