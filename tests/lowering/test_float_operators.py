"""quant_mode="auto": integers on a CPU, and floats for operators that they suit better."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

import jaxdelegate as jd
from jaxdelegate.analysis.analyzer import analyze_model
from jaxdelegate.compile.precision_policy import quant_mode
from jaxdelegate.lowering import float_operators
from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    AddOptions,
    Conv2DOptions,
    CustomOptions,
    DepthwiseConv2DOptions,
    FullyConnectedOptions,
    Padding,
    RNNOptions,
    TransposeConvOptions,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import OpRule
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.options import DelegateOptions
from jaxdelegate.reference.kernel import Kernel, same_shape
from jaxdelegate.reference.registry import KERNELS
from jaxdelegate.testing import Arg, Case, ModelBuilder
from jaxdelegate.testing.running import run_once
from tests.support.quantized import scaled

RNG = np.random.default_rng(0)
W = RNG.integers(-127, 127, (1, 3, 3, 8)).astype(np.int8)


def outputs(content: bytes, *arrays: np.ndarray, **options: Any) -> list[np.ndarray]:
    delegate = jd.JaxDelegate(require_full_delegation=True, **options)
    interpreter = jd.Interpreter(model_content=content, experimental_delegates=[delegate])
    return run_once(interpreter, arrays)


@pytest.mark.parametrize(
    ("platform", "mode"), [("cpu", "integer"), ("gpu", "float_view"), ("tpu", "float_view")]
)
def test_auto_depends_on_the_platform(platform: str, mode: str) -> None:
    assert quant_mode(DelegateOptions(), platform) == mode
    for given in ("integer", "float_view"):
        assert quant_mode(DelegateOptions(quant_mode=given), platform) == given


def test_integer_operators_have_the_bits_of_litert() -> None:
    builder = ModelBuilder()
    x = builder.input((64, 32), np.int8, quantization=scaled(0.03, 3))
    w = RNG.integers(-127, 127, (16, 32)).astype(np.int8)
    weights = builder.constant(w, quantization=scaled(0.01))
    y = builder.tensor((64, 16), np.int8, quantization=scaled(0.5, -9))
    builder.operator("FULLY_CONNECTED", [x, weights, None], [y], FullyConnectedOptions())
    builder.outputs(y)
    q = RNG.integers(-128, 127, (64, 32)).astype(np.int8)
    stock = run_once(Interpreter(model_content=builder.build()), [q])
    np.testing.assert_array_equal(outputs(builder.build(), q), stock)


def test_rewrites_create_no_operator_in_floats() -> None:
    """A residual after a convolution: fused in floats only."""
    builder = ModelBuilder()
    x = builder.input((1, 6, 6, 8), np.int8, quantization=scaled(0.05, 3))
    w = RNG.integers(-127, 127, (8, 1, 1, 8)).astype(np.int8)
    weights = builder.constant(w, quantization=scaled(np.full(8, 0.01)))
    bias = builder.constant(np.zeros(8, np.int32), quantization=scaled(np.full(8, 0.0005)))
    y, z = (builder.tensor((1, 6, 6, 8), np.int8, quantization=scaled(s, -9)) for s in (0.09, 0.13))
    builder.operator("CONV_2D", [x, weights, bias], [y], Conv2DOptions(Padding.SAME, 1, 1))
    builder.operator("ADD", [y, x], [z], AddOptions(), version=2)
    builder.outputs(z)
    q = RNG.integers(-128, 127, (1, 6, 6, 8)).astype(np.int8)
    stock = run_once(Interpreter(model_content=builder.build()), [q])
    np.testing.assert_array_equal(outputs(builder.build(), q), stock)


def of_dynamic_range(operator: str) -> bytes:
    builder = ModelBuilder()
    x = builder.input((1, 8, 8, 8), name="x")
    if operator == "DEPTHWISE_CONV_2D":
        each = scaled(np.linspace(0.01, 0.02, 8), axis=3)
        weights = builder.constant(W, quantization=each)
        given: list[Any] = [x, weights, None]
        options: Any = DepthwiseConv2DOptions(Padding.SAME, 1, 1, 1, ActivationFunctionType.RELU)
    else:
        shape = builder.constant(np.array([1, 8, 8, 1], np.int32))
        given = [shape, builder.constant(W, quantization=scaled(0.01)), x]
        options = TransposeConvOptions(Padding.SAME, 1, 1)
    y = builder.tensor((1, 8, 8, 8 if operator == "DEPTHWISE_CONV_2D" else 1))
    builder.operator(operator, given, [y], options, version=3)
    builder.outputs(y)
    return builder.build()


@pytest.mark.parametrize("operator", ["DEPTHWISE_CONV_2D", "TRANSPOSE_CONV"])
def test_dynamic_range_operators_that_are_faster_in_floats_round_nothing(operator: str) -> None:
    content, x = of_dynamic_range(operator), RNG.normal(size=(1, 8, 8, 8)).astype(np.float32)
    (auto,) = outputs(content, x)
    (floats,) = outputs(content, x, quant_mode="float_view")
    (rounded,) = outputs(content, x, quant_mode="integer")
    np.testing.assert_allclose(auto, floats, rtol=1e-5, atol=1e-5)
    assert np.abs(rounded - floats).max() > 1e-3
    for mode, words in (("auto", f"no integer kernel: 1 {operator}."), ("integer", None)):
        analysis = analyze_model(content, quant_mode=mode, platform="cpu")
        assert [op.in_floats for op in analysis.subgraphs[0].operators] == [words is not None]
        assert words is None or words in str(analysis)


@pytest.mark.parametrize(
    ("filters", "dtype", "in_floats"),
    [
        ((16, 1, 1, 32), np.float32, (True, True)),  # quantized for 16 products each
        ((96, 1, 1, 16), np.float32, (True, True)),
        ((320, 1, 1, 960), np.float32, (False, False)),
        ((16, 3, 3, 16), np.float32, (False, True)),
        ((16, 1, 1, 32), np.int8, (False, False)),  # nothing is quantized at run time
        ((16, 3, 3, 16), np.int8, (False, False)),
    ],
)
def test_convolutions_that_are_faster_in_floats(
    filters: tuple[int, ...], dtype: type, in_floats: tuple[bool, bool]
) -> None:
    """On a processor with VNNI and on one without: few products for each value, or windows."""
    quantization = None if dtype is np.float32 else scaled(0.1)
    o, _, _, c = filters
    x, y = (
        TensorSpec("", (1, 8, 8, n), np.dtype(dtype), quantization=quantization) for n in (c, o)
    )
    weights = np.zeros(filters, np.int8)
    w = TensorSpec("", filters, weights.dtype, quantization=scaled(0.1), const=weights)
    found = (
        float_operators.is_faster("CONV_2D", (x, w, None), (y,), adds_products=adds_products)
        for adds_products in (True, False)
    )
    assert tuple(found) == in_floats


def test_floats_beside_operators_in_floats_need_no_order() -> None:
    """A float convolution before one in floats: in LiteRT's order it takes thrice the time."""
    builder = ModelBuilder()
    x = builder.input((1, 8, 8, 4), np.float32)
    w = builder.constant(RNG.normal(size=(16, 3, 3, 4)).astype(np.float32))
    y = builder.tensor((1, 8, 8, 16))
    options = Conv2DOptions(Padding.SAME, 1, 1, ActivationFunctionType.NONE, 1, 1)
    builder.operator("CONV_2D", [x, w, None], [y], options)
    quantized = RNG.integers(-127, 127, (8, 1, 1, 16)).astype(np.int8)
    weights = builder.constant(quantized, quantization=scaled(0.01))
    z = builder.tensor((1, 8, 8, 8))
    builder.operator("CONV_2D", [y, weights, None], [z], options, version=5)
    builder.outputs(z)
    image = RNG.normal(size=(1, 8, 8, 4)).astype(np.float32)
    (auto,) = outputs(builder.build(), image)
    (floats,) = outputs(builder.build(), image, quant_mode="float_view")
    np.testing.assert_array_equal(auto, floats)


