"""Integer kernels of activation functions: kernels/activations.cc and the headers named below."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.activation.options import GeluOptions, LeakyReluOptions
from jaxdelegate.op_lowering.common.pointwise import (
    INT8,
    INT16,
    UINT8,
    Build,
    Elementwise,
    IntegerKernel,
)
from jaxdelegate.op_lowering.common.quantization import quantization_of, scale_of, zero_point_of
from jaxdelegate.op_lowering.elementwise.quantized import alike, steps_of, stored, table_lookup
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.rule import Op
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant import jax_fixed_point as fixed
from jaxdelegate.quant import lookup
from jaxdelegate.quant.jax_fixed_point import saturating_rounding_doubling_high_mul as mul
from jaxdelegate.quant.jax_requantize import clamp, rescale_steps
from jaxdelegate.quant.lookup import int16_input_multiplier, logistic_int16, tanh_int16
from jaxdelegate.quant.multiplier import checked_log2, downscale_multiplier, quantize_multiplier
from jaxdelegate.quant.params import activation_range, integer_range
from jaxdelegate.quant.requantize import float32_product_multiplier, rescale_multiplier

# ---- RELU and variants


def _rescaled(lower: Act, upper: Act) -> Build[Options]:
    """Rescale and clamp to the lower bound of one fused activation, the upper one of another."""

    def build(op: Op[Options]) -> Elementwise:
        (x,), (y,) = op.inputs, op.outputs
        pair = rescale_multiplier(quantization_of(x), quantization_of(y), in_float32=True)
        low, _ = activation_range(lower, quantization_of(y), y.dtype)
        _, high = activation_range(upper, quantization_of(y), y.dtype)
        return lambda a: stored(rescale_steps(steps_of(a, x), *pair, x.dtype), y, (low, high))

    return build


def _leaky_relu(op: Op[LeakyReluOptions]) -> Elementwise:
    """reference/leaky_relu.h: multiply by the magnitude of alpha, negate if alpha is negative."""
    (x,), (y,) = op.inputs, op.outputs
    identity = rescale_multiplier(quantization_of(x), quantization_of(y), in_float32=True)
    real = np.float32(scale_of(x)) * np.float32(op.options.alpha) / np.float32(scale_of(y))
    multiplier, shift = quantize_multiplier(float(real))
    sign = np.int32(-1 if multiplier < 0 else 1)

    def negative(steps: jax.Array) -> jax.Array:
        return sign * rescale_steps(steps, abs(multiplier), shift, x.dtype)

    return _by_sign(x, y, identity, negative)


def _prelu(op: Op[Options]) -> Elementwise:
    """reference/prelu.h."""
    (x, alpha), (y,) = op.inputs, op.outputs
    identity = rescale_multiplier(quantization_of(x), quantization_of(y), in_float32=True)
    pair = float32_product_multiplier(*map(quantization_of, (x, alpha, y)))

    def negative(steps: jax.Array, slope: jax.Array) -> jax.Array:
        return fixed.multiply_by_quantized_multiplier(steps * steps_of(slope, alpha), *pair)

    return _by_sign(x, y, identity, negative)


def _by_sign(
    x: TensorSpec, y: TensorSpec, identity: tuple[int, int], negative: Elementwise
) -> Elementwise:
    bounds = integer_range(y.dtype)

    def function(a: jax.Array, *others: jax.Array) -> jax.Array:
        steps = steps_of(a, x)
        kept = rescale_steps(steps, *identity, x.dtype)
        scaled = jnp.where(steps >= 0, kept, negative(steps, *others))
        return stored(scaled, y, bounds)

    return function


# ---- HARD_SWISH


def _hard_swish(op: Op[Options]) -> Elementwise:
    """reference/hard_swish.h: int16 fixed point; in the gate's argument 32768 represents 3."""
    (x,), (y,) = op.inputs, op.outputs
    fine_scale = np.float32(1 / 128) * np.float32(scale_of(x))
    to_output, output_shift = _int16_multiplier(fine_scale / np.float32(scale_of(y)))
    to_gate, gate_shift = _int16_multiplier(fine_scale / np.float32(3 / 32768))
    if output_shift > 0:
        raise ValueError(f"the output's, {scale_of(y)}, is too small for the input's")
    bounds = integer_range(y.dtype)

    def function(a: jax.Array) -> jax.Array:
        fine = (steps_of(a, x) << 7).astype(np.int16)
        gate = mul(fixed.saturating_left_shift(fine, max(gate_shift - 1, 0)), to_gate)
        gate = fixed.saturating_left_shift(gate, min(max(gate_shift, 0), 1))
        gate = fixed.rounding_divide_by_pot(gate, max(-gate_shift, 0))
        gate = ((gate.astype(np.int32) + (1 << 15)) >> 1).astype(np.int16)  # Q0, in [0, 1]
        product = fixed.saturating_doubling_high_mul(gate, mul(fine, to_output))
        scaled = fixed.rounding_divide_by_pot(product, -output_shift).astype(np.int32)
        return clamp(fixed.wrap(scaled + zero_point_of(y), INT16), *bounds, y.dtype)

    return function


