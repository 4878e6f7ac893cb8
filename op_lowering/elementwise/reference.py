"""Elementwise arithmetic. Sources: the kernels of the same names and kernels/internal/reference.

Integers wrap around as C++ integers do.
"""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.elementwise import reference_quantized as quantized
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.records.record import Activated, NoOptions
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Folds, Kernel, Run, broadcast_shape, same_shape
from jaxdelegate.reference.pointwise import by_scale, elementwise, reject_quantized, widen

# ---- arithmetic with a fused activation


def _range(activation: Act, dtype: np.dtype) -> tuple[Any, Any]:
    """CalculateActivationRange (kernels/kernel_util.h): without RELU*, the whole finite range."""
    limits: Any = np.iinfo(dtype) if dtype.kind in "iu" else ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    low, high = {
        Act.RELU: (0, limits.max),
        Act.RELU_N1_TO_1: (-1, 1),
        Act.RELU6: (0, 6),
    }.get(activation, (limits.min, limits.max))
    return np.asarray(low).astype(dtype), np.asarray(high).astype(dtype)


def _clamp(y: Array, activation: Act, dtype: np.dtype) -> Array:
    if dtype.kind == "c":
        return y
    low, high = (limit.astype(y.dtype) for limit in _range(activation, dtype))
    y = np.where(y < low, low, y)  # a NaN stays
    return np.where(y > high, high, y)


def _activated(function: Callable[[Array, Array], Any]) -> Run:
    def run(o: Activated, inputs: Specs, outputs: Specs, x: Array, y: Array) -> tuple[Array]:
        reject_quantized(inputs)
        dtype = outputs[0].dtype
        with np.errstate(all="ignore"):
            z = function(widen(x), widen(y))
            return (_clamp(np.asarray(z), o.fused_activation_function, dtype).astype(dtype),)

    return run


def _divide(x: Array, y: Array) -> Any:
    if x.dtype.kind not in "iu":
        return x / y
    _reject_zero("DIV", y)
    floor = np.floor_divide(x, y)
    return np.where((x < 0) == (y < 0), floor, floor + (np.remainder(x, y) != 0))


def _reject_zero(name: str, divisor: Array) -> None:
    if not np.all(divisor):
        raise ZeroDivisionError(f"{name}: division by zero")


def _arithmetic(function: Callable[[Array, Array], Any], integer: Run) -> Kernel:
    return Kernel(by_scale(_activated(function), integer, "int8 uint8 int16"), broadcast_shape)


def add_n(_options: object, inputs: Specs, outputs: Specs, *terms: Array) -> tuple[Array]:
    """Sum tensors of one shape, each partial sum clamped (AddN, optimized_ops.h)."""
    reject_quantized(inputs)
    dtype, total = outputs[0].dtype, widen(terms[0])
    with np.errstate(all="ignore"):
        for term in terms[1:]:
            total = _clamp(np.asarray(total + widen(term)), Act.NONE, dtype)
    return (np.asarray(total).astype(dtype),)


# ---- other binary operators


def _floor_div(x: Array, y: Array) -> Any:
    # kernels/internal/reference/floor_div.h: the quotient in double
    _reject_zero("FLOOR_DIV", y)
    if x.dtype.kind in "iu":
        return np.floor_divide(x, y)
    return np.floor(x.astype(np.float64) / y.astype(np.float64))


def _floor_mod(x: Array, y: Array) -> Any:
    # kernels/internal/reference/floor_mod.h: the remainder takes the divisor's sign
    if x.dtype.kind in "iu":
        _reject_zero("FLOOR_MOD", y)
    truncated = np.fmod(x, y)
    return np.where((truncated != 0) & ((truncated < 0) != (y < 0)), truncated + y, truncated)


def _right_shift(x: Array, y: Array) -> Any:
    bits = 8 * x.dtype.itemsize
    return np.right_shift(x, np.clip(y, 0, bits - 1))


def _atan2(y: Array, x: Array) -> Any:
    if y.shape != x.shape:
        raise ValueError(f"ATAN2: shapes {y.shape} and {x.shape} differ")
    return np.arctan2(y, x)


# ---- POW


def _power(x: Array, y: Array) -> Any:
    if x.dtype.kind in "iu":
        if np.any(y < 0):
            raise ValueError("POW: a negative exponent for integers")
        return np.power(x, y)
    if x.shape != y.shape and y.size == 1:
        return _power_of_one_exponent(x, y)
    return np.float_power(x, y)  # np.power turns an exponent of 0.5 into sqrt, whose (-inf) is NaN