def test_weights_that_kernels_read_as_int8_are_read_so_in_floats() -> None:
    weights = [RNG.integers(-127, 127, shape).astype(np.int8) for shape in ((4, 3), (4, 4))]
    given = [Arg(w.view(np.uint8), is_const=True, quantization=scaled(0.01)) for w in weights]
    x = RNG.uniform(-1, 1, (2, 3)).astype(np.float32)
    bias = Arg(RNG.uniform(-1, 1, 4).astype(np.float32), is_const=True)
    state = Arg(np.zeros((2, 4), np.float32), is_variable=True)
    options = RNNOptions(ActivationFunctionType.TANH)
    case = Case("RNN", "uint8", [Arg(x), *given, bias, state], options)
    want = np.tanh(x @ (0.01 * weights[0].astype(np.float64)).T + bias.value)
    np.testing.assert_allclose(outputs(case.model(), x)[0], want, rtol=1e-5, atol=1e-6)


@pytest.fixture
def halving() -> Iterator[None]:
    """A custom operator whose rule knows floats only."""
    rule = OpRule(
        "Halve",
        CustomOptions,
        1,
        lambda op: None if op.inputs[0].dtype == np.float32 else "it takes float32",
        lambda _op: lambda x: (x * jnp.float32(0.5),),
    )
    jd.register_operator("Halve", Kernel(lambda *_: (), same_shape), rule)
    yield
    del KERNELS["Halve"], RULES["Halve"]


@pytest.mark.usefixtures("halving")
def test_an_operator_without_integers_runs_in_floats() -> None:
    builder = ModelBuilder()
    x = builder.input((256,), np.int8, quantization=scaled(0.5, 4))
    y = builder.tensor((256,), np.int8, quantization=scaled(0.25, 2))
    builder.operator("Halve", [x], [y], CustomOptions(b""))
    builder.outputs(y)
    q = np.arange(-128, 128).astype(np.int8)
    (halved,) = outputs(builder.build(), q)
    np.testing.assert_array_equal(halved, np.clip(q.astype(int) - 4 + 2, -128, 127))
    with pytest.raises(jd.errors.DelegationError, match="it takes float32"):
        outputs(builder.build(), q, quant_mode="integer")
