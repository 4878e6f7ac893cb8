"""Shape operators: RESHAPE, SQUEEZE, EXPAND_DIMS, SHAPE, BROADCAST_TO, FILL, RANGE and others.

The shape of a result is its output's: shape propagation has read the constant that decides it.
Without that constant the output is dynamic, and no rule here is called.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.common.movement import MOVABLE, integers
from jaxdelegate.op_lowering.common.signature import ANY, KNOWN, MOVED, Input, dtypes, moving_rule
from jaxdelegate.op_lowering.records.custom import CustomOptions
from jaxdelegate.op_lowering.records.record import NoOptions, Options
from jaxdelegate.op_lowering.rule import Function, Op, first_reason, rule, table, why_not_dtype
from jaxdelegate.op_lowering.shape.options import ShapeOptions
from jaxdelegate.op_lowering.spec import Shape


def _why_not_reshape(op: Op[Options]) -> str | None:
    x, y = op.inputs[0], op.outputs[0]
    same = math.prod(x.shape) == math.prod(y.shape)
    if same:
        return None
    return f"{list(x.shape)} and {list(y.shape)} hold different numbers of values"


def _lower_reshape(op: Op[Options]) -> Function:
    shape = op.outputs[0].shape
    return lambda x, *_shape_or_axis: (x.reshape(shape),)


def _why_not_shape(op: Op[Options]) -> str | None:
    x = op.inputs[0]
    return first_reason(
        None if x.dtype in MOVABLE else f"{x.name!r} is {x.dtype}, which XLA does not support",
        why_not_dtype(op.outputs[0], np.int32, np.int64),
    )


def _lower_shape(op: Op[ShapeOptions]) -> Function:
    sizes = np.asarray(op.inputs[0].shape, op.outputs[0].dtype)
    return lambda _x: (jnp.asarray(sizes),)


def _lower_rank(op: Op[NoOptions]) -> Function:
    rank = np.asarray(len(op.inputs[0].shape), op.outputs[0].dtype)
    return lambda _x: (jnp.asarray(rank),)


def _why_not_broadcast_to(op: Op[NoOptions]) -> str | None:
    x, y = op.inputs[0], op.outputs[0]
    fits = _broadcasts(x.shape, y.shape)
    return None if fits else f"{list(x.shape)} does not broadcast to {list(y.shape)}"


def _broadcasts(shape: Shape, to: Shape) -> bool:
    aligned = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(n in (1, m) for n, m in aligned)


def _lower_broadcast_to(op: Op[NoOptions]) -> Function:
    shape = op.outputs[0].shape
    return lambda x, _shape: (jnp.broadcast_to(x, shape),)


def _why_not_broadcast_args(op: Op[NoOptions]) -> str | None:
    a, b = op.inputs[:2]
    vectors = len(a.shape) == len(b.shape) == 1
    return None if vectors else "both shapes must be vectors"


def _lower_broadcast_args(op: Op[NoOptions]) -> Function:
    rank, dtype = op.outputs[0].shape[0], op.outputs[0].dtype
    leading = [np.ones(rank - spec.shape[0], dtype) for spec in op.inputs[:2]]

    def broadcast_args(a: jax.Array, b: jax.Array) -> tuple[jax.Array]:
        a, b = (jnp.concatenate(pair) for pair in zip(leading, (a, b), strict=True))
        return (jnp.where(a == 1, b, a),)

    return broadcast_args


def _why_not_fill(op: Op[NoOptions]) -> str | None:
    value = op.inputs[1]
    one = math.prod(value.shape) == 1
    return None if one else f"{value.name!r} must hold one value, has shape {list(value.shape)}"


def _lower_fill(op: Op[NoOptions]) -> Function:
    shape = op.outputs[0].shape
    return lambda _dims, value: (jnp.broadcast_to(value.reshape(()), shape),)


def _why_not_range(op: Op[NoOptions]) -> str | None:
    scalars = all(spec.shape == () for spec in op.inputs[:3])
    return None if scalars else "start, limit and delta must be scalars"


def _lower_range(op: Op[NoOptions]) -> Function:
    start, _limit, delta = (np.asarray(spec.const) for spec in op.inputs[:3])
    terms = np.full(op.outputs[0].shape, delta, op.outputs[0].dtype)
    terms[:1] = start
    # kernels/range.cc adds delta up and so rounds at every step
    values = np.add.accumulate(terms, dtype=terms.dtype)
    return lambda _start, _limit, _delta: (jnp.asarray(values),)


def _lower_gradient_args(op: Op[CustomOptions]) -> Function:
    a, b = (integers(spec) for spec in op.inputs[:2])
    rank = max(len(a), len(b))
    padded = [(1,) * (rank - len(shape)) + shape for shape in (a, b)]
    ones = [() if a == b else np.flatnonzero(np.equal(shape, 1)) for shape in padded]
    axes = [np.asarray(axis, spec.dtype) for axis, spec in zip(ones, op.outputs, strict=True)]
    return lambda _a, _b: tuple(jnp.asarray(axis) for axis in axes)


_TERM = Input(dtypes(np.int32, np.int64, np.float32), is_constant=True)
_SIZES = Input(is_moved=True, is_whole=True)
RULES = table(
    moving_rule("RESHAPE", 1, [MOVED], _lower_reshape, _why_not_reshape),
    moving_rule("SQUEEZE", 2, [MOVED], _lower_reshape, _why_not_reshape),
    moving_rule("EXPAND_DIMS", 1, [MOVED, ANY], _lower_reshape, _why_not_reshape),
    rule("SHAPE", 1, _why_not_shape, _lower_shape),
    rule("RANK", 1, _why_not_shape, _lower_rank),
    moving_rule("BROADCAST_TO", 4, [MOVED, ANY], _lower_broadcast_to, _why_not_broadcast_to),
    moving_rule("BROADCAST_ARGS", 1, [_SIZES] * 2, _lower_broadcast_args, _why_not_broadcast_args),
    moving_rule("FILL", 5, [ANY, MOVED], _lower_fill, _why_not_fill),
    moving_rule("RANGE", 2, [_TERM] * 3, _lower_range, _why_not_range),
    moving_rule("BroadcastGradientArgs", 1, [KNOWN, KNOWN], _lower_gradient_args),
)
