"""Sums, products, scans, histograms, and reductions of sorted segments.

Sources: core/kernels/{bias_op,bincount_op,cumulative_logsumexp_op,reduction_ops*,scan_ops}.cc,
segment_reduction_ops*.cc.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.movement import integers, why_not_axis
from jaxdelegate.op_lowering.common.pointwise import COMPLEX
from jaxdelegate.op_lowering.common.signature import CONSTANT, CONSTANTS, FLOAT, INDEX, INT32, Input
from jaxdelegate.op_lowering.dtypes import FLOATS, INDICES
from jaxdelegate.op_lowering.flex.signature import rule
from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.rule import Function, Op, OpRule, table
from jaxdelegate.op_lowering.segment.rule import multiplied
from jaxdelegate.op_lowering.spec import Shape, TensorSpec

_Op = Op[FlexOptions]
_NUMBER = Input(FLOATS | INDICES)


# ---- BiasAddGrad


def _lower_bias_add_grad(op: _Op) -> Function:
    rank, dtype = len(op.inputs[0].shape), op.inputs[0].dtype
    channels = rank - 1 if op.options.data_format == "NHWC" else 1
    axes = tuple(i for i in range(rank) if i != channels)
    wide = op.context.precision.accumulator(dtype)
    return lambda dy: (jnp.sum(dy.astype(wide), axes, dtype=wide).astype(dtype),)


# ---- Mean, Prod, Sum: values, axes


def _reduction(name: str, function: Callable[..., jax.Array]) -> OpRule[FlexOptions]:
    def lower(op: _Op) -> Function:
        x, keep = op.inputs[0], op.options.keep_dims
        axes = tuple({axis % len(x.shape) for axis in integers(op.inputs[1])})
        wide = op.context.precision.accumulator(x.dtype)
        return lambda x, _axes: (
            function(jnp.asarray(x, wide), axes, keepdims=keep).astype(x.dtype),
        )

    return rule(name, [Input(FLOATS | COMPLEX), CONSTANTS], lower)


# ---- Cumprod, CumulativeLogsumexp: values, axis


def _why_not_axis(op: _Op) -> str | None:
    return why_not_axis(integers(op.inputs[1])[0], len(op.inputs[0].shape))


def _scan(
    name: str, values: Input, function: Callable[..., jax.Array], neutral: float
) -> OpRule[FlexOptions]:
    """`neutral` is the result before the first value, of an exclusive scan."""

    def lower(op: _Op) -> Function:
        x, o = op.inputs[0], op.options
        axis = integers(op.inputs[1])[0] % len(x.shape)
        wide = op.context.precision.accumulator(x.dtype)

        def scan(x: jax.Array, _axis: jax.Array) -> tuple[jax.Array]:
            y = function(jnp.asarray(x, wide), axis, reverse=o.reverse)
            if o.exclusive and y.shape[axis]:
                first = jnp.full_like(lax.slice_in_dim(y, 0, 1, axis=axis), neutral)
                start, end = int(o.reverse), y.shape[axis] - 1 + int(o.reverse)
                kept = lax.slice_in_dim(y, start, end, axis=axis)
                y = jnp.concatenate([kept, first] if o.reverse else [first, kept], axis)
            return (y.astype(x.dtype),)

        return scan

    return rule(name, [values, CONSTANT], lower, _why_not_axis)


# ---- Bincount, DenseBincount: values, size, weights (empty: ones)


def _why_not_weights(op: _Op) -> str | None:
    x, weights = op.inputs[0], op.inputs[2]
    fits = 0 in weights.shape or weights.shape == x.shape
    return None if fits else f"weights {list(weights.shape)} for values {list(x.shape)}"


def _bincount(op: _Op, rows: Shape, *, once: bool) -> Function:
    """A negative value is an error of TensorFlow's; here it does not count."""
    shape, dtype = op.outputs[0].shape, op.outputs[0].dtype
    places = np.indices((*rows, *op.inputs[0].shape[len(rows) :]))[: len(rows)]
    is_weighted = 0 not in op.inputs[2].shape and not once

    def bincount(x: jax.Array, _size: jax.Array, weights: jax.Array) -> tuple[jax.Array]:
        each = jnp.asarray(weights) if is_weighted else jnp.ones(x.shape, dtype)
        counts = jnp.zeros(shape, dtype).at[(*places, jnp.where(x < 0, shape[-1], x))]
        return (counts.set(each, mode="drop") if once else counts.add(each, mode="drop"),)

    return bincount


