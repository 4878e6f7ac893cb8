"""Layers with random weights whose activations stay near unit size."""

from collections.abc import Sequence

import numpy as np

from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    Conv2DOptions,
    DepthwiseConv2DOptions,
    Padding,
    Pool2DOptions,
    SoftmaxOptions,
)
from jaxdelegate.testing.builder import ModelBuilder

Shape = tuple[int, int, int, int]
LINEAR = ActivationFunctionType.NONE
RELU6 = ActivationFunctionType.RELU6

# The variance of a layer's weights, times how many there are for one output: a rectified layer cuts
# off half of what it computes (He et al. 2015).
RECTIFIED = 2.0


def scaled(channels: int, width: float) -> int:
    """Channels by a width multiplier, eight at least."""
    return max(8, int(channels * width))


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
