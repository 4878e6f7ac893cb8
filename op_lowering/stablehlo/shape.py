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

from jaxdelegate.op_lowering.common import movement
from jaxdelegate.op_lowering.common.derivatives import padded
from jaxdelegate.op_lowering.common.pointwise import COMPLEX, NUMBERS
from jaxdelegate.op_lowering.common.signature import ANY, CONSTANTS32, MOVED, typed_rule
from jaxdelegate.op_lowering.records.record import NoOptions, Options
from jaxdelegate.op_lowering.rule import Function, Op, WhyNot, first_reason, table
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.op_lowering.stablehlo import options


def why_not_one_value(spec: TensorSpec) -> str | None:
    one = math.prod(spec.shape) == 1
    return None if one else f"{spec.name!r} {list(spec.shape)} must hold one value"


def signed(indices: jax.Array) -> jax.Array:
    """Indices as int32 or int64, whichever holds every value; larger uint64 values saturate."""
    if indices.dtype == np.uint64:
        indices = lax.min(indices, jnp.asarray(np.iinfo(np.int64).max, indices.dtype))
    wide = indices.dtype in (np.int64, np.uint64, np.uint32)
    return indices.astype(np.int64 if wide else np.int32)


# ---- RESHAPE, BROADCAST_IN_DIM, TRANSPOSE


def _lower_reshape(op: Op[NoOptions]) -> Function:
    shape = op.outputs[0].shape
    return lambda x: (lax.reshape(jnp.asarray(x), shape),)


def _lower_broadcast(op: Op[options.StablehloBroadcastInDimOptions]) -> Function:
    dims, shape = op.options.broadcast_dimensions, op.outputs[0].shape
    order = sorted(range(len(dims)), key=lambda i: dims[i])  # lax requires ascending dimensions
    return lambda x: (lax.broadcast_in_dim(lax.transpose(x, order), shape, sorted(dims)),)


def _lower_transpose(op: Op[options.StablehloTransposeOptions]) -> Function:
    return lambda x: (lax.transpose(x, op.options.permutation),)


# ---- CONCATENATE


def _why_not_concatenate(op: Op[options.StablehloConcatenateOptions]) -> str | None:
    return movement.why_not_present(*op.inputs) or movement.why_not_moved(
        op.context, *op.inputs, op.outputs[0]
    )


def _lower_concatenate(op: Op[options.StablehloConcatenateOptions]) -> Function:
    axis = op.options.dimension
    return lambda *parts: (lax.concatenate([jnp.asarray(p) for p in parts], axis),)


# ---- SLICE, DYNAMIC_SLICE, DYNAMIC_UPDATE_SLICE


def _lower_slice(op: Op[options.StablehloSliceOptions]) -> Function:
    o = op.options
    return lambda x: (lax.slice(jnp.asarray(x), o.start_indices, o.limit_indices, o.strides),)


def _why_not_starts(starts: Specs) -> str | None:
    return movement.why_not_present(*starts) or first_reason(
        movement.why_not_indices(*starts), *map(why_not_one_value, starts)
    )


def _clamped(starts: Sequence[Any], shape: Shape, sizes: Sequence[int]) -> list[jax.Array]:
    """int64 scalars, clamped so that the whole slice is inside."""
    return [
        jnp.clip(signed(jnp.asarray(start).reshape(())).astype(np.int64), 0, n - m)
        for start, n, m in zip(starts, shape, sizes, strict=True)
    ]


def _why_not_dynamic_slice(op: Op[options.StablehloDynamicSliceOptions]) -> str | None:
    return _why_not_starts(op.inputs[1:])


def _lower_dynamic_slice(op: Op[options.StablehloDynamicSliceOptions]) -> Function:
    sizes = op.options.slice_sizes

    def dynamic_slice(x: jax.Array, *starts: jax.Array) -> tuple[jax.Array]:
        if x.ndim == 0:
            return (x,)
        return (lax.dynamic_slice(x, _clamped(starts, x.shape, sizes), sizes),)

    return dynamic_slice


def _why_not_dynamic_update(op: Op[NoOptions]) -> str | None:
    return _why_not_starts(op.inputs[2:])


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


def _fills(position: int) -> WhyNot[Options]:
    """The `why_not` of an operator that puts the value of this input around and between others."""
    return lambda op: why_not_one_value(op.inputs[position])


def _pad(widths: Sequence[tuple[int, int, int]], shape: Shape) -> Function:
    """Widths are those before, after and between elements; a negative edge crops."""

    def pad(x: jax.Array, fill: jax.Array) -> tuple[jax.Array]:
        if np.size(x) == 0:  # JAX cannot differentiate this padding
            return (jnp.broadcast_to(jnp.asarray(fill).reshape(()), shape),)
        return (padded(x, fill, widths),)

    return pad


def _lower_pad(op: Op[options.StablehloPadOptions]) -> Function:
    o = op.options
    edges = zip(o.edge_padding_low, o.edge_padding_high, o.interior_padding, strict=True)
    return _pad(list(edges), op.outputs[0].shape)


def _lower_dilate(op: Op[NoOptions]) -> Function:
    pad = _pad([(0, 0, d - 1) for d in movement.integers(op.inputs[1])], op.outputs[0].shape)
    return lambda x, _dilations, fill: pad(x, fill)


# ---- IOTA


def _lower_iota(op: Op[options.StablehloIotaOptions]) -> Function:
    y, axis = op.outputs[0], op.options.iota_dimension
    return lambda: (lax.broadcasted_iota(np.int64, y.shape, axis).astype(y.dtype),)


RULES = table(
    typed_rule("STABLEHLO_RESHAPE", [MOVED], _lower_reshape),
    typed_rule("STABLEHLO_BROADCAST_IN_DIM", [MOVED], _lower_broadcast),
    typed_rule("STABLEHLO_TRANSPOSE", [MOVED], _lower_transpose),
    typed_rule("STABLEHLO_CONCATENATE", [ANY], _lower_concatenate, _why_not_concatenate),
    typed_rule("STABLEHLO_SLICE", [MOVED], _lower_slice),
    typed_rule("STABLEHLO_DYNAMIC_SLICE", [MOVED], _lower_dynamic_slice, _why_not_dynamic_slice),
    typed_rule(
        "STABLEHLO_DYNAMIC_UPDATE_SLICE",
        [MOVED] * 2,
        _lower_dynamic_update,
        _why_not_dynamic_update,
    ),
    typed_rule("STABLEHLO_PAD", [MOVED, MOVED], _lower_pad, _fills(1)),
    typed_rule("DILATE", [MOVED, CONSTANTS32, MOVED], _lower_dilate, _fills(2)),
    typed_rule("STABLEHLO_IOTA", [], _lower_iota, results=[NUMBERS | COMPLEX]),
)
