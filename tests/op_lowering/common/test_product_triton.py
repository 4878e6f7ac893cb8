"""The Triton kernel of int8 products, interpreted on a CPU, and lowered for a GPU."""

import functools
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import pallas as pl

from jaxdelegate.op_lowering.common import product_triton
from jaxdelegate.op_lowering.common.quantized_products import Epilogue
from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import Conv2DOptions, Padding
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import KernelSet, LoweringContext
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import Arg, Case
from tests.support.absent_gpu import lowered_for_gpu
from tests.support.quantized import scaled

SAME, VALID = Padding.SAME, Padding.VALID
INT8, INT32 = np.dtype(np.int8), np.dtype(np.int32)
GPU = LoweringContext(platform="gpu", quant_mode="integer", kernels=KernelSet(triton=True))
RULE = RULES["CONV_2D"]


def case(
    label: str,
    x: tuple[int, ...],
    w: tuple[int, ...],
    options: Conv2DOptions,
    *,
    x_zero: int = -7,
    is_per_channel: bool = True,
    has_bias: bool = True,
) -> Case:
    """`w` is [O, h, w, I]."""
    random = np.random.default_rng(len(label))
    x_scale, w_scale = np.float32(0.02), np.geomspace(2e-3, 2e-2, w[0]).astype(np.float32)
    w_scale = w_scale if is_per_channel else w_scale[:1]
    products = int(np.prod(w[1:]))
    y = scaled(np.float32(0.02 * 0.01 * 60 * np.sqrt(products)), 5)
    inputs = [
        Arg(random.integers(-128, 128, x).astype(INT8), quantization=scaled(x_scale, x_zero)),
        Arg(random.integers(-127, 128, w).astype(INT8), True, quantization=scaled(w_scale, 0, 0)),
    ]
    if has_bias:
        bias = random.integers(-(10**5), 10**5, w[0]).astype(np.int32)
        inputs.append(Arg(bias, True, quantization=scaled(x_scale * w_scale)))
    return Case("CONV_2D", label, inputs, options, output_quantization=[y], version=3, tolerance=0)


# Rows, columns and depths of parts of a block, of one and of several; a padded image.
SHAPES = [
    case("pixels", (2, 9, 8, 24), (40, 1, 1, 24), Conv2DOptions(SAME, 1, 1, Act.RELU6)),
    case("several blocks", (1, 13, 12, 144), (160, 1, 1, 144), Conv2DOptions(VALID, 1, 1)),
    case("odd", (1, 3, 5, 7), (5, 1, 1, 7), Conv2DOptions(VALID, 1, 1), is_per_channel=False),
    case("stride", (2, 9, 8, 16), (8, 1, 1, 16), Conv2DOptions(VALID, 2, 2), has_bias=False),
    case("patches", (2, 9, 8, 3), (32, 3, 3, 3), Conv2DOptions(SAME, 2, 2, Act.RELU)),
    case("one", (1, 1, 1, 8), (1, 1, 1, 8), Conv2DOptions(VALID, 1, 1), x_zero=0),
]


@pytest.fixture
def _few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_triton, "_LEAST_BLOCKS", 1)


@pytest.fixture
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pl, "pallas_call", functools.partial(pl.pallas_call, interpret=True))


@pytest.mark.usefixtures("_interpreted", "_few_blocks")
@pytest.mark.parametrize("example", SHAPES, ids=str)
def test_equals_the_reference(example: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    product = product_triton.product
    monkeypatch.setattr(
        product_triton, "product", lambda *given: calls.append(given) or product(*given)
    )
    (got,), (want,) = example.run_lowered(RULE, GPU), example.run_reference()
    assert calls
    assert len(np.unique(want)) > min(want.size, 10) // 2
    np.testing.assert_array_equal(got, want)


@pytest.mark.usefixtures("_interpreted")
def test_sums_that_wrap_around_and_saturate() -> None:
    """Like the epilogue of XLA's products: accumulators and shifts of any size."""
    random = np.random.default_rng(0)
    x, w = (random.integers(-128, 128, s).astype(INT8) for s in ((33, 40), (40, 20)))
    offset = random.integers(-(2**31), 2**31, 20).astype(np.int32)
    multiplier = random.integers(2**30, 2**31, 20).astype(np.int32)
    shift = np.resize(np.int32([-31, -24, -20, -9, 0, 3]), 20)
    end = Epilogue(INT32, -4, (-100, 90), INT8, multiplier, shift)
    with jax.enable_x64(True):
        got = product_triton.product(x, w, jax.numpy.asarray(offset), end)
        sums = jax.numpy.asarray(x.astype(np.int32) @ w.astype(np.int32))
        (want,) = end(sums, jax.numpy.asarray(offset))
    np.testing.assert_array_equal(got, want)


def test_triton_takes_it() -> None:
    """Lowered for a GPU, which needs none, and without 64-bit integers."""
    end = Epilogue(INT32, 3, (-128, 127), INT8, 2**30 + 7, -9)
    run = functools.partial(product_triton.product, end=end)
    shapes = ((300, 27), INT8), ((27, 24), INT8), ((24,), INT32)
    text = lowered_for_gpu(run, *(np.zeros(*given) for given in shapes))
    assert "__gpu$xla.gpu.triton" in text
    assert "i64>" not in text


QUANTIZED = Quantization(np.float32([0.5]), np.zeros(1, np.int64))


def test_leaves_small_products_to_xla() -> None:
    """At 224 pixels the first 1x1 convolution of MobileNet v2 has 98 blocks an image."""
    one, many = (
        case("", (n, 112, 112, 32), (16, 1, 1, 32), Conv2DOptions(VALID, 1, 1)) for n in (1, 2)
    )
    assert "pallas" not in str(jaxpr(one, GPU))
    assert "pallas" in str(jaxpr(many, GPU))


@pytest.mark.usefixtures("_few_blocks")
@pytest.mark.parametrize("dtype", [np.uint8, np.int16])
def test_leaves_other_integers_to_xla(dtype: Any) -> None:
    inputs = [Arg(np.ones((1, 4, 4, 8), dtype), quantization=QUANTIZED)]
    w = np.uint8 if dtype is np.uint8 else np.int8
    inputs += [Arg(np.ones((8, 1, 1, 8), w), True, quantization=QUANTIZED)]
    options = Conv2DOptions(VALID, 1, 1)
    example = Case("CONV_2D", "", inputs, options, output_quantization=[QUANTIZED], version=4)
    assert "pallas" not in str(jaxpr(example, GPU))
    assert "pallas" in str(jaxpr(SHAPES[0], GPU))
    assert "pallas" not in str(jaxpr(SHAPES[0], LoweringContext("gpu", quant_mode="integer")))


def jaxpr(example: Case, context: LoweringContext) -> Any:
    call, arrays = example.lowered_call(RULE, context)
    with jax.enable_x64(True):
        return jax.make_jaxpr(call)(*arrays)
