"""StableHLO operators that move data, and the builtin DILATE.

RESHAPE, BROADCAST_IN_DIM, TRANSPOSE, CONCATENATE, SLICE, DYNAMIC_SLICE, DYNAMIC_UPDATE_SLICE, PAD,
IOTA. Semantics: the StableHLO specification; kernels/stablehlo_pad.cc and kernels/dilate.cc.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.derivatives import padded
from jaxdelegate.op_lowering.common.movement import (
    integers,
    why_not_indices,
    why_not_moved,
    why_not_present,
)
from jaxdelegate.op_lowering.common.pointwise import COMPLEX, NUMBERS, why_not_count
from jaxdelegate.op_lowering.records.record import NoOptions
from jaxdelegate.op_lowering.rule import (
    Function,
    Op,
    OpRule,
    first_reason,
    table,
    why_not_const,
    why_not_dtype,
)
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.op_lowering.stablehlo.options import (
    StablehloBroadcastInDimOptions,
    StablehloConcatenateOptions,
    StablehloDynamicSliceOptions,
    StablehloIotaOptions,
    StablehloPadOptions,
    StablehloSliceOptions,
    StablehloTransposeOptions,
)

Widths = Sequence[tuple[int, int, int]]  # low, high, between elements

# ---- attributes


def why_not_dims(name: str, dims: Sequence[int], rank: int, *, ordered: bool = False) -> str | None:
    distinct = len(set(dims)) == len(dims) and all(0 <= d < rank for d in dims)
    if distinct and not (ordered and list(dims) != sorted(dims)):
        return None
    order = "ascending " if ordered else ""
    return f"{name} {list(dims)} are not {order}dimensions of rank {rank}, each at most once"


def why_not_length(rank: int, **attributes: Sequence[int]) -> str | None:
    for name, values in attributes.items():
        if len(values) != rank:
            return f"{name} {list(values)} does not have one entry for each of {rank} dimensions"
    return None


def why_not_one_value(spec: TensorSpec) -> str | None:
    one = math.prod(spec.shape) == 1
    return None if one else f"{spec.name!r} {list(spec.shape)} must hold one value"


def padded_lengths(shape: Shape, widths: Widths) -> list[int]:
    """The sizes of a padded operand; negative where edges crop more than there is."""
    return [
        low + n + max(n - 1, 0) * gap + high
        for n, (low, high, gap) in zip(shape, widths, strict=True)
    ]


def signed(indices: jax.Array) -> jax.Array:
    """Indices as int32 or int64, whichever holds every value; larger uint64 values saturate."""
    if indices.dtype == np.uint64:
        indices = lax.min(indices, jnp.asarray(np.iinfo(np.int64).max, indices.dtype))
    wide = indices.dtype in (np.int64, np.uint64, np.uint32)
    return indices.astype(np.int64 if wide else np.int32)


# ---- RESHAPE, BROADCAST_IN_DIM, TRANSPOSE


def _why_not_reshape(op: Op[NoOptions]) -> str | None:
    x, y = op.inputs[0], op.outputs[0]
    fits = math.prod(x.shape) == math.prod(y.shape)
    return first_reason(
        why_not_count(op.inputs, 1),
        why_not_moved(op.context, x, y),
        None if fits else f"{list(x.shape)} and {list(y.shape)} hold different numbers of elements",
    )


def _lower_reshape(op: Op[NoOptions]) -> Function:
    shape = op.outputs[0].shape
    return lambda x: (lax.reshape(jnp.asarray(x), shape),)


def _why_not_broadcast(op: Op[StablehloBroadcastInDimOptions]) -> str | None:
    x, y, dims = op.inputs[0], op.outputs[0], op.options.broadcast_dimensions
    reason = first_reason(
        why_not_count(op.inputs, 1),
        why_not_moved(op.context, x, y),
        why_not_length(len(x.shape), broadcast_dimensions=dims),
        why_not_dims("broadcast_dimensions", dims, len(y.shape)),
    )
    if reason is not None:
        return reason
    stretched = all(n in (1, y.shape[d]) for n, d in zip(x.shape, dims, strict=True))
    given = f"{list(x.shape)} does not broadcast to {list(y.shape)} along {list(dims)}"
    return None if stretched else given


def _lower_broadcast(op: Op[StablehloBroadcastInDimOptions]) -> Function:
    dims, shape = op.options.broadcast_dimensions, op.outputs[0].shape
    order = sorted(range(len(dims)), key=lambda i: dims[i])  # lax requires ascending dimensions

    def broadcast_in_dim(x: jax.Array) -> tuple[jax.Array]:
        return (lax.broadcast_in_dim(lax.transpose(x, order), shape, sorted(dims)),)

    return broadcast_in_dim


def _why_not_transpose(op: Op[StablehloTransposeOptions]) -> str | None:
    rank, permutation = len(op.inputs[0].shape), op.options.permutation
    return first_reason(
        why_not_count(op.inputs, 1),
        why_not_moved(op.context, op.inputs[0], op.outputs[0]),
        why_not_length(rank, permutation=permutation),
        why_not_dims("permutation", permutation, rank),
    )


def _lower_transpose(op: Op[StablehloTransposeOptions]) -> Function:
    return lambda x: (lax.transpose(x, op.options.permutation),)


# ---- CONCATENATE


def _why_not_concatenate(op: Op[StablehloConcatenateOptions]) -> str | None:
    reason = why_not_present(*op.inputs)
    if reason is not None:
        return reason
    first, axis = op.inputs[0].shape, op.options.dimension
    return first_reason(
        why_not_moved(op.context, *op.inputs, op.outputs[0]),
        why_not_dims("dimension", (axis,), len(first)),
        *(_why_not_joined(first, spec.shape, axis) for spec in op.inputs[1:]),
    )


def _why_not_joined(first: Shape, other: Shape, axis: int) -> str | None:
    alike = len(first) == len(other) and all(
        n == m for i, (n, m) in enumerate(zip(first, other, strict=True)) if i != axis
    )
    return None if alike else f"{list(first)} and {list(other)} differ outside of dimension {axis}"


def _lower_concatenate(op: Op[StablehloConcatenateOptions]) -> Function:
    axis = op.options.dimension
    return lambda *parts: (lax.concatenate([jnp.asarray(p) for p in parts], axis),)


# ---- SLICE, DYNAMIC_SLICE, DYNAMIC_UPDATE_SLICE


def _why_not_slice(op: Op[StablehloSliceOptions]) -> str | None:
    x, o = op.inputs[0], op.options
    reason = first_reason(
        why_not_count(op.inputs, 1),
        why_not_moved(op.context, x, op.outputs[0]),
        why_not_length(
            len(x.shape),
            start_indices=o.start_indices,
            limit_indices=o.limit_indices,
            strides=o.strides,
        ),
    )
    if reason is not None:
        return reason
    bounds = zip(o.start_indices, o.limit_indices, o.strides, x.shape, strict=True)
    inside = all(0 <= start <= limit <= n and stride > 0 for start, limit, stride, n in bounds)
    return None if inside else f"{o} is not within {list(x.shape)}"


def _lower_slice(op: Op[StablehloSliceOptions]) -> Function:
    o = op.options
    return lambda x: (lax.slice(jnp.asarray(x), o.start_indices, o.limit_indices, o.strides),)


def _why_not_window(x: TensorSpec, sizes: Sequence[int], starts: Specs) -> str | None:
    reason = why_not_length(len(x.shape), sizes=sizes)
    if reason is not None:
        return reason
    fits = all(0 <= m <= n for m, n in zip(sizes, x.shape, strict=True))
    present = [spec for spec in starts if spec is not None]
    complete = len(starts) == len(present) == len(x.shape)
    return first_reason(
        None if fits else f"a slice of {list(sizes)} does not fit into {list(x.shape)}",
        None if complete else f"needs a start index for each dimension of {list(x.shape)}",
        why_not_indices(*present),
        *map(why_not_one_value, present),
    )


def _clamped(starts: Sequence[Any], shape: Shape, sizes: Sequence[int]) -> list[jax.Array]:
    """int64 scalars, clamped so that the whole slice is inside."""
    return [
        jnp.clip(signed(jnp.asarray(start).reshape(())).astype(np.int64), 0, n - m)
        for start, n, m in zip(starts, shape, sizes, strict=True)
    ]


def _why_not_dynamic_slice(op: Op[StablehloDynamicSliceOptions]) -> str | None:
    return first_reason(
        why_not_moved(op.context, op.inputs[0], op.outputs[0]),
        _why_not_window(op.inputs[0], op.options.slice_sizes, op.inputs[1:]),
    )


def _lower_dynamic_slice(op: Op[StablehloDynamicSliceOptions]) -> Function:
    sizes = op.options.slice_sizes

    def dynamic_slice(x: jax.Array, *starts: jax.Array) -> tuple[jax.Array]:
        if x.ndim == 0:
            return (x,)
        return (lax.dynamic_slice(x, _clamped(starts, x.shape, sizes), sizes),)

    return dynamic_slice


def _why_not_dynamic_update(op: Op[NoOptions]) -> str | None:
    x, update = op.inputs[:2]
    return first_reason(
        why_not_moved(op.context, x, update, op.outputs[0]),
        _why_not_window(x, update.shape, op.inputs[2:]),
    )


def _lower_dynamic_update(_op: Op[NoOptions]) -> Function:
    def dynamic_update_slice(
        x: jax.Array, update: jax.Array, *starts: jax.Array
    ) -> tuple[jax.Array]:
        x, update = jnp.asarray(x), jnp.asarray(update)
        if x.ndim == 0:
            return (update,)
        return (lax.dynamic_update_slice(x, update, _clamped(starts, x.shape, update.shape)),)

    return dynamic_update_slice


# ---- PAD, DILATE


def _why_not_pad(op: Op[StablehloPadOptions]) -> str | None:
    (x, fill), o = op.inputs[:2], op.options
    low, high, interior = o.edge_padding_low, o.edge_padding_high, o.interior_padding
    reason = first_reason(
        why_not_count(op.inputs, 2),
        why_not_moved(op.context, x, fill, op.outputs[0]),
        why_not_one_value(fill),
        why_not_length(
            len(x.shape), edge_padding_low=low, edge_padding_high=high, interior_padding=interior
        ),
    )
    if reason is not None:
        return reason
    if min(interior, default=0) < 0:
        return f"interior_padding {list(interior)} must not be negative"
    lengths = padded_lengths(x.shape, list(zip(low, high, interior, strict=True)))
    return f"padding leaves a length of {min(lengths)}" if min(lengths, default=0) < 0 else None


def _pad(widths: Widths) -> Function:
    """A negative edge crops."""

    def pad(x: jax.Array, fill: jax.Array) -> tuple[jax.Array]:
        if np.size(x) == 0:  # JAX cannot differentiate this padding
            size = [max(n, 0) for n in padded_lengths(x.shape, widths)]
            return (jnp.broadcast_to(jnp.asarray(fill).reshape(()), size),)
        return (padded(x, fill, widths),)

    return pad


def _lower_pad(op: Op[StablehloPadOptions]) -> Function:
    o = op.options
    edges = zip(o.edge_padding_low, o.edge_padding_high, o.interior_padding, strict=True)
    return _pad(list(edges))


def _why_not_dilate(op: Op[NoOptions]) -> str | None:
    x, dilations, fill = op.inputs[:3]
    reason = first_reason(
        why_not_count(op.inputs, 3),
        why_not_moved(op.context, x, fill, op.outputs[0]),
        why_not_one_value(fill),
        why_not_const(dilations),
        why_not_dtype(dilations, np.int32),
        None if dilations.shape == (len(x.shape),) else "needs one dilation for each dimension",
    )
    if reason is not None:
        return reason
    least = min(integers(dilations), default=1)
    return f"a dilation is {least}, not positive" if least < 1 else None


def _lower_dilate(op: Op[NoOptions]) -> Function:
    pad = _pad([(0, 0, d - 1) for d in integers(op.inputs[1])])
    return lambda x, _dilations, fill: pad(x, fill)


# ---- IOTA


def _why_not_iota(op: Op[StablehloIotaOptions]) -> str | None:
    if not op.outputs:
        return "has no output"
    return first_reason(
        why_not_count(op.inputs, 0),
        why_not_dtype(op.outputs[0], NUMBERS, COMPLEX),
        why_not_dims("iota_dimension", (op.options.iota_dimension,), len(op.outputs[0].shape)),
    )


def _lower_iota(op: Op[StablehloIotaOptions]) -> Function:
    y, axis = op.outputs[0], op.options.iota_dimension
    return lambda: (lax.broadcasted_iota(np.int64, y.shape, axis).astype(y.dtype),)


RULES = table(
    OpRule("STABLEHLO_RESHAPE", NoOptions, 1, _why_not_reshape, _lower_reshape),
    OpRule(
        "STABLEHLO_BROADCAST_IN_DIM",
        StablehloBroadcastInDimOptions,
        1,
        _why_not_broadcast,
        _lower_broadcast,
    ),
    OpRule(
        "STABLEHLO_TRANSPOSE", StablehloTransposeOptions, 1, _why_not_transpose, _lower_transpose
    ),
    OpRule(
        "STABLEHLO_CONCATENATE",
        StablehloConcatenateOptions,
        1,
        _why_not_concatenate,
        _lower_concatenate,
    ),
    OpRule("STABLEHLO_SLICE", StablehloSliceOptions, 1, _why_not_slice, _lower_slice),
    OpRule(
        "STABLEHLO_DYNAMIC_SLICE",
        StablehloDynamicSliceOptions,
        1,
        _why_not_dynamic_slice,
        _lower_dynamic_slice,
    ),
    OpRule(
        "STABLEHLO_DYNAMIC_UPDATE_SLICE",
        NoOptions,
        1,
        _why_not_dynamic_update,
        _lower_dynamic_update,
        arity=2,
    ),
    OpRule("STABLEHLO_PAD", StablehloPadOptions, 1, _why_not_pad, _lower_pad, arity=2),
    OpRule("DILATE", NoOptions, 1, _why_not_dilate, _lower_dilate, arity=3),
    OpRule("STABLEHLO_IOTA", StablehloIotaOptions, 1, _why_not_iota, _lower_iota, arity=0),
)
