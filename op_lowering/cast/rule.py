"""Conversions of dtype. Sources: kernels/{cast,quantize,dequantize,fake_quant}.cc."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.cast.options import CastOptions, FakeQuantOptions
from jaxdelegate.op_lowering.common import quantization
from jaxdelegate.op_lowering.common.derivatives import straight_through, underivable
from jaxdelegate.op_lowering.common.pointwise import (
    BOOL,
    BOOLS,
    COMPLEX,
    INT8,
    INT16,
    INTEGERS,
    NUMBERS,
    PACKED,
    UINT8,
    Dtypes,
    why_not_count,
    why_not_stored,
)
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.records.record import NoOptions
from jaxdelegate.op_lowering.rule import (
    Function,
    LoweringContext,
    Op,
    first_reason,
    rule,
    table,
    why_not_dtype,
)
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant import jax_affine
from jaxdelegate.quant.affine import nudged_range, why_not_blocks
from jaxdelegate.quant.jax_requantize import requantize
from jaxdelegate.quant.params import integer_range
from jaxdelegate.quant.requantize import rescale_multiplier

_INT32 = np.dtype(np.int32)
_HALF: Dtypes = frozenset(np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16))
_FLOAT8: Dtypes = frozenset(np.dtype(t) for t in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))
_NARROW: Dtypes = PACKED | frozenset(
    np.dtype(t) for t in (np.int8, np.uint8, np.int16, np.uint16)
)  # results of QUANTIZE from floats
_DEQUANTIZED: Dtypes = _NARROW | {_INT32}  # LiteRT's kernel does not take int32 and uint16
_CASTS: Dtypes = NUMBERS | COMPLEX | BOOLS | PACKED
_REQUANTIZED = {  # QUANTIZE from integers (kernels/quantize.cc)
    INT8: (INT8, UINT8, INT16),
    UINT8: (INT8, UINT8, INT16),
    INT16: (INT8, INT16, _INT32),
    _INT32: (INT8, INT16),
}


# ---- CAST


def _why_not_cast(op: Op[CastOptions]) -> str | None:
    """Quantized tensors are accepted: the kernel converts the stored integers."""
    x, y = op.inputs[0], op.outputs[0]
    unpaired = x.dtype != y.dtype and (
        (x.dtype in PACKED and y.dtype not in FLOATS)
        or (y.dtype in PACKED and x.dtype not in FLOATS)
    )
    return first_reason(
        why_not_count(op.inputs, 1),
        why_not_stored(x, _CASTS),
        why_not_stored(y, _CASTS),
        f"{x.dtype} is not cast to {y.dtype}: packed integers pair with floats only"
        if unpaired
        else None,
    )


def _lower_cast(op: Op[CastOptions]) -> Function:
    dtype = op.outputs[0].dtype
    return lambda x: (_cast(jnp.asarray(x), dtype),)


def _cast(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """static_cast, but float -> integer saturates (NaN to the largest); complex: the real part."""
    if x.dtype in COMPLEX and dtype not in COMPLEX:
        x = jnp.real(x)
    if dtype == BOOL:
        return x.astype(bool)  # True unless zero, also for NaN
    if x.dtype in FLOATS and dtype in INTEGERS | PACKED:
        return _saturate(x.astype(np.float32) if x.dtype in _HALF else x, dtype)
    if dtype in _HALF:
        x = x.astype(np.float32)  # the kernels round twice
    return x.astype(dtype)


def _saturate(x: jax.Array, dtype: np.dtype) -> jax.Array:
    low, high = integer_range(dtype)
    y = x.astype(np.int8 if dtype in PACKED else dtype)
    y = jnp.where(x < low, jnp.asarray(low, y.dtype), y)
    # high + 1, unlike high, is a float; a NaN is not below it
    y = jnp.where(x < float(high + 1), y, jnp.asarray(high, y.dtype))
    return y.astype(dtype)


# ---- DEQUANTIZE, QUANTIZE


def _why_not_scale(context: LoweringContext, spec: TensorSpec, dtypes: Dtypes) -> str | None:
    if spec.quantization is None or not spec.is_quantized:
        return f"{spec.name!r} is {spec.dtype} without a scale"
    blocks = why_not_blocks(spec.quantization, spec.shape)
    if blocks is not None:
        return f"{spec.name!r} is quantized in blocks: {blocks}"
    return first_reason(
        None if context.enable_quant else "it is quantized, and the option enable_quant is off",
        why_not_stored(spec, dtypes),
        quantization.why_not_scales(spec),
    )


def _why_not_dequantize(op: Op[NoOptions]) -> str | None:
    x = op.inputs[0]
    return first_reason(
        why_not_count(op.inputs, 1),
        why_not_dtype(op.outputs[0], FLOATS),
        None if x.dtype in _HALF | _FLOAT8 else _why_not_scale(op.context, x, _DEQUANTIZED),
    )


def _lower_dequantize(op: Op[NoOptions]) -> Function:
    spec, dtype = op.inputs[0], op.outputs[0].dtype

    def dequantize(x: jax.Array) -> tuple[jax.Array]:
        if spec.dtype in _HALF | _FLOAT8 or spec.quantization is None:
            return (jnp.asarray(x, dtype),)
        return (jax_affine.dequantize(jnp.asarray(x), spec.quantization).astype(dtype),)

    return dequantize


def _why_not_quantize(op: Op[NoOptions]) -> str | None:
    x, y = op.inputs[0], op.outputs[0]
    if x.dtype in INTEGERS | PACKED:
        return first_reason(why_not_count(op.inputs, 1), _why_not_requantize(x, y))
    return first_reason(
        why_not_count(op.inputs, 1),
        why_not_dtype(x, FLOATS),
        _why_not_scale(op.context, y, _NARROW),
        None if y.blocks is None else f"{y.name!r} is quantized in blocks, which no kernel writes",
    )


def _why_not_requantize(x: TensorSpec, y: TensorSpec) -> str | None:
    if y.dtype not in _REQUANTIZED.get(x.dtype, ()):
        return f"LiteRT has no kernel that requantizes {x.dtype} to {y.dtype}"
    reason = quantization.why_not_one_scale(x) or quantization.why_not_one_scale(y)
    if reason is None and x.dtype == y.dtype:
        reason = quantization.why_not_symmetric(x) or quantization.why_not_symmetric(y)
    return reason or quantization.why_not_raised(
        lambda: rescale_multiplier(quantization.quantization_of(x), quantization.quantization_of(y))
    )


def _lower_quantize(op: Op[NoOptions]) -> Function:
    x, y = op.inputs[0], op.outputs[0]
    target, dtype = quantization.quantization_of(y), y.dtype
    if x.dtype not in INTEGERS:
        quantize = underivable(
            lambda reals: jax_affine.quantize(reals, target, dtype),
            f"QUANTIZE makes {y.name!r} {dtype}",
        )
        return lambda reals: (quantize(jnp.asarray(reals)),)
    source = quantization.quantization_of(x)
    return lambda q: (requantize(jnp.asarray(q), source, target, dtype),)


# ---- FAKE_QUANT


def _why_not_fake_quant(op: Op[FakeQuantOptions]) -> str | None:
    """narrow_range is accepted, though LiteRT's kernel refuses it: its meaning is TensorFlow's."""
    bits = op.options.num_bits
    return first_reason(
        why_not_count(op.inputs, 1),
        why_not_dtype(op.inputs[0], FLOATS),
        why_not_dtype(op.outputs[0], FLOATS),
        None if 1 <= bits <= 16 else f"num_bits is {bits}, not in [1, 16]",
    )


def _lower_fake_quant(op: Op[FakeQuantOptions]) -> Function:
    o, dtype = op.options, op.outputs[0].dtype
    low, high, _ = nudged_range(o.min, o.max, o.num_bits, narrow_range=o.narrow_range)

    def on_levels(x: jax.Array) -> jax.Array:
        return jax_affine.fake_quantize(x, o.min, o.max, o.num_bits, narrow_range=o.narrow_range)

    derived = straight_through(on_levels, float(low), float(high))
    return lambda x: (derived(jnp.asarray(x, np.float32)).astype(dtype),)


DEQUANTIZE = rule(
    "DEQUANTIZE", 9, _why_not_dequantize, _lower_dequantize, is_identity_in_float_view=True
)

RULES = table(
    rule("CAST", 9, _why_not_cast, _lower_cast),
    DEQUANTIZE,
    rule("QUANTIZE", 6, _why_not_quantize, _lower_quantize, is_identity_in_float_view=True),
    rule("FAKE_QUANT", 2, _why_not_fake_quant, _lower_fake_quant),
)
