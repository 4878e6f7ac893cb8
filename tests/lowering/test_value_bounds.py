"""Convolutions that may exceed float16's range according to `overflowing`, and those that do."""

import dataclasses
import logging
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.compile.precision_policy import device_policy
from jaxdelegate.lowering.value_bounds import overflowing
from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    AddOptions,
    Conv2DOptions,
    DepthwiseConv2DOptions,
    Padding,
)
from jaxdelegate.op_lowering.rule import KernelSet, LoweringContext
from jaxdelegate.testing.running import run_once

RELU, RELU6 = ActivationFunctionType.RELU, ActivationFunctionType.RELU6
GPU = LoweringContext(platform="gpu", precision=device_policy("float16"))
CHANNELS = 8
PRODUCTS = 9 * CHANNELS


def conv(g: Any, x: int, gain: float, activation: Any = RELU, size: int = 3) -> int:
    """A convolution whose results are at most `gain` times its input, plus 1."""
    w = np.full((CHANNELS, size, size, CHANNELS), gain / (size * size * CHANNELS), np.float32)
    options = Conv2DOptions(Padding.SAME, 1, 1, activation)
    return int(g("CONV_2D", x, w, np.ones(CHANNELS, np.float32), options=options))


def image(g: Any) -> int:
    return int(g.input(1, 6, 6, CHANNELS))


def depthwise(g: Any, x: int) -> int:
    options = DepthwiseConv2DOptions(Padding.SAME, 1, 1, 1, RELU6)
    return int(g("DEPTHWISE_CONV_2D", x, g.values(1, 3, 3, CHANNELS), options=options))


def unknown(g: Any) -> int:
    return conv(g, image(g), 2.0)


def bounded(g: Any) -> int:
    return conv(g, depthwise(g, image(g)), 10_000.0)


def too_large(g: Any) -> int:
    return conv(g, depthwise(g, image(g)), 11_000.0)


def clamped(g: Any) -> int:
    return conv(g, image(g), 1e6, RELU6)


def residual(g: Any) -> int:
    x = conv(g, depthwise(g, image(g)), 5_500.0, ActivationFunctionType.NONE)
    y = conv(g, depthwise(g, image(g)), 5_500.0, ActivationFunctionType.NONE)
    return int(g("ADD", x, y, options=AddOptions()))


def saturating_product(g: Any) -> int:
    return conv(g, image(g), 1e6, size=1)


EXAMPLES = {
    unknown: ["CONV_2D"],
    bounded: [],
    too_large: ["CONV_2D"],
    clamped: [],
    residual: ["fused_convolution"],
    saturating_product: [],
}


@pytest.mark.parametrize("write", EXAMPLES, ids=lambda write: write.__name__)
def test_names_what_nothing_bounds(write: Any, graph: Any, lowered: Any) -> None:
    content = graph.content(write(graph))
    partition, _ = lowered(content, ["end_convolution"], GPU)
    assert [operator.name for operator in overflowing(partition)] == EXAMPLES[write]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_other_dtypes_end_where_float32_does(precision: Any, graph: Any, lowered: Any) -> None:
    context = LoweringContext(platform="gpu", precision=device_policy(precision))
    partition, _ = lowered(graph.content(unknown(graph)), [], context)
    assert overflowing(partition) == []


def test_a_delegate_warns_of_them(graph: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The warning has indices and names; 1x1 convolutions saturate and are not in it."""
    content = graph.content(conv(graph, unknown(graph), 1.0, size=1))
    delegate = jd.JaxDelegate(platform="cpu", require_full_delegation=True)
    on_gpu = dataclasses.replace(
        delegate.compiler.context, platform="gpu", precision=GPU.precision, kernels=KernelSet()
    )
    delegate.compiler.context = on_gpu
    with caplog.at_level(logging.WARNING, "jaxdelegate"):
        interpreter = jd.Interpreter(model_content=content, experimental_delegates=[delegate])
        x = np.ones((1, 6, 6, CHANNELS), np.float32)
        (y,) = run_once(interpreter, [x])
    assert "in 1 convolution that nothing bounds: #0 CONV_2D." in caplog.text
    assert np.all(np.isfinite(y))


def test_a_matrix_product_saturates_in_float16(graph: Any, lowered: Any) -> None:
    content = graph.content(conv(graph, saturating_product(graph), 1.0, size=1))
    _, (y,) = lowered(content, [], GPU, 10.0)
    assert np.all(np.isfinite(y))
    assert y.max() > 6e4
