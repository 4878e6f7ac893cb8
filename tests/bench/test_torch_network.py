"""A .tflite in PyTorch, if it is installed."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from jaxdelegate.model.records import read_model
from jaxdelegate.op_lowering.options import (
    ConcatenationOptions,
    Conv2DOptions,
    DepthwiseConv2DOptions,
    Padding,
    Pool2DOptions,
    ReducerOptions,
    ResizeBilinearOptions,
)
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.running import random_inputs, run_once
from tests.support.attention_networks import bert_small
from tests.support.networks import mobilenet_v2, small_classifier

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.litert
RELU6 = ActivationFunctionType.RELU6


@dataclasses.dataclass
class Layers:
    """A chain of operators."""

    builder: ModelBuilder
    rng: np.random.Generator
    x: int
    shape: tuple[int, ...]

    def then(self, name: str, shape: tuple[int, ...], options: Any, *constants: np.ndarray) -> None:
        inputs = [self.x, *(self.builder.constant(c) for c in constants)]
        self.x, self.shape = self.builder.tensor(shape), shape
        self.builder.operator(name, inputs, [self.x], options)

    def random(self, *shape: int) -> np.ndarray:
        return self.rng.normal(size=shape).astype(np.float32)


def layers() -> bytes:
    builder = ModelBuilder()
    net = Layers(builder, np.random.default_rng(0), builder.input((1, 11, 9, 3), np.float32), ())
    two = Conv2DOptions(Padding.SAME, 2, 2, RELU6)
    net.then("CONV_2D", (1, 6, 5, 8), two, net.random(8, 3, 3, 3), net.random(8))
    wide = Conv2DOptions(Padding.SAME, 1, 1, dilation_w_factor=2, dilation_h_factor=2)
    net.then("CONV_2D", (1, 6, 5, 8), wide, net.random(8, 3, 3, 8), net.random(8))
    own = DepthwiseConv2DOptions(Padding.SAME, 2, 2, 2)
    net.then("DEPTHWISE_CONV_2D", (1, 3, 3, 16), own, net.random(1, 3, 3, 16), net.random(16))
    for kind in ("MAX_POOL_2D", "AVERAGE_POOL_2D"):
        net.then(kind, (1, 3, 3, 16), Pool2DOptions(Padding.SAME, 1, 1, 2, 2))
    net.then("PAD", (1, 4, 6, 16), None, np.array([[0, 0], [1, 0], [1, 2], [0, 0]], np.int32))
    half = ResizeBilinearOptions(half_pixel_centers=True)
    net.then("RESIZE_BILINEAR", (1, 7, 8, 16), half, np.array([7, 8], np.int32))
    net.then("CONCATENATION", (1, 7, 8, 18), ConcatenationOptions(3), net.random(1, 7, 8, 2))
    net.then("HARD_SWISH", (1, 7, 8, 18), None)
    means = builder.tensor((1, 18))
    axes = builder.constant(np.array([1, 2], np.int32))
    builder.operator("MEAN", [net.x, axes], [means], ReducerOptions())
    builder.outputs(net.x, means)
    return builder.build()


@pytest.mark.parametrize("content", [small_classifier, layers])
def test_pytorch_computes_the_model(content: Any) -> None:
    network = pytest.importorskip("torch_network").Network(read_model(content())).eval()
    kernels = OpResolverType.BUILTIN_REF
    stock = Interpreter(model_content=content(), experimental_op_resolver_type=kernels)
    arrays = random_inputs(stock.get_input_details())
    want = run_once(stock, arrays)
    with torch.inference_mode():
        got = network(*map(torch.from_numpy, arrays))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g.numpy(), w, rtol=1e-5, atol=1e-5)


def test_an_operator_without_translation_is_named() -> None:
    builder = ModelBuilder()
    x, y = builder.input((2,), np.float32), builder.tensor((2,))
    builder.operator("SIN", [x], [y])
    builder.outputs(y)
    absent = pytest.importorskip("harness").AbsentError
    with pytest.raises(absent, match="SIN"):
        pytest.importorskip("torch_network").Network(read_model(builder.build()))


@pytest.mark.parametrize("on_device", [False, True])
def test_the_engine_computes_the_model(tmp_path: Path, on_device: bool) -> None:
    agreement, engines = pytest.importorskip("agreement"), pytest.importorskip("engines")
    graph = tmp_path / "model.tflite"
    graph.write_bytes(small_classifier())
    short = np.dtype(np.float16)
    settings = engines.Settings(graph, options={"platform": "cpu"}, short=short)
    arrays = agreement.inputs([{"shape": np.array([1, 16, 16, 3]), "dtype": np.float32}], 2)
    name = "pytorch_on_device" if on_device else "pytorch"
    run = pytest.importorskip("torch_engines").TORCH_ENGINES[name](settings, arrays)
    rule = agreement.judge(graph.read_bytes(), arrays, short)
    outputs = [engines.to_host(y) for y in run(arrays)]
    assert rule.why_not(outputs) is None
    assert rule.error(outputs) > 0  # it computed in float16


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_transformer_is_the_same_in_pytorch(dtype: str) -> None:
    content = bert_small(length=8, layers=1, hidden=16, heads=2, vocabulary=50)
    stock = Interpreter(model_content=content)
    x = random_inputs(stock.get_input_details())
    (want,) = run_once(stock, x)
    network = pytest.importorskip("torch_network").Network(read_model(content)).eval()
    with torch.inference_mode():
        (got,) = network.to(getattr(torch, dtype))(*map(torch.from_numpy, x))
    assert got.dtype == getattr(torch, dtype)
    error = np.abs(got.float().numpy() - want).max()
    assert error < (1e-2 if dtype == "float16" else 1e-5) * np.abs(want).max()


def test_quantized_tensors_are_absent() -> None:
    content = mobilenet_v2(size=32, width=0.25, classes=10, quantized=True)
    with pytest.raises(pytest.importorskip("harness").AbsentError, match="quantized"):
        pytest.importorskip("torch_network").Network(read_model(content))
