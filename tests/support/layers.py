"""Layers with random weights: more than the demo's, in float32 and in int8."""

from collections.abc import Sequence

import numpy as np

from jaxdelegate.demo.layers import LINEAR, RECTIFIED, RELU6, Layers, Shape
from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    AddOptions,
    FullyConnectedOptions,
    Padding,
    Pool2DOptions,
    ReducerOptions,
)
from jaxdelegate.quant.params import Quantization
from tests.support.quantized import scaled

# As RECTIFIED, for layers without activation and for those whose result an ADD adds: sums must not
# double with each residual block.
UNCHANGED, BRANCH = 1.0, 0.25


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
        quantization = scaled(1 / 127)
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
        quantization = scaled(scale, zero_point)
        index = self.builder.tensor(shape, np.int8, name, quantization=quantization)
        self._scales[index] = quantization.scale
        return index
