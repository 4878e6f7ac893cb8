"""Conversions of dtype. Sources: kernels/{cast,quantize,dequantize,fake_quant}.cc."""

from typing import Any

import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.cast.options import FakeQuantOptions
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.quant import affine
from jaxdelegate.quant.requantize import requantize
from jaxdelegate.reference.kernel import Array, Kernel, same_shape
from jaxdelegate.reference.pointwise import widen

_MOST_BITS = 30
_HALF = (np.float16, ml_dtypes.bfloat16)
_REQUANTIZED = {  # QUANTIZE from integers (kernels/quantize.cc)
    "int8": "int8 uint8 int16",
    "uint8": "int8 uint8 int16",
    "int16": "int8 int16 int32",
    "int32": "int8 int16",
}


def cast(_options: object, _inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """Scales are ignored."""
    dtype = outputs[0].dtype
    if x.dtype.kind == "c" and dtype.kind != "c":
        x = np.real(x)
    x = widen(x)
    with np.errstate(all="ignore"):
        if dtype.kind != "b" and _is_integer(dtype) and x.dtype.kind == "f":
            return (_float_to_integer(x, dtype),)
        if dtype in _HALF:
            x = x.astype(np.float32)  # every source rounds to float32 first
        return ((x != 0) if dtype.kind == "b" else x.astype(dtype),)


def _is_integer(dtype: np.dtype) -> bool:
    return dtype.kind in "iu" or dtype.name in ("int4", "uint4", "int2")


def _float_to_integer(x: Array, dtype: np.dtype) -> Array:
    """Toward zero, saturated; NaN becomes the largest (SafeCast in kernels/cast.cc)."""
    limits: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    low, high = int(limits.min), int(limits.max)
    fits = (x >= low) & (x < float(high + 1))
    whole = np.where(fits, np.trunc(x), 0).astype(np.uint64 if low == 0 else np.int64)
    outside = np.where(x < low, np.asarray(low, whole.dtype), np.asarray(high, whole.dtype))
    return np.where(fits, whole, outside).astype(dtype)


def dequantize(_options: object, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """From integers with a scale, or half precision."""
    spec = inputs[0]
    if not _is_integer(spec.dtype):
        return (x.astype(outputs[0].dtype),)
    if spec.quantization is None or not spec.is_quantized:
        raise ValueError(f"DEQUANTIZE: {spec.name!r} is {spec.dtype} without a scale")
    return (affine.dequantize(x, spec.quantization).astype(outputs[0].dtype),)


def quantize(_options: object, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """From reals, or from integers with another scale."""
    quantization, dtype = outputs[0].quantization, outputs[0].dtype
    if quantization is None or not outputs[0].is_quantized:
        raise ValueError(f"QUANTIZE: {outputs[0].name!r} has no scale")
    if not _is_integer(x.dtype):
        return (affine.quantize(x, quantization, dtype),)
    source = inputs[0].quantization
    if source is None or not inputs[0].is_quantized:
        raise ValueError(f"QUANTIZE: {inputs[0].name!r} is {x.dtype} without a scale")
    if dtype.name not in _REQUANTIZED.get(x.dtype.name, "").split():
        raise TypeError(f"QUANTIZE: no kernel from {x.dtype} to {dtype}")
    if x.dtype == dtype == np.int16 and (source.zero_point.any() or quantization.zero_point.any()):
        raise ValueError("QUANTIZE: a zero point is not 0 between int16 tensors")
    return (requantize(x, source, quantization, dtype),)


def fake_quant_shape(o: FakeQuantOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """LiteRT shifts an int32 by `num_bits`."""
    if not 1 <= o.num_bits <= _MOST_BITS:
        raise ValueError(f"num_bits is {o.num_bits}, not in [1, {_MOST_BITS}]")
    return same_shape(o, inputs)


def fake_quant(o: FakeQuantOptions, _inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """2**num_bits levels."""
    y = affine.fake_quantize(
        x.astype(np.float32), o.min, o.max, o.num_bits, narrow_range=o.narrow_range
    )
    return (y.astype(outputs[0].dtype),)


KERNELS = {
    "CAST": Kernel(cast, same_shape),
    "DEQUANTIZE": Kernel(dequantize, same_shape),
    "QUANTIZE": Kernel(quantize, same_shape),
    "FAKE_QUANT": Kernel(fake_quant, fake_quant_shape),
}
