"""Small models of which a test knows what they compute."""

import numpy as np

from jaxdelegate.op_lowering.options import (
    Conv2DOptions,
    FullyConnectedOptions,
    Padding,
    RandomOptions,
    ReshapeOptions,
    SplitOptions,
)
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.builder import SubgraphBuilder
from tests.support import quantized

RNG = np.random.default_rng(7)
FILTER = RNG.normal(size=(4, 3, 3, 2)).astype(np.float32)
HEAD = RNG.normal(size=(5, 36)).astype(np.float32)


def classifier(*, first: int = 1, fixed: bool = True, signature: bool = False) -> bytes:
    """Images [1, 3, 3, 2] -> convolution -> RESHAPE to [first, -1] or [first, 36] -> scores."""
    builder = ModelBuilder()
    x = builder.input((1, 3, 3, 2), np.float32, "image")
    w, b = builder.constant(FILTER, "filter"), builder.constant(np.ones(4, np.float32), "bias")
    features = builder.tensor((1, 3, 3, 4), name="features")
    options = Conv2DOptions(padding=Padding.SAME, stride_h=1, stride_w=1)
    builder.operator("CONV_2D", [x, w, b], [features], options)
    rows = (first, 36 if fixed else -1)
    flat = builder.tensor((1, 36), name="flat")
    shape = builder.constant(np.array(rows, np.int32), "shape")
    builder.operator("RESHAPE", [features, shape], [flat], ReshapeOptions(new_shape=rows))
    head, scores = builder.constant(HEAD, "head"), builder.tensor((1, 5), name="scores")
    builder.operator("FULLY_CONNECTED", [flat, head, None], [scores], FullyConnectedOptions())
    builder.outputs(scores)
    if signature:
        builder.signature("classify", {"picture": x}, {"logits": scores})
    return builder.build()


def anchors() -> bytes:
    """Like a detector's boxes: [1, 2, 2, 6] -> RESHAPE [1, -1, 3], which mixes the images."""
    builder = ModelBuilder()
    x = builder.input((1, 2, 2, 6), np.float32, "map")
    boxes, doubled = builder.tensor((1, 8, 3), name="boxes"), builder.tensor((1, 8, 3), name="y")
    shape = builder.constant(np.array((1, -1, 3), np.int32))
    builder.operator("RESHAPE", [x, shape], [boxes], ReshapeOptions(new_shape=(1, -1, 3)))
    builder.operator("ADD", [boxes, boxes], [doubled])
    builder.outputs(doubled)
    return builder.build()


def softmax_over_images() -> bytes:
    """[1, 4] -> TRANSPOSE -> SOFTMAX -> TRANSPOSE: right shapes for any batch, wrong values."""
    builder = ModelBuilder()
    x = builder.input((1, 4), np.float32, "x")
    order = builder.constant(np.array([1, 0], np.int32))
    turned, soft = builder.tensor((4, 1)), builder.tensor((4, 1))
    y = builder.tensor((1, 4), name="y")
    builder.operator("TRANSPOSE", [x, order], [turned])
    builder.operator("SOFTMAX", [turned], [soft])
    builder.operator("TRANSPOSE", [soft, order], [y])
    builder.outputs(y)
    return builder.build()


def scaled() -> bytes:
    """images [1, 4] times a scalar, and an output [3] that does not depend on the images."""
    builder = ModelBuilder()
    x, factor = builder.input((1, 4), np.float32, "x"), builder.input((), np.float32, "factor")
    y, z = builder.tensor((1, 4), name="y"), builder.tensor((3,), name="z")
    builder.operator("MUL", [x, factor], [y])
    ones = builder.constant(np.arange(3, dtype=np.float32))
    builder.operator("MUL", [ones, factor], [z])
    builder.outputs(y, z)
    return builder.build()


def noisy() -> bytes:
    """x [1, 5] plus RANDOM_UNIFORM."""
    builder = ModelBuilder()
    shape = builder.constant(np.array([1, 5], np.int32))
    x, noise = builder.input((1, 5), np.float32, "x"), builder.tensor((1, 5), name="noise")
    y = builder.tensor((1, 5), name="y")
    builder.operator("RANDOM_UNIFORM", [shape], [noise], RandomOptions(seed=3, seed2=7))
    builder.operator("ADD", [x, noise], [y])
    builder.outputs(y)
    return builder.build()