def _int16_multiplier(real: np.float32) -> tuple[int, int]:
    multiplier, shift = quantize_multiplier(float(real))
    return downscale_multiplier(multiplier), shift


# ---- sigmoids


def _logistic(op: Op[Options]) -> Elementwise:
    """A table for 8 bits, reference/integer_ops/logistic.h for int16."""
    (x,), (y,) = op.inputs, op.outputs
    expected = 1 / 32768 if y.dtype == INT16 else 1 / 256
    if scale_of(y) != expected:
        raise ValueError(f"the output's is {scale_of(y)}, not {expected}")
    if y.dtype != INT16:
        return table_lookup(lookup.logistic, op)
    pair = int16_input_multiplier(scale_of(x), 0)
    return lambda a: logistic_int16(a, *pair, jnp)


def _tanh(op: Op[Options]) -> Elementwise:
    """A table for 8 bits, reference/integer_ops/tanh.h for int16."""
    (x,), (y,) = op.inputs, op.outputs
    if y.dtype != INT16:
        return table_lookup(lookup.tanh, op)
    if checked_log2(scale_of(y)) != (-15, True):
        raise ValueError(f"the output's is {scale_of(y)}, not {1 / 32768}")
    pair = int16_input_multiplier(scale_of(x), 1)
    return lambda a: tanh_int16(a, *pair, jnp)


def _gelu(op: Op[GeluOptions]) -> Elementwise:
    return table_lookup(lookup.gelu_approximate if op.options.approximate else lookup.gelu, op)


_8_BITS = alike(1, INT8, UINT8)
_8_OR_16_BITS = _8_BITS | alike(1, INT16)
RELU = IntegerKernel(_8_OR_16_BITS, _rescaled(Act.RELU, Act.NONE))
RELU6 = IntegerKernel(_8_OR_16_BITS, _rescaled(Act.RELU, Act.RELU6))
RELU_N1_TO_1 = IntegerKernel(_8_BITS, _rescaled(Act.RELU_N1_TO_1, Act.RELU_N1_TO_1))
RELU_0_TO_1 = IntegerKernel(_8_BITS, _rescaled(Act.RELU, Act.RELU_N1_TO_1))
LEAKY_RELU = IntegerKernel(_8_OR_16_BITS, _leaky_relu)
PRELU = IntegerKernel(alike(2, INT8, UINT8) | {(INT16, INT8, INT16)}, _prelu, symmetric=False)
HARD_SWISH = IntegerKernel(_8_BITS, _hard_swish)
ELU: IntegerKernel[Options] = IntegerKernel(
    alike(1, INT8), functools.partial(table_lookup, lookup.elu)
)
GELU = IntegerKernel(_8_OR_16_BITS, _gelu, symmetric=False)
LOGISTIC = IntegerKernel(_8_OR_16_BITS, _logistic)
TANH = IntegerKernel(_8_OR_16_BITS, _tanh)
