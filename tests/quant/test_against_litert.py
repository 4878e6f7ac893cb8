"""The arithmetic in one-operator models, which equals that of LiteRT's reference kernels."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jaxdelegate.op_lowering.options import (
    Conv2DOptions,
    FullyConnectedOptions,
    GeluOptions,
    MulOptions,
    Options,
    SoftmaxOptions,
)
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType, TensorType
from jaxdelegate.quant import (
    affine,
    fixed_math,
    fixed_point,
    lookup,
    multiplier,
    params,
    requantize,
)
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import ModelBuilder
from tests.support.quantized import scaled

pytestmark = pytest.mark.litert

INT8 = np.arange(-128, 128).astype(np.int8)
UINT8 = np.arange(256).astype(np.uint8)
INT16 = np.arange(-(2**15), 2**15).astype(np.int16)
RELU6 = ActivationFunctionType.RELU6


@dataclasses.dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the model: run-time input or constant."""

    array: np.ndarray
    quantization: Quantization | None = None
    is_const: bool = False


def _litert(
    name: str,
    inputs: list[Value],
    dtype: Any,
    quantization: Quantization | None,
    options: Options | None = None,
    version: int = 2,
    shape: tuple[int, ...] | None = None,
) -> np.ndarray:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    builder = ModelBuilder()
    tensors = [
        builder.constant(v.array, quantization=v.quantization)
        if v.is_const
        else builder.input(v.array.shape, v.array.dtype, quantization=v.quantization)
        for v in inputs
    ]
    out_shape = inputs[0].array.shape if shape is None else shape
    result = builder.tensor(out_shape, dtype, quantization=quantization)
    builder.operator(name, tensors, [result], options, version=version)
    builder.outputs(result)
    interpreter = Interpreter(
        model_content=builder.build(), experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    interpreter.allocate_tensors()
    feeds = [v.array for v in inputs if not v.is_const]
    for detail, feed in zip(interpreter.get_input_details(), feeds, strict=True):
        interpreter.set_tensor(detail["index"], feed)
    interpreter.invoke()
    got: np.ndarray = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    return got


# ---- QUANTIZE between integers

PAIRS = [
    *((x, 5, np.int8, -3) for x in (INT8, UINT8)),
    *((x, 5, np.uint8, 100) for x in (INT8, UINT8)),
    *((x, 5, np.int16, 0) for x in (INT8, UINT8)),
    *((INT16, 0, dtype, 0) for dtype in (np.int8, np.int16)),
    *((np.arange(-70000, 70000, 7, dtype=np.int32), 9, t, 0) for t in (np.int8, np.int16)),
]


@pytest.mark.parametrize(("x", "x_zero", "dtype", "y_zero"), PAIRS)
@pytest.mark.parametrize("scales", [(0.1, 0.37), (0.5, 2.0), (0.7, 0.7), (1.9, 0.011)])
def test_requantization(
    x: np.ndarray, x_zero: int, dtype: Any, y_zero: int, scales: tuple[float, float]
) -> None:
    source, target = scaled(scales[0], x_zero), scaled(scales[1], y_zero)
    got = requantize.requantize(x, source, target, np.dtype(dtype))
    np.testing.assert_array_equal(got, _litert("QUANTIZE", [Value(x, source)], dtype, target))


def test_left_shifts_wrap_around() -> None:
    x = (np.arange(2**15, dtype=np.int64) * 131071 - 2**31).astype(np.int32)
    source, target = scaled(100.0), scaled(0.37)
    got = requantize.requantize(x, source, target, np.dtype(np.int16))
    np.testing.assert_array_equal(got, _litert("QUANTIZE", [Value(x, source)], np.int16, target))


def test_the_wheel_rounds_twice() -> None:
    source, target = scaled(0.1), scaled(1.6)
    pair = requantize.rescale_multiplier(source, target)
    x = INT16.astype(np.int32)
    twice = fixed_point.multiply_by_quantized_multiplier(x, *pair)
    right = 31 - pair[1]
    once = (x.astype(np.int64) * pair[0] + (1 << (right - 1))) >> right
    got = _litert("QUANTIZE", [Value(INT16, source)], np.int16, target)
    assert (twice != once).sum() > 1000
    np.testing.assert_array_equal(got, twice)


# ---- Products


def _activations(dtype: type, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    info = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


@pytest.mark.parametrize("activation", [ActivationFunctionType.NONE, RELU6])
@pytest.mark.parametrize(
    ("dtype", "bias_dtype", "zero", "version"),
    [(np.int8, np.int32, -5, 3), (np.int16, np.int32, 0, 4), (np.int16, np.int64, 0, 4)],
)
def test_convolution(
    dtype: type, bias_dtype: type, zero: int, version: int, activation: ActivationFunctionType
) -> None:
    x, w = _activations(dtype, (1, 9, 9, 16)), _activations(np.int8, (8, 1, 1, 16), 1)
    bias = np.arange(-4, 4).astype(bias_dtype) * 1000
    scale = 0.02 if dtype == np.int8 else 0.0003
    w_scales = np.float32(0.003) * np.float32(1.3) ** np.arange(8, dtype=np.float32)
    q_x, q_w, q_y = scaled(scale, zero), scaled(w_scales), scaled(7.3 * scale, -2 * zero)
    accumulator = np.einsum(
        "nhwc,oc->nhwo", x.astype(np.int64) - zero, w[:, 0, 0].astype(np.int64)
    ).astype(bias_dtype)
    got = requantize.requantize_accumulator(
        requantize.add_bias(accumulator, bias),
        *requantize.convolution_multipliers(q_x, q_w, q_y, 8),
        -2 * zero,
        params.activation_range(activation, q_y, np.dtype(dtype)),
        np.dtype(dtype),
    )
    inputs = [
        Value(x, q_x),
        Value(w, q_w, is_const=True),
        Value(bias, scaled(np.float32(scale) * w_scales), is_const=True),
    ]
    options = Conv2DOptions(
        stride_w=1,
        stride_h=1,
        fused_activation_function=activation,
        quantized_bias_type=TensorType.INT32 if bias_dtype == np.int32 else TensorType.FLOAT32,
    )
    want = _litert("CONV_2D", inputs, dtype, q_y, options, version, shape=(1, 9, 9, 8))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("w_scale", [0.0037, 0.011, 0.0203])
def test_products_in_float64(w_scale: float) -> None:
    x, w = _activations(np.int8, (50, 16)), _activations(np.int8, (30, 16), 1)
    q_x, q_w, q_y = scaled(0.0213, 4), scaled(w_scale), scaled(0.317, -9)
    bounds = params.integer_range(np.dtype(np.int8))
    accumulator = (x.astype(np.int32) - 4) @ w.T.astype(np.int32)
    scales = requantize.effective_scales(q_x, q_w, q_y, 30)
    got = requantize.requantize_accumulator_by_real(
        accumulator, scales, -9, bounds, np.dtype(np.int8)
    )
    inputs = [Value(x, q_x), Value(w, q_w, is_const=True)]
    options = FullyConnectedOptions()
    want = _litert("FULLY_CONNECTED", inputs, np.int8, q_y, options, version=4, shape=(50, 30))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("w_scale", [0.0037, 0.011, 0.0203])
def test_products_of_two_scales(w_scale: float) -> None:
    x, w = _activations(np.int8, (1, 90, 16)), _activations(np.int8, (1, 16, 70), 1)
    q_x, q_w, q_y = scaled(0.0213, 4), scaled(w_scale, -8), scaled(0.317, -9)
    bounds = params.integer_range(np.dtype(np.int8))
    accumulator = (x.astype(np.int32) - 4) @ (w.astype(np.int32) + 8)
    pair = requantize.product_multiplier(q_x, q_w, q_y)
    got = requantize.requantize_accumulator(accumulator, *pair, -9, bounds, np.dtype(np.int8))
    inputs = [Value(x, q_x), Value(w, q_w)]
    want = _litert("BATCH_MATMUL", inputs, np.int8, q_y, shape=(1, 90, 70))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("y_scale", [0.0337, 0.1, 0.0071])
def test_products_in_float32(y_scale: float) -> None:
    a, b = (part.reshape(-1).astype(np.int8) for part in np.meshgrid(INT8, INT8))
    q_a, q_b, q_y = scaled(0.0213, 4), scaled(0.0371, -11), scaled(y_scale, 20)
    bounds = params.activation_range(RELU6, q_y, np.dtype(np.int8))
    accumulator = (a.astype(np.int32) - 4) * (b.astype(np.int32) + 11)
    pair = requantize.float32_product_multiplier(q_a, q_b, q_y)
    got = requantize.requantize_accumulator(accumulator, *pair, 20, bounds, np.dtype(np.int8))
    options = MulOptions(fused_activation_function=RELU6)
    want = _litert("MUL", [Value(a, q_a), Value(b, q_b)], np.int8, q_y, options)
    np.testing.assert_array_equal(got, want)


# ---- Tables


@pytest.mark.parametrize(
    ("name", "function", "q_y", "options", "version"),
    [
        ("EXP", lookup.exp, scaled(0.21, -60), None, 2),
        ("LOGISTIC", lookup.logistic, scaled(1 / 256, -128), None, 2),
        ("TANH", lookup.tanh, scaled(1 / 128), None, 2),
        ("GELU", lookup.gelu, scaled(0.0211, -100), GeluOptions(), 2),
        ("GELU", lookup.gelu_approximate, scaled(0.0211, -100), GeluOptions(approximate=True), 2),
        ("LOG", lookup.log((-128 - 90) * np.float32(0.027)), scaled(0.027, 90), None, 2),
    ],
)
def test_tables_of_int8(
    name: str,
    function: Callable[[np.ndarray], np.ndarray],
    q_y: Quantization,
    options: Options | None,
    version: int,
) -> None:
    zero = -40
    table = lookup.lookup_table(
        function, 0.031, zero, params.tensor_scale(q_y), int(q_y.zero_point[0]), np.dtype(np.int8)
    )
    want = _litert(name, [Value(INT8, scaled(0.031, zero))], np.int8, q_y, options, version)
    np.testing.assert_array_equal(lookup.lut_lookup(INT8, table), want)


@pytest.mark.parametrize("scales", [(1e-4, 8e-4), (2.0**-12, 2.0**-5), (3e-5, 1e-4)])
def test_tables_of_int16(scales: tuple[float, float]) -> None:
    x_scale, y_scale = scales
    table = lookup.lookup_table(lookup.exp, x_scale, 0, y_scale, 0, np.dtype(np.int16))
    want = _litert("EXP", [Value(INT16, scaled(x_scale))], np.int16, scaled(y_scale))
    np.testing.assert_array_equal(lookup.lut_lookup(INT16, table), want)


@pytest.mark.parametrize("scale", [2.0**-12, 2.0**-11, 3.3e-4, 1e-3, 2e-5])
def test_sigmoids_of_int16(scale: float) -> None:
    inputs, q_y = [Value(INT16, scaled(scale))], scaled(2.0**-15)
    got = lookup.logistic_int16(INT16, *lookup.int16_input_multiplier(scale, 0))
    np.testing.assert_array_equal(got, _litert("LOGISTIC", inputs, np.int16, q_y, version=3))
    got = lookup.tanh_int16(INT16, *lookup.int16_input_multiplier(scale, 1))
    np.testing.assert_array_equal(got, _litert("TANH", inputs, np.int16, q_y, version=3))


# ---- Fixed-point functions


def test_rsqrt_of_int8() -> None:
    source, target = scaled(0.04, -128), scaled(0.021, -100)
    steps = INT8[1:].astype(np.int32) + 128  # RsqrtEvalQuantizedInt8 in kernels/elementwise.cc
    inverse, shift = fixed_math.inverse_sqrt(steps)
    data = fixed_point.multiply_by_quantized_multiplier(1, inverse, shift + 20)
    real = 1.0 / (float(np.sqrt(np.float32(0.04))) * float(np.float32(0.021)))
    scale, scale_shift = multiplier.quantize_multiplier(real)
    y = fixed_point.multiply_by_quantized_multiplier(data, scale, scale_shift - 20) - 100
    want = _litert("RSQRT", [Value(INT8[1:], source)], np.int8, target)
    np.testing.assert_array_equal(np.clip(y, -128, 127), want)


@pytest.mark.parametrize(("scale", "beta"), [(0.1, 1.0), (0.013, 1.7), (0.9, 0.3)])
def test_softmax_of_int8(scale: float, beta: float) -> None:
    x = _activations(np.int8, (40, 21))
    pair = multiplier.softmax_multiplier(np.float32(beta), np.float32(scale), 5)
    radius = multiplier.input_radius(5, pair[1])
    steps = x.astype(np.int32) - x.max(1, keepdims=True)
    exps = fixed_math.exp_on_negative_values(
        fixed_point.multiply_by_quantized_multiplier(steps, *pair), 5
    )
    counts = steps >= -radius
    total = np.sum(np.where(counts, fixed_point.rescale(exps, 0, 12), 0), 1, keepdims=True)
    inverse, exponent = fixed_math.reciprocal(total.astype(np.int32), 12)
    y = fixed_point.saturating_rounding_doubling_high_mul(inverse, exps)
    y = fixed_point.rounding_divide_by_pot(y, exponent + 31 - 8) - 128
    got = np.where(counts, np.clip(y, -128, 127), -128)
    options = SoftmaxOptions(beta=beta)
    want = _litert("SOFTMAX", [Value(x, scaled(scale))], np.int8, scaled(1 / 256, -128), options)
    np.testing.assert_array_equal(got, want)


# ---- Dynamic range


@pytest.mark.parametrize("is_asymmetric", [False, True])
def test_floats_on_the_fly(*, is_asymmetric: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(1, 3, (20, 32)).astype(np.float32)
    w = np.eye(32, dtype=np.int8) * 100
    if is_asymmetric:
        q, scale, offset = affine.asymmetric_quantize(x)
    else:
        (q, scale), offset = affine.symmetric_quantize(x), np.zeros(20, np.int32)
    steps = (q.astype(np.int32) - offset[:, None]) * 100
    inputs = [Value(x), Value(w, scaled(0.25), is_const=True)]
    options = FullyConnectedOptions(asymmetric_quantize_inputs=is_asymmetric)
    want = _litert("FULLY_CONNECTED", inputs, np.float32, None, options, version=9, shape=(20, 32))
    np.testing.assert_allclose(steps * (scale[:, None] * np.float32(0.25)), want, rtol=2e-7)