def _lower_bincount(op: _Op) -> Function:
    return _bincount(op, (), once=False)


def _lower_dense_bincount(op: _Op) -> Function:
    return _bincount(op, op.inputs[0].shape[:-1], once=op.options.binary_output)


# ---- Segment...: rows, segments
# ---- SparseSegment...: rows, indices of rows, segments, and their number


def _why_not_sparse_segment(op: _Op) -> str | None:
    x = op.inputs[0]
    return None if x.shape[0] else f"{x.name!r} {list(x.shape)} has no rows"


def _reduced(op: _Op, kind: str, segments: TensorSpec) -> Callable[[jax.Array], jax.Array]:
    """The rows of each segment; one without rows is 0, or 1 for products."""
    y, ids = op.outputs[0], np.array(integers(segments), int)
    first = {"Max": -np.inf, "Min": np.inf, "Prod": 1}.get(kind, 0)
    wide = op.context.precision.accumulator(y.dtype)
    counts = np.bincount(ids, minlength=y.shape[0]).reshape(-1, *[1] * (len(y.shape) - 1))
    divisors = {"Mean": np.maximum(counts, 1), "SqrtN": np.sqrt(np.maximum(counts, 1))}.get(kind)
    empty = np.asarray(kind == "Prod", wide)

    def reduce(rows: jax.Array) -> jax.Array:
        start, values = jnp.full(y.shape, first, wide), jnp.asarray(rows, wide)
        if kind == "Prod":
            joined = multiplied(values, jnp.asarray(ids), start)
        else:
            scatter = {"Max": start.at[ids].max, "Min": start.at[ids].min}
            joined = scatter.get(kind, start.at[ids].add)(values, indices_are_sorted=True)
        if divisors is not None:
            joined = joined / divisors.astype(wide)
        return jnp.where(counts > 0, joined, empty).astype(y.dtype)

    return reduce


def _segment(kind: str) -> OpRule[FlexOptions]:
    def lower(op: _Op) -> Function:
        reduce = _reduced(op, kind, op.inputs[1])
        return lambda x, _ids: (reduce(x),)

    return rule(f"Segment{kind}", [FLOAT, CONSTANTS], lower)


def _sparse_segment(kind: str, *count: Input) -> OpRule[FlexOptions]:
    def lower(op: _Op) -> Function:
        """An index outside is an error of TensorFlow's; here it is the nearest row."""
        reduce = _reduced(op, kind, op.inputs[2])
        return lambda x, indices, *_: (reduce(jnp.take(x, indices, axis=0, mode="clip")),)

    name = f"SparseSegment{kind}{'WithNumSegments' if count else ''}"
    return rule(name, [FLOAT, INDEX, CONSTANTS, *count], lower, _why_not_sparse_segment)


RULES = table(
    rule("BiasAddGrad", [_NUMBER], _lower_bias_add_grad),
    rule("Bincount", [INT32, CONSTANT, _NUMBER], _lower_bincount, _why_not_weights, results=[2]),
    rule(
        "DenseBincount",
        [INDEX, CONSTANT, _NUMBER],
        _lower_dense_bincount,
        _why_not_weights,
        results=[2],
    ),
    _reduction("Mean", jnp.mean),
    _reduction("Prod", jnp.prod),
    _reduction("Sum", jnp.sum),
    _scan("Cumprod", _NUMBER, lax.cumprod, 1),
    _scan("CumulativeLogsumexp", FLOAT, lax.cumlogsumexp, -np.inf),
    *map(_segment, ("Max", "Mean", "Min", "Prod")),
    *map(_sparse_segment, ("Mean", "SqrtN", "Sum")),
    *(_sparse_segment(kind, CONSTANTS) for kind in ("Mean", "SqrtN", "Sum")),
)
