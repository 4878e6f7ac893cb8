"""Layers with random weights whose activations stay near unit size, in float32 and in int8."""

from collections.abc import Sequence

import numpy as np

from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    AddOptions,
    Conv2DOptions,
    DepthwiseConv2DOptions,
    FullyConnectedOptions,
    Padding,
    Pool2DOptions,
    ReducerOptions,
    SoftmaxOptions,
)
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing.builder import ModelBuilder
from tests.support import quantized

Shape = tuple[int, int, int, int]
LINEAR = ActivationFunctionType.NONE
RELU6 = ActivationFunctionType.RELU6

# The variance of a layer's weights, times how many there are for one output: a rectified layer cuts
# off half of what it computes (He et al. 2015).
RECTIFIED = 2.0


def scaled(channels: int, width: float) -> int:
    """Channels by a width multiplier, eight at least."""
    return max(8, int(channels * width))


# The same for layers without activation and for those whose result an ADD adds: sums must not
# double with each residual block.
UNCHANGED, BRANCH = 1.0, 0.25


class Layers:
    """Builds a float32 network layer by layer; images are [1, height, width, channels]."""

    def __init__(self, seed: int, description: str = "random weights") -> None:
        self.builder = ModelBuilder(description)
        self._rng = np.random.default_rng(seed)
        self._count = 0

    def image(self, size: int) -> tuple[int, Shape]:
        """The input `input`, values -1 to 1, whose batch is open."""
        shape, signature = (1, size, size, 3), (-1, size, size, 3)
        return self._input(shape, signature), shape

    def convolution(
        self,
        x: int,
        shape: Shape,
        filters: int,
        window: int,
        stride: int,
        activation: ActivationFunctionType = RELU6,
        *,
        dilation: int = 1,
        gain: float = RECTIFIED,
    ) -> tuple[int, Shape]:
        """CONV_2D with padding SAME."""
        name, channels = self._layer("conv"), shape[3]
        fan_in = window * window * channels
        w = self._weights((filters, window, window, channels), fan_in, f"{name}/weights", gain)
        options = Conv2DOptions(
            Padding.SAME,
            stride,
            stride,
            activation,
            dilation_w_factor=dilation,
            dilation_h_factor=dilation,
        )
        out = (1, -(-shape[1] // stride), -(-shape[2] // stride), filters)
        y = self._output(out, name, activation)
        bias = self._bias(filters, f"{name}/bias", x, w)
        self.builder.operator("CONV_2D", [x, w, bias], [y], options)
        return y, out

    def depthwise(
        self, x: int, shape: Shape, stride: int, *, dilation: int = 1
    ) -> tuple[int, Shape]:
        """DEPTHWISE_CONV_2D by 3x3 with padding SAME and RELU6."""
        name, channels = self._layer("depthwise"), shape[3]
        w = self._weights((1, 3, 3, channels), 9, f"{name}/weights", axis=3)
        options = DepthwiseConv2DOptions(
            padding=Padding.SAME,
            stride_w=stride,
            stride_h=stride,
            depth_multiplier=1,
            fused_activation_function=RELU6,
            dilation_w_factor=dilation,
            dilation_h_factor=dilation,
        )
        out = (1, -(-shape[1] // stride), -(-shape[2] // stride), channels)
        y = self._output(out, name, RELU6)
        bias = self._bias(channels, f"{name}/bias", x, w)
        self.builder.operator("DEPTHWISE_CONV_2D", [x, w, bias], [y], options)
        return y, out

    def average_pool(self, x: int, shape: Shape) -> tuple[int, Shape]:
        """The mean of each channel, [1, 1, 1, channels]."""
        options = Pool2DOptions(Padding.VALID, 1, 1, shape[2], shape[1])
        out = (1, 1, 1, shape[3])
        y = self.builder.tensor(out, name="pool")
        self.builder.operator("AVERAGE_POOL_2D", [x], [y], options)
        return y, out

    def softmax(self, x: int, classes: int) -> int:
        """Probabilities [1, classes]: the model's output and its signature."""
        y = self._probabilities((1, classes))
        self.builder.operator("SOFTMAX", [x], [y], SoftmaxOptions(beta=1.0))
        self.builder.outputs(y)
        self.builder.signature("serving_default", {"input": 0}, {"probabilities": y})
        return y

    def _layer(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._count}"

    def _random(self, shape: Sequence[int], fan_in: int, gain: float) -> np.ndarray:
        return self._rng.normal(0, np.sqrt(gain / fan_in), shape).astype(np.float32)

    # ---- what differs by dtype

    def _input(self, shape: Shape, signature: Shape) -> int:
        return self.builder.input(shape, np.float32, "input", shape_signature=signature)

    def _weights(
        self,
        shape: Sequence[int],
        fan_in: int,
        name: str,
        gain: float = RECTIFIED,
        *,
        axis: int | None = 0,  # noqa: ARG002  that of output channels; None: one scale for all
    ) -> int:
        return self.builder.constant(self._random(shape, fan_in, gain), name)

    def _bias(self, n: int, name: str, _x: int, _w: int) -> int:
        return self.builder.constant(self._rng.normal(0, 0.1, n).astype(np.float32), name)

    def _output(self, shape: Sequence[int], name: str, _activation: ActivationFunctionType) -> int:
        return self.builder.tensor(shape, name=name)

    def _probabilities(self, shape: Sequence[int]) -> int:
        return self.builder.tensor(shape, name="probabilities")


class MoreLayers(Layers):
    """Adds what residual networks and classifiers need."""

    def max_pool(self, x: int, shape: Shape, window: int, stride: int) -> tuple[int, Shape]:
        """MAX_POOL_2D with padding SAME; float32 only."""
        options = Pool2DOptions(Padding.SAME, stride, stride, window, window)
        out = (1, -(-shape[1] // stride), -(-shape[2] // stride), shape[3])
        y = self.builder.tensor(out, name=self._layer("max_pool"))
        self.builder.operator("MAX_POOL_2D", [x], [y], options)
        return y, out

    def features(self, x: int, shape: Shape) -> int:
        """The mean of each channel, [1, channels]."""
        axes = self.builder.constant(np.array([1, 2], np.int32), "features/axes")
        y = self._output((1, shape[3]), "features", RELU6)
        self.builder.operator("MEAN", [x, axes], [y], ReducerOptions(keep_dims=False))
        return y

    def add(self, a: int, b: int, shape: Shape, activation: ActivationFunctionType = LINEAR) -> int:
        y = self._output(shape, self._layer("add"), activation)
        self.builder.operator("ADD", [a, b], [y], AddOptions(activation))
        return y

    def fully_connected(
        self, x: int, channels: int, output_channels: int, activation: ActivationFunctionType
    ) -> int:
        """[1, channels] to [1, output_channels]."""
        name = self._layer("dense")
        w = self._weights((output_channels, channels), channels, f"{name}/weights", axis=None)
        y = self._output((1, output_channels), name, activation)
        bias = self._bias(output_channels, f"{name}/bias", x, w)
        self.builder.operator(
            "FULLY_CONNECTED", [x, w, bias], [y], FullyConnectedOptions(activation)
        )
        return y


class Int8Layers(MoreLayers):
    """An int8 network by TFLite's quantization specification, with int8 inputs and outputs.

    Ranges need no calibration, since activations are near unit size by construction: 0 to 6 after
    RELU6, -8 to 8 elsewhere. Filters have a scale for each output channel, matrices a single one.
    """

    _LARGEST = 8.0

    def __init__(self, seed: int, description: str = "random weights, int8") -> None:
        super().__init__(seed, description)
        self._scales: dict[int, np.ndarray] = {}

    def _input(self, shape: Shape, signature: Shape) -> int:
        quantization = quantized.scaled(1 / 127)
        x = self.builder.input(
            shape, np.int8, "input", shape_signature=signature, quantization=quantization
        )
        self._scales[x] = quantization.scale
        return x

    def _weights(
        self,
        shape: Sequence[int],
        fan_in: int,
        name: str,
        gain: float = RECTIFIED,
        *,
        axis: int | None = 0,
    ) -> int:
        values = self._random(shape, fan_in, gain)
        others = tuple(i for i in range(values.ndim) if i != axis)
        scale = np.abs(values).max(axis=others, keepdims=True) / 127
        integers = np.rint(values / scale).astype(np.int8)
        points = np.zeros(scale.size, np.int64)
        quantization = Quantization(scale.ravel(), points, axis or 0)
        index = self.builder.constant(integers, name, quantization=quantization)
        self._scales[index] = scale.ravel()
        return index

    def _bias(self, n: int, name: str, x: int, w: int) -> int:
        scale = self._scales[x] * self._scales[w]
        integers = np.rint(self._rng.normal(0, 0.1, n) / scale).astype(np.int32)
        quantization = Quantization(scale.astype(np.float32), np.zeros(scale.size, np.int64))
        return self.builder.constant(integers, name, quantization=quantization)

    def _output(self, shape: Sequence[int], name: str, activation: ActivationFunctionType) -> int:
        if activation == RELU6:
            return self._quantized(shape, name, 6 / 255, -128)
        return self._quantized(shape, name, self._LARGEST / 127, 0)

    def _probabilities(self, shape: Sequence[int]) -> int:
        return self._quantized(shape, "probabilities", 1 / 256, -128)  # as SOFTMAX requires

    def _quantized(self, shape: Sequence[int], name: str, scale: float, zero_point: int) -> int:
        quantization = quantized.scaled(scale, zero_point)
        index = self.builder.tensor(shape, np.int8, name, quantization=quantization)
        self._scales[index] = quantization.scale
        return index
