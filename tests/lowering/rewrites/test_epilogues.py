"""Fusion of epilogues into convolutions: the patterns that are matched, and equal results."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.kernels import library
from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    AddOptions,
    Conv2DOptions,
    DepthwiseConv2DOptions,
    MulOptions,
    Nonlinearity,
    Padding,
)
from jaxdelegate.op_lowering.rule import KernelSet, LoweringContext
from jaxdelegate.testing import assert_close
from jaxdelegate.testing.running import run_once

ALL = ["pad_convolution", "fuse_activation", "end_convolution"]
NATIVE = LoweringContext(kernels=KernelSet(cpu=True))
RELU, RELU6 = ActivationFunctionType.RELU, ActivationFunctionType.RELU6
CONV = Conv2DOptions(Padding.SAME, 1, 1)
BUILT = pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))
Write = Callable[[Any], int]


def conv(g: Any, x: int | None = None, options: Conv2DOptions = CONV) -> int:
    x = g.input(1, 5, 6, 20) if x is None else x
    return g("CONV_2D", x, g.values(20, 1, 1, 20) - 1, g.values(20), options=options)


def hard_swish(g: Any) -> int:
    return g("HARD_SWISH", conv(g))


def depthwise_hard_swish(g: Any) -> int:
    o = DepthwiseConv2DOptions(Padding.SAME, 1, 1, depth_multiplier=1)
    x, w, bias = g.input(1, 5, 6, 20), g.values(1, 3, 3, 20) - 1, g.values(20)
    return g("HARD_SWISH", g("DEPTHWISE_CONV_2D", x, w, bias, options=o))


def padded_hard_swish(g: Any) -> int:
    """A model whose PAD `pad_convolution` merges."""
    around = g("PAD", g.input(1, 5, 6, 20), np.array([(0, 0), (0, 2), (1, 0), (0, 0)], np.int32))
    return g("HARD_SWISH", conv(g, around, Conv2DOptions(Padding.VALID, 2, 2)))


def padded_depthwise_swish(g: Any) -> int:
    x = g("PAD", g.input(1, 5, 6, 20), np.array([(0, 0), (1, 0), (1, 2), (0, 0)], np.int32))
    o = DepthwiseConv2DOptions(Padding.VALID, 1, 1, depth_multiplier=1)
    y = g("DEPTHWISE_CONV_2D", x, g.values(1, 3, 3, 20) - 1, g.values(20), options=o)
    return g("MUL", y, g("LOGISTIC", y))


def swish(g: Any) -> int:
    x = conv(g)
    return g("MUL", x, g("LOGISTIC", x))


def swish_turned(g: Any) -> int:
    x = conv(g)
    return g("MUL", g("LOGISTIC", x), x)


def residual(g: Any) -> int:
    x = g.input(1, 5, 6, 20)
    return g("ADD", x, conv(g, x))


def residual_behind_relu(g: Any) -> int:
    x = g.input(1, 5, 6, 20)
    return g("ADD", conv(g, x), x, options=AddOptions(RELU))


def two_branches(g: Any) -> int:
    x = g.input(1, 5, 6, 20)
    return g("ADD", conv(g, x), conv(g, x))


FOUND = {
    hard_swish: 1,
    depthwise_hard_swish: 1,
    padded_hard_swish: 1,
    padded_depthwise_swish: 1,
    swish: 1,
    swish_turned: 1,
    residual: 1,
    residual_behind_relu: 1,
    two_branches: 2,
}


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("write", FOUND)
def test_it_is_found(write: Write, graph: Any, lowered: Any) -> None:
    content = graph.content(write(graph))
    partition, got = lowered(content, ALL, NATIVE)
    names = [step.operator.name for step in partition.operators]
    assert names.count("fused_convolution") == 1
    assert len(names) == FOUND[write]
    assert partition.operators[-1].name in ("ADD", "MUL", "HARD_SWISH")  # as the file calls it
    assert_close(got, lowered(content)[1], accumulated=20)


def test_without_the_kernels_everything_stays(graph: Any, lowered: Any) -> None:
    content = graph.content(swish(graph))
    assert len(lowered(content, ALL)[0].operators) == 3


@pytest.mark.parametrize("write", FOUND)
def test_on_a_gpu_only_a_residual_is_found(write: Write, graph: Any, lowered: Any) -> None:
    content = graph.content(write(graph))
    partition, got = lowered(content, ALL, LoweringContext(platform="gpu"))
    names = [step.operator.name for step in partition.operators]
    assert ("fused_convolution" in names) == (
        write in (residual, residual_behind_relu, two_branches)
    )
    assert_close(got, lowered(content)[1], accumulated=20)


def activated(g: Any) -> int:
    return g("HARD_SWISH", conv(g, options=Conv2DOptions(Padding.SAME, 1, 1, RELU)))


def another_gate(g: Any) -> int:
    return g("MUL", conv(g), g("LOGISTIC", g.input(1, 5, 6, 20)))


def swish_behind_relu(g: Any) -> int:
    x = conv(g)
    return g("MUL", x, g("LOGISTIC", x), options=MulOptions(RELU))


def broadcast(g: Any) -> int:
    return g("ADD", conv(g), g.input(1, 1, 1, 20))


def grown(g: Any) -> int:
    return g("ADD", conv(g), g.input(3, 5, 6, 20))


def itself(g: Any) -> int:
    x = conv(g)
    return g("ADD", x, x)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    "write", [activated, another_gate, swish_behind_relu, broadcast, grown, itself]
)
def test_what_only_looks_like_it_stays(write: Write, graph: Any, lowered: Any) -> None:
    content = graph.content(write(graph))
    partition, got = lowered(content, ALL, NATIVE)
    assert "fused_convolution" not in [step.operator.name for step in partition.operators]
    assert_close(got, lowered(content)[1], accumulated=20)


@pytest.mark.usefixtures("built")
def test_a_convolution_that_is_read_elsewhere_stays(graph: Any, lowered: Any) -> None:
    x = conv(graph)
    y = graph("HARD_SWISH", x)
    for outputs in ((y, x), (y, graph("ABS", x))):
        steps = lowered(graph.content(*outputs), ALL, NATIVE)[0].operators
        assert "HARD_SWISH" in [step.operator.name for step in steps]


@pytest.mark.usefixtures("built")
def test_a_residual_made_after_the_convolution(graph: Any, lowered: Any) -> None:
    """The merged operator takes the last part's place."""
    x = graph.input(1, 5, 6, 20)
    y = conv(graph, x)
    content = graph.content(graph("ADD", y, graph("ABS", x)))
    partition, got = lowered(content, ALL, NATIVE)
    assert [step.operator.name for step in partition.operators] == ["ABS", "fused_convolution"]
    assert partition.operators[-1].operator.options.nonlinearity is Nonlinearity.NONE
    assert [part.name for part in partition.operators[-1].parts] == ["CONV_2D", "ADD"]
    np.testing.assert_allclose(got[0], lowered(content)[1][0], rtol=1e-5, atol=1e-5)