def shared_weights() -> bytes:
    """Two signatures, each with its own subgraph, that share one float16 buffer."""
    builder = ModelBuilder()
    w = np.linspace(-1, 1, 12).astype(np.float16).reshape(3, 4)
    half = builder.constant(w, "kernel")
    kernel = builder._t.tensors[half].buffer

    def layer(graph: SubgraphBuilder, half: int, operator: str) -> tuple[int, int]:
        x, wide = graph.input((1, 4), name="x"), graph.tensor((3, 4), name="wide")
        y, z = graph.tensor((1, 3)), graph.tensor((1, 3), name="z")
        graph.operator("DEQUANTIZE", [half], [wide])
        graph.operator("FULLY_CONNECTED", [x, wide, None], [y], FullyConnectedOptions())
        graph.operator(operator, [y], [z])
        graph.outputs(z)
        return x, z

    x, z = layer(builder, half, "RELU")
    builder.signature("relu", {"x": x}, {"z": z})
    other = builder.subgraph("other")
    again = other.tensor((3, 4), np.float16, "kernel_again")
    other._t.tensors[again].buffer = kernel
    x, z = layer(other, again, "TANH")
    builder.signature("tanh", {"x": x}, {"z": z}, subgraph=1)
    return builder.build()


def integers() -> bytes:
    """int8 in and out: y = x W^T + b, W int8 per channel, b int32."""
    builder = ModelBuilder()
    q = Quantization(np.array([0.05], np.float32), np.array([-3], np.int64))
    out = Quantization(np.array([0.1], np.float32), np.array([5], np.int64))
    scales = np.array([0.01, 0.02, 0.03], np.float32)
    channels = Quantization(scales, np.zeros(3, np.int64), 0)
    bias = Quantization(scales * np.float32(0.05), np.zeros(3, np.int64), 0)
    rng = np.random.default_rng(2)
    x = builder.input((1, 4), np.int8, "x", quantization=q)
    w = builder.constant(rng.integers(-127, 128, (3, 4), np.int8), "w", quantization=channels)
    b = builder.constant(np.array([100, -200, 300], np.int32), "b", quantization=bias)
    y = builder.tensor((1, 3), np.int8, "y", quantization=out)
    builder.operator("FULLY_CONNECTED", [x, w, b], [y], FullyConnectedOptions(), version=5)
    builder.outputs(y)
    return builder.build()


def shared_zeros() -> bytes:
    """int8: two FULLY_CONNECTED [1, 2] -> [1, 2] with other scales and one bias of zeros."""
    builder, x_scale, y_scale = ModelBuilder(), quantized.scaled(0.1), quantized.scaled(2)
    x = builder.input((1, 2), np.int8, "x", quantization=x_scale)
    zeros = np.zeros(2, np.int32)
    bias = builder.constant(zeros, "bias", quantization=quantized.scaled([0.01, 0.02]))
    for i, scale in enumerate((0.1, 0.3)):
        w = np.array([[10, 20], [-30, 40]], np.int8)
        q = quantized.scaled([scale, 2 * scale])
        kernel = builder.constant(w + i, f"w{i}", quantization=q)
        y = builder.tensor((1, 2), np.int8, f"y{i}", quantization=y_scale)
        inputs = [x, kernel, bias]
        builder.operator("FULLY_CONNECTED", inputs, [y], FullyConnectedOptions(), version=5)
        x = y
    builder.outputs(x)
    return builder.build()


def halves() -> bytes:
    """SPLIT of x [4] into a and b, then their sum y [2]."""
    builder = ModelBuilder()
    x, axis = builder.input((4,), name="x"), builder.constant(np.array(0, np.int32))
    a, b, y = (builder.tensor((2,), name=name) for name in "aby")
    builder.operator("SPLIT", [axis, x], [a, b], SplitOptions(num_splits=2))
    builder.operator("ADD", [a, b], [y])
    builder.outputs(y)
    return builder.build()
