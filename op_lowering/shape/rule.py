"""Shapes: RESHAPE, SQUEEZE, EXPAND_DIMS, SHAPE, RANK, BROADCAST_TO, FILL, RANGE and their kin.

The shape of a result is its output's: shape propagation has read the constant that decides it.
Where that constant is missing the output is dynamic, and no rule here is asked.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.common.movement import (
    MOVABLE,
    integers,
    why_not_indices,
    why_not_moved,
)
from jaxdelegate.op_lowering.records.custom import CustomOptions
from jaxdelegate.op_lowering.records.record import NoOptions, Options
from jaxdelegate.op_lowering.rule import (
    Function,
    LoweringContext,
    OpRule,
    first_reason,
    table,
    why_not_const,
    why_not_dtype,
)
from jaxdelegate.op_lowering.shape.options import (
    BroadcastToOptions,
    ExpandDimsOptions,
    FillOptions,
    RangeOptions,
    RankOptions,
    ReshapeOptions,
    ShapeOptions,
    SqueezeOptions,
)
from jaxdelegate.op_lowering.spec import Shape, Specs


def _why_not_reshape(
    context: LoweringContext, _o: Options, inputs: Specs, outputs: Specs
) -> str | None:
    x, y = inputs[0], outputs[0]
    same = math.prod(x.shape) == math.prod(y.shape)
    return first_reason(
        why_not_moved(context, x, y),
        None if same else f"{list(x.shape)} and {list(y.shape)} hold different numbers of values",
    )


def _lower_reshape(
    _context: LoweringContext, _o: Options, _inputs: Specs, outputs: Specs
) -> Function:
    shape = outputs[0].shape

    def reshape(x: jax.Array, *_shape_or_axis: jax.Array) -> tuple[jax.Array]:
        return (x.reshape(shape),)

    return reshape


RESHAPE = OpRule("RESHAPE", ReshapeOptions, 1, _why_not_reshape, _lower_reshape)
SQUEEZE = OpRule("SQUEEZE", SqueezeOptions, 2, _why_not_reshape, _lower_reshape)
EXPAND_DIMS = OpRule("EXPAND_DIMS", ExpandDimsOptions, 1, _why_not_reshape, _lower_reshape, arity=2)


def _why_not_shape(
    _context: LoweringContext, _o: Options, inputs: Specs, outputs: Specs
) -> str | None:
    x = inputs[0]
    held = x.dtype in MOVABLE
    return first_reason(
        None if held else f"{x.name!r} is {x.dtype}, which XLA does not hold",
        why_not_dtype(outputs[0], np.int32, np.int64),
    )


def _lower_shape(
    _context: LoweringContext, _o: ShapeOptions, inputs: Specs, outputs: Specs
) -> Function:
    sizes = np.asarray(inputs[0].shape, outputs[0].dtype)
    return lambda _x: (jnp.asarray(sizes),)


def _lower_rank(
    _context: LoweringContext, _o: RankOptions, inputs: Specs, outputs: Specs
) -> Function:
    rank = np.asarray(len(inputs[0].shape), outputs[0].dtype)
    return lambda _x: (jnp.asarray(rank),)


SHAPE = OpRule("SHAPE", ShapeOptions, 1, _why_not_shape, _lower_shape)
RANK = OpRule("RANK", RankOptions, 1, _why_not_shape, _lower_rank)


def _why_not_broadcast_to(
    context: LoweringContext, _o: BroadcastToOptions, inputs: Specs, outputs: Specs
) -> str | None:
    x, y = inputs[0], outputs[0]
    fits = _broadcasts(x.shape, y.shape)
    return first_reason(
        why_not_moved(context, x, y),
        None if fits else f"{list(x.shape)} does not broadcast to {list(y.shape)}",
    )


def _broadcasts(shape: Shape, to: Shape) -> bool:
    aligned = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(n in (1, m) for n, m in aligned)


def _lower_broadcast_to(
    _context: LoweringContext, _o: BroadcastToOptions, _inputs: Specs, outputs: Specs
) -> Function:
    shape = outputs[0].shape

    def broadcast_to(x: jax.Array, _shape: jax.Array) -> tuple[jax.Array]:
        return (jnp.broadcast_to(x, shape),)

    return broadcast_to


BROADCAST_TO = OpRule(
    "BROADCAST_TO", BroadcastToOptions, 4, _why_not_broadcast_to, _lower_broadcast_to, arity=2
)


def _why_not_broadcast_args(
    context: LoweringContext, _o: NoOptions, inputs: Specs, outputs: Specs
) -> str | None:
    a, b = inputs[:2]
    vectors = len(a.shape) == len(b.shape) == 1
    return first_reason(
        why_not_moved(context, a, b, outputs[0]),
        why_not_indices(a, b),
        None if vectors else "both shapes must be vectors",
    )


def _lower_broadcast_args(
    _context: LoweringContext, _o: NoOptions, inputs: Specs, outputs: Specs
) -> Function:
    rank, dtype = outputs[0].shape[0], outputs[0].dtype
    leading = [np.ones(rank - spec.shape[0], dtype) for spec in inputs[:2]]

    def broadcast_args(a: jax.Array, b: jax.Array) -> tuple[jax.Array]:
        a, b = (jnp.concatenate(pair) for pair in zip(leading, (a, b), strict=True))
        return (jnp.where(a == 1, b, a),)

    return broadcast_args


BROADCAST_ARGS = OpRule(
    "BROADCAST_ARGS", NoOptions, 1, _why_not_broadcast_args, _lower_broadcast_args, arity=2
)


def _why_not_fill(
    context: LoweringContext, _o: FillOptions, inputs: Specs, outputs: Specs
) -> str | None:
    value = inputs[1]
    one = math.prod(value.shape) == 1
    return first_reason(
        why_not_moved(context, value, outputs[0]),
        None if one else f"{value.name!r} must hold one value, has shape {list(value.shape)}",
    )


def _lower_fill(
    _context: LoweringContext, _o: FillOptions, _inputs: Specs, outputs: Specs
) -> Function:
    shape = outputs[0].shape

    def fill(_dims: jax.Array, value: jax.Array) -> tuple[jax.Array]:
        return (jnp.broadcast_to(value.reshape(()), shape),)

    return fill


FILL = OpRule("FILL", FillOptions, 5, _why_not_fill, _lower_fill, arity=2)


def _why_not_range(
    _context: LoweringContext, _o: RangeOptions, inputs: Specs, _outputs: Specs
) -> str | None:
    scalars = all(spec.shape == () for spec in inputs[:3])
    return first_reason(
        why_not_const(*inputs[:3]),
        *(why_not_dtype(spec, np.int32, np.int64, np.float32) for spec in inputs[:3]),
        None if scalars else "start, limit and delta must be scalars",
    )


def _lower_range(
    _context: LoweringContext, _o: RangeOptions, inputs: Specs, outputs: Specs
) -> Function:
    start, _limit, delta = (np.asarray(spec.const) for spec in inputs[:3])
    terms = np.full(outputs[0].shape, delta, outputs[0].dtype)
    terms[:1] = start
    # kernels/range.cc adds delta up and so rounds at every step
    values = np.add.accumulate(terms, dtype=terms.dtype)
    return lambda _start, _limit, _delta: (jnp.asarray(values),)


RANGE = OpRule("RANGE", RangeOptions, 2, _why_not_range, _lower_range, arity=3)


def _why_not_gradient_args(
    _context: LoweringContext, _o: CustomOptions, inputs: Specs, _outputs: Specs
) -> str | None:
    return first_reason(why_not_const(*inputs[:2]), why_not_indices(*inputs[:2]))


def _lower_gradient_args(
    _context: LoweringContext, _o: CustomOptions, inputs: Specs, outputs: Specs
) -> Function:
    a, b = (integers(spec) for spec in inputs[:2])
    rank = max(len(a), len(b))
    padded = [(1,) * (rank - len(shape)) + shape for shape in (a, b)]
    ones = [() if a == b else np.flatnonzero(np.equal(shape, 1)) for shape in padded]
    axes = [np.asarray(axis, spec.dtype) for axis, spec in zip(ones, outputs, strict=True)]
    return lambda _a, _b: tuple(jnp.asarray(axis) for axis in axes)


BROADCAST_GRADIENT_ARGS = OpRule(
    "BroadcastGradientArgs",
    CustomOptions,
    1,
    _why_not_gradient_args,
    _lower_gradient_args,
    arity=2,
)

RULES = table(
    RESHAPE,
    SQUEEZE,
    EXPAND_DIMS,
    SHAPE,
    RANK,
    BROADCAST_TO,
    BROADCAST_ARGS,
    FILL,
    RANGE,
    BROADCAST_GRADIENT_ARGS,
)