# ---- fuse_activation


def depthwise(g: Any) -> int:
    o = DepthwiseConv2DOptions(Padding.SAME, 1, 1, depth_multiplier=1)
    return g("DEPTHWISE_CONV_2D", g.input(1, 5, 6, 20), g.values(1, 3, 3, 20) - 1, options=o)


def product(g: Any) -> int:
    return g("FULLY_CONNECTED", g.input(4, 20), g.values(20, 20) - 1, g.values(20))


def total(g: Any) -> int:
    return g("ADD", g.input(4, 20), g.values(20) - 1)


@pytest.mark.parametrize("context", [LoweringContext(), pytest.param(NATIVE, marks=BUILT)])
@pytest.mark.parametrize("name", ["RELU", "RELU6"])
@pytest.mark.parametrize("write", [conv, depthwise, product, total])
def test_a_clamp_joins_what_it_clamps(
    write: Write, name: str, context: LoweringContext, graph: Any, lowered: Any
) -> None:
    content = graph.content(graph(name, write(graph)))
    partition, got = lowered(content, ALL, context)
    (step,) = partition.operators
    assert step.operator.options.fused_activation_function is ActivationFunctionType[name]
    assert step.name == name  # as the file calls the last one
    np.testing.assert_array_equal(got[0], lowered(content, [], context)[1][0])


@pytest.mark.parametrize(
    ("own", "name", "joined"),
    [(RELU, "RELU", RELU), (RELU6, "RELU", RELU6), (RELU, "RELU6", RELU6), (RELU6, "RELU6", RELU6)],
)
def test_of_two_clamps_the_narrower_counts(
    own: Any, name: str, joined: Any, graph: Any, lowered: Any
) -> None:
    content = graph.content(
        graph(name, conv(graph, options=Conv2DOptions(Padding.SAME, 1, 1, own)))
    )
    partition, got = lowered(content, ALL)
    assert [s.operator.options.fused_activation_function for s in partition.operators] == [joined]
    np.testing.assert_array_equal(got[0], lowered(content)[1][0])


def test_a_residual_and_a_clamp_join_a_convolution(graph: Any, lowered: Any) -> None:
    content = graph.content(graph("RELU", residual(graph)))
    partition, got = lowered(content, ALL, LoweringContext(platform="gpu"))
    assert [step.operator.name for step in partition.operators] == ["fused_convolution"]
    assert_close(got, lowered(content)[1], accumulated=20)


def test_other_activations_and_results_that_are_read_stay(graph: Any, lowered: Any) -> None:
    tanh = ActivationFunctionType.TANH
    curved = graph("ADD", graph.input(4, 20), graph.values(20), options=AddOptions(tanh))
    read = total(graph)
    outputs = [graph("RELU", curved), graph("RELU", read), read, graph("ABS", total(graph))]
    assert len(lowered(graph.content(*outputs), ALL)[0].operators) == 6


@pytest.mark.parametrize("native", [False, None])
@pytest.mark.parametrize("write", [conv, product])
def test_nan_stays_nan(write: Write, native: bool | None, graph: Any) -> None:
    content = graph.content(graph("RELU", write(graph)))
    delegate = jd.JaxDelegate(native_kernels=native)
    interpreter = jd.Interpreter(model_content=content, experimental_delegates=[delegate])
    x = np.full(interpreter.get_input_details()[0]["shape"], np.nan, np.float32)
    assert np.isnan(run_once(interpreter, [x])[0]).all()
