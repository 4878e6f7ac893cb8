"""Integer MEAN, SUM and REDUCE_PROD, by the sources that quantized.py names."""

import math

import numpy as np

from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.affine import round_half_away
from jaxdelegate.quant.fixed_point import multiply_by_quantized_multiplier_64, wrap
from jaxdelegate.quant.multiplier import quantize_multiplier
from jaxdelegate.quant.params import integer_range, tensor_scale, tensor_zero_point
from jaxdelegate.quant.requantize import requantize_accumulator, rescale_multiplier
from jaxdelegate.reference.kernel import Array
from jaxdelegate.reference.quantization import quantization_of, require_symmetric

_INT32 = np.dtype(np.int32)
_SUMMED, _MULTIPLIED = (np.int8, np.uint8, np.int16), (np.int8, np.int16)
_Axes = tuple[int, ...]


def _count(x: Array, axes: _Axes) -> int:
    return math.prod(x.shape[axis] for axis in axes)


def _reduced(x: Array, axes: _Axes) -> tuple[int, ...]:
    return tuple(n for axis, n in enumerate(x.shape) if axis not in axes)


def _scaled_sum(
    x_spec: TensorSpec, y_spec: TensorSpec, x: Array, axes: _Axes, multiplier: int, shift: int
) -> Array:
    source, target = (quantization_of("SUM", s, *_SUMMED) for s in (x_spec, y_spec))
    total = x.sum(axis=axes, dtype=np.int64) - tensor_zero_point(source) * _count(x, axes)
    bounds = integer_range(y_spec.dtype)
    return requantize_accumulator(
        wrap(total, _INT32), multiplier, shift, tensor_zero_point(target), bounds, y_spec.dtype
    )


def _multiplier(operator: str, x: TensorSpec, y: TensorSpec) -> tuple[int, int]:
    require_symmetric(operator, x, y)
    source = quantization_of(operator, x, *_SUMMED)
    return rescale_multiplier(source, quantization_of(operator, y, x.dtype))


def reduce_sum(x_spec: TensorSpec, y_spec: TensorSpec, x: Array, axes: _Axes) -> Array:
    """The sum of differences from the zero point, without the axes; 0 for an empty tensor."""
    multiplier, shift = _multiplier("SUM", x_spec, y_spec)
    if x.size == 0:
        return np.zeros(_reduced(x, axes), y_spec.dtype)
    if x.dtype != np.uint8:
        return _float_sum(x_spec, y_spec, x, axes)
    return _scaled_sum(x_spec, y_spec, x, axes, multiplier, shift)


@np.errstate(all="ignore")
def _float_sum(x_spec: TensorSpec, y_spec: TensorSpec, x: Array, axes: _Axes) -> Array:
    source, target = (quantization_of("SUM", s, *_SUMMED) for s in (x_spec, y_spec))
    scale = np.float32(tensor_scale(source)) / np.float32(tensor_scale(target))
    bias = np.float32(-tensor_zero_point(source)) * scale * np.float32(_count(x, axes))
    total = wrap(x.sum(axis=axes, dtype=np.int64), _INT32).astype(np.float32)
    y = round_half_away(total * scale + bias).astype(np.float64) + tensor_zero_point(target)
    low, high = integer_range(y_spec.dtype)
    return np.asarray(np.clip(y, low, high), y_spec.dtype)


def mean(x_spec: TensorSpec, y_spec: TensorSpec, x: Array, axes: _Axes) -> Array:
    """The multiplier includes the division by the count; stored 0 for an empty tensor."""
    multiplier, shift = _multiplier("MEAN", x_spec, y_spec)
    if x.size == 0:
        return np.zeros(_reduced(x, axes), y_spec.dtype)
    count = _count(x, axes)
    up = min(int(math.log2(count)), 32, 31 + shift)
    return _scaled_sum(x_spec, y_spec, x, axes, (multiplier << up) // count, shift - up)


def reduce_prod(x_spec: TensorSpec, y_spec: TensorSpec, x: Array, axes: _Axes) -> Array:
    """The product in row-major order; every factor is rescaled by its part of the output's scale.

    An empty tensor gives stored 0; the kernel does not write the output.
    """
    require_symmetric("REDUCE_PROD", x_spec, y_spec)
    source = quantization_of("REDUCE_PROD", x_spec, *_MULTIPLIED)
    target = quantization_of("REDUCE_PROD", y_spec, x_spec.dtype)
    if x.size == 0:
        return np.zeros(_reduced(x, axes), y_spec.dtype)
    count = _count(x, axes)
    part = tensor_scale(source) / tensor_scale(target) ** (1.0 / count)
    multiplier, shift = quantize_multiplier(part)
    last = tuple(range(-len(axes), 0))
    factors = np.moveaxis(x, axes, last).reshape(*_reduced(x, axes), count)
    factors = factors.astype(np.int64) - tensor_zero_point(source)
    product = factors[..., 0]
    for i in range(1, count):
        product = multiply_by_quantized_multiplier_64(product * factors[..., i], multiplier, shift)
        product = product.astype(np.int64)
    bounds = integer_range(y_spec.dtype)
    return requantize_accumulator(
        product, multiplier, shift, tensor_zero_point(target), bounds, y_spec.dtype
    )
