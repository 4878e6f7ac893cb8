"""Real architectures with random weights, built in memory: for demo, tests and benches."""

from collections.abc import Sequence

import numpy as np

from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    Conv2DOptions,
    DepthwiseConv2DOptions,
    FullyConnectedOptions,
    Padding,
    Pool2DOptions,
    ReshapeOptions,
    SoftmaxOptions,
)
from jaxdelegate.testing.builder import ModelBuilder

# Filters and stride of each depthwise-separable block (Howard et al. 2017, table 1).
_MOBILENET_V1_BLOCKS = [
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5,
    (1024, 2), (1024, 1),
]  # fmt: skip
_CLASSES = 1001  # ImageNet and a background class, as TFLite's hosted models


def mobilenet_v1(
    *, size: int = 224, width: float = 1.0, classes: int = _CLASSES, seed: int = 0
) -> bytes:
    """MobileNet v1 as a .tflite, float32: images [1, size, size, 3] to probabilities [1, classes].

    Args:
        size: height and width of the input, a multiple of 32.
        width: the width multiplier of all channels.
        classes: how many classes.
        seed: of the random weights.

    Returns:
        The file's content: 31 operators, about 17 MB at full width.
    """
    net = _Network(seed)
    x = net.builder.input(
        (1, size, size, 3), np.float32, "input", shape_signature=(-1, size, size, 3)
    )
    shape = (1, size, size, 3)
    x, shape = net.convolution(x, shape, _scaled(32, width), 3, 2)
    for filters, stride in _MOBILENET_V1_BLOCKS:
        x, shape = net.depthwise(x, shape, stride)
        x, shape = net.convolution(x, shape, _scaled(filters, width), 1, 1)
    x, shape = net.average_pool(x, shape)
    x, shape = net.convolution(x, shape, classes, 1, 1, ActivationFunctionType.NONE)
    logits = net.builder.tensor((1, classes), name="logits")
    new_shape = net.builder.constant(np.array([-1, classes], np.int32), "logits/shape")
    net.builder.operator(
        "RESHAPE", [x, new_shape], [logits], ReshapeOptions(new_shape=(-1, classes))
    )
    probabilities = net.builder.tensor((1, classes), name="probabilities")
    net.builder.operator("SOFTMAX", [logits], [probabilities], SoftmaxOptions(beta=1.0))
    net.builder.outputs(probabilities)
    net.builder.signature("serving_default", {"input": 0}, {"probabilities": probabilities})
    return net.builder.build()


def broadcast(n: int) -> bytes:
    """[1, 1] to [n, n], by a constant shape: a small file may have a large result."""
    builder = ModelBuilder("broadcast")
    x = builder.input((1, 1), np.float32, "x")
    shape = builder.constant(np.array([n, n], np.int32), "shape")
    y = builder.tensor((n, n), np.float32, "y")
    builder.operator("BROADCAST_TO", [x, shape], [y], version=2)
    builder.outputs(y)
    return builder.build()


def small_classifier(*, seed: int = 0) -> bytes:
    """Every layer of an image classifier once or twice, float32: small enough for any test.

    Images [1, 16, 16, 3] to probabilities [1, 32]; the fully connected layers are 32 and 64 wide,
    so that quantizers can divide their rows into blocks of 32.

    Args:
        seed: of the random weights.

    Returns:
        The file's content: 8 operators and a signature from `input` to `probabilities`.
    """
    net = _Network(seed)
    x = net.builder.input((1, 16, 16, 3), np.float32, "input")
    x, shape = net.convolution(x, (1, 16, 16, 3), 32, 3, 2)
    x, shape = net.depthwise(x, shape, 1)
    x, shape = net.convolution(x, shape, 32, 1, 1)
    x, shape = net.average_pool(x, shape)
    features, new_shape = (1, shape[3]), (-1, shape[3])
    flat = net.builder.tensor(features, name="features")
    target = net.builder.constant(np.array(new_shape, np.int32), "features/shape")
    net.builder.operator("RESHAPE", [x, target], [flat], ReshapeOptions(new_shape=new_shape))
    hidden = net.fully_connected(flat, shape[3], 64, ActivationFunctionType.RELU)
    logits = net.fully_connected(hidden, 64, 32, ActivationFunctionType.NONE)
    probabilities = net.builder.tensor((1, 32), name="probabilities")
    net.builder.operator("SOFTMAX", [logits], [probabilities], SoftmaxOptions(beta=1.0))
    net.builder.outputs(probabilities)
    net.builder.signature("serving_default", {"input": 0}, {"probabilities": probabilities})
    return net.builder.build()


def _scaled(channels: int, width: float) -> int:
    return max(8, int(channels * width))


_Shape = tuple[int, int, int, int]


class _Network:
    """Layers with random weights whose activations stay near unit size."""

    def __init__(self, seed: int) -> None:
        self.builder = ModelBuilder("MobileNet v1, random weights")
        self._rng = np.random.default_rng(seed)
        self._count = 0

    def _weights(self, shape: Sequence[int], fan_in: int, name: str) -> int:
        values = self._rng.normal(0, np.sqrt(2 / fan_in), shape)
        return self.builder.constant(values.astype(np.float32), name)

    def _bias(self, n: int, name: str) -> int:
        return self.builder.constant(self._rng.normal(0, 0.1, n).astype(np.float32), name)

    def _layer(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._count}"

    def convolution(
        self,
        x: int,
        shape: _Shape,
        filters: int,
        window: int,
        stride: int,
        activation: ActivationFunctionType = ActivationFunctionType.RELU6,
    ) -> tuple[int, _Shape]:
        name, channels = self._layer("conv"), shape[3]
        w = self._weights(
            (filters, window, window, channels), window * window * channels, f"{name}/weights"
        )
        options = Conv2DOptions(Padding.SAME, stride, stride, activation)
        out = (1, -(-shape[1] // stride), -(-shape[2] // stride), filters)
        y = self.builder.tensor(out, name=name)
        self.builder.operator("CONV_2D", [x, w, self._bias(filters, f"{name}/bias")], [y], options)
        return y, out

    def depthwise(self, x: int, shape: _Shape, stride: int) -> tuple[int, _Shape]:
        name, channels = self._layer("depthwise"), shape[3]
        w = self._weights((1, 3, 3, channels), 9, f"{name}/weights")
        options = DepthwiseConv2DOptions(
            Padding.SAME, stride, stride, 1, ActivationFunctionType.RELU6
        )
        out = (1, -(-shape[1] // stride), -(-shape[2] // stride), channels)
        y = self.builder.tensor(out, name=name)
        self.builder.operator(
            "DEPTHWISE_CONV_2D", [x, w, self._bias(channels, f"{name}/bias")], [y], options
        )
        return y, out

    def average_pool(self, x: int, shape: _Shape) -> tuple[int, _Shape]:
        options = Pool2DOptions(Padding.VALID, 1, 1, shape[2], shape[1])
        out = (1, 1, 1, shape[3])
        y = self.builder.tensor(out, name="pool")
        self.builder.operator("AVERAGE_POOL_2D", [x], [y], options)
        return y, out

    def fully_connected(
        self, x: int, channels: int, output_channels: int, activation: ActivationFunctionType
    ) -> int:
        """[rows, channels] to [rows, units]."""
        name = self._layer("dense")
        w = self._weights((output_channels, channels), channels, f"{name}/weights")
        y = self.builder.tensor((1, output_channels), name=name)
        self.builder.operator(
            "FULLY_CONNECTED",
            [x, w, self._bias(output_channels, f"{name}/bias")],
            [y],
            FullyConnectedOptions(activation),
        )
        return y