def _power_of_one_exponent(x: Array, y: Array) -> Any:
    """BroadcastPow4D (optimized_ops.h): a nearly whole exponent multiplies, clamping products."""
    exponent = float(y.reshape(()))
    whole = round(exponent) if abs(exponent) < 2**31 else 0
    if whole < 1 or abs(exponent - whole) >= 1e-5:
        return np.float_power(x, y)
    z = np.float_power(x, np.full(y.shape, whole))
    return z if whole == 1 else _clamp(z, Act.NONE, x.dtype)


# ---- unary operators


def _unary(function: Callable[[Array], Any], integer: Run) -> Kernel:
    return Kernel(by_scale(elementwise(function), integer, "int8 int16"), same_shape)


def zeros_like(_options: object, inputs: Specs, outputs: Specs, _x: Array | None) -> tuple[Array]:
    return (np.zeros(inputs[0].shape, outputs[0].dtype),)


# ---- BITCAST


def bitcast(_o: NoOptions, _inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """Read the bytes as another dtype; a wider element splits into a new last dimension."""
    shape = _bitcast_shape(x.shape, x.dtype, outputs[0].dtype)
    flat = np.frombuffer(np.ascontiguousarray(x).tobytes(), outputs[0].dtype)
    return (flat.reshape(shape),)


def bitcast_shape(
    _infer: object, _options: object, inputs: Specs, outputs: Specs
) -> tuple[Shape | None, ...]:
    """One axis more or fewer if the dtype has another width."""
    return (_bitcast_shape(inputs[0].shape, inputs[0].dtype, outputs[0].dtype),)


def _bitcast_shape(shape: Shape, source: np.dtype, target: np.dtype) -> Shape:
    if source.itemsize > target.itemsize:
        return (*shape, source.itemsize // target.itemsize)
    ratio = target.itemsize // source.itemsize
    if ratio > 1 and shape[-1:] != (ratio,):
        raise ValueError(f"BITCAST: {shape} {source} do not fill whole {target}")
    return shape[:-1] if ratio > 1 else shape


KERNELS = {
    "ADD": _arithmetic(np.add, quantized.add),
    "SUB": _arithmetic(np.subtract, quantized.sub),
    "MUL": _arithmetic(np.multiply, quantized.mul),
    "DIV": _arithmetic(_divide, quantized.div),
    "FLOOR_DIV": Kernel(elementwise(_floor_div), broadcast_shape),
    "FLOOR_MOD": Kernel(elementwise(_floor_mod), broadcast_shape),
    # not np.maximum: a NaN in x gives y
    "MAXIMUM": Kernel(elementwise(lambda x, y: np.where(x > y, x, y)), broadcast_shape),
    "MINIMUM": Kernel(elementwise(lambda x, y: np.where(x < y, x, y)), broadcast_shape),
    "POW": Kernel(elementwise(_power), broadcast_shape),
    "SQUARED_DIFFERENCE": Kernel(
        by_scale(
            elementwise(lambda x, y: (x - y) * (x - y)), quantized.squared_difference, "int8 int16"
        ),
        broadcast_shape,
    ),
    "ADD_N": Kernel(add_n, same_shape),
    "ATAN2": Kernel(elementwise(_atan2), same_shape),
    "BITWISE_XOR": Kernel(elementwise(np.bitwise_xor), broadcast_shape),
    "RIGHT_SHIFT": Kernel(elementwise(_right_shift), broadcast_shape),
    "ABS": _unary(np.abs, quantized.absolute),
    "NEG": Kernel(elementwise(np.negative), same_shape),
    "SIGN": Kernel(elementwise(np.sign), same_shape),
    "SQUARE": Kernel(elementwise(lambda x: x * x), same_shape),
    "SQRT": _unary(np.sqrt, quantized.sqrt),
    "RSQRT": _unary(lambda x: 1 / np.sqrt(x), quantized.rsqrt),
    "EXP": _unary(np.exp, quantized.exp),
    "LOG": _unary(np.log, quantized.log),
    "SIN": Kernel(elementwise(np.sin), same_shape),
    "COS": Kernel(elementwise(np.cos), same_shape),
    "FLOOR": Kernel(elementwise(np.floor), same_shape),
    "CEIL": Kernel(elementwise(np.ceil), same_shape),
    # halves to even: kernels/internal/reference/round.h
    "ROUND": Kernel(elementwise(np.rint), same_shape),
    "REAL": Kernel(elementwise(np.real), same_shape),
    "IMAG": Kernel(elementwise(np.imag), same_shape),
    "COMPLEX_ABS": Kernel(elementwise(np.abs), same_shape),
    "ZEROS_LIKE": Kernel(zeros_like, same_shape, Folds.SHAPES),
    "BITCAST": Kernel(bitcast, same_shape, inferred_shapes=bitcast_shape),
}
