"""A quantized network with random weights, built in memory: for examples and tests."""

from collections.abc import Sequence

import numpy as np

from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    AddOptions,
    Conv2DOptions,
    DepthwiseConv2DOptions,
    FullyConnectedOptions,
    Options,
    Padding,
    Pool2DOptions,
    ReshapeOptions,
    SoftmaxOptions,
)
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing.builder import ModelBuilder
from jaxdelegate.testing.quantized import scaled

_RELU6 = ActivationFunctionType.RELU6
_IMAGE = scaled(1 / 128)
_FEATURES = scaled(6 / 255, -128)  # what RELU6 leaves
_LOGITS = scaled(0.1)
_PROBABILITIES = scaled(1 / 256, -128)  # the only one that SOFTMAX has

# Of operators on int8 with scales per channel; of the others it is 2.
_VERSIONS = {"CONV_2D": 3, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 4, "RESHAPE": 1}


def quantized_classifier(*, seed: int = 0) -> bytes:
    """An image classifier in int8 with a residual ADD and weights' scales per channel.

    Images [1, 32, 32, 3] to probabilities [1, 10], both int8.

    Args:
        seed: of the random weights.

    Returns:
        The file's content: 8 operators.
    """
    net = _Quantized(seed)
    x = net.builder.input((1, 32, 32, 3), np.int8, "image", quantization=_IMAGE)
    one, two = (Conv2DOptions(Padding.SAME, stride, stride, _RELU6) for stride in (1, 2))
    depthwise = DepthwiseConv2DOptions(Padding.SAME, 1, 1, 1, _RELU6)
    x = net.layer("CONV_2D", x, (16, 3, 3, 3), (1, 16, 16, 16), two)
    y = net.layer("DEPTHWISE_CONV_2D", x, (1, 3, 3, 16), (1, 16, 16, 16), depthwise, axis=3)
    y = net.layer("CONV_2D", y, (16, 1, 1, 16), (1, 16, 16, 16), one)
    y = net.operator("ADD", [x, y], (1, 16, 16, 16), AddOptions(_RELU6))
    pool = Pool2DOptions(Padding.VALID, 1, 1, 16, 16)
    y = net.operator("AVERAGE_POOL_2D", [y], (1, 1, 1, 16), pool)
    y = net.operator("RESHAPE", [y], (1, 16), ReshapeOptions((1, 16)))
    y = net.layer("FULLY_CONNECTED", y, (10, 16), (1, 10), FullyConnectedOptions(), _LOGITS)
    y = net.operator("SOFTMAX", [y], (1, 10), SoftmaxOptions(1.0), _PROBABILITIES)
    net.builder.outputs(y)
    return net.builder.build()


class _Quantized:
    """Operators on int8; results have RELU6's range unless said otherwise."""

    def __init__(self, seed: int) -> None:
        self.builder = ModelBuilder("int8, random weights")
        self._rng = np.random.default_rng(seed)
        self._scales: dict[int, Quantization] = {}

    def operator(
        self,
        name: str,
        inputs: Sequence[int],
        shape: Sequence[int],
        options: Options,
        quantization: Quantization = _FEATURES,
    ) -> int:
        y = self.builder.tensor(shape, np.int8, quantization=quantization)
        self._scales[y] = quantization
        self.builder.operator(name, inputs, [y], options, version=_VERSIONS.get(name, 2))
        return y

    def layer(
        self,
        name: str,
        x: int,
        weights: Sequence[int],
        shape: Sequence[int],
        options: Options,
        quantization: Quantization = _FEATURES,
        *,
        axis: int = 0,
    ) -> int:
        """An operator with weights, one scale for each place along `axis`, and a bias."""
        others = tuple(i for i in range(len(weights)) if i != axis)
        fan_in = np.prod([weights[i] for i in others])
        w = self._rng.normal(0, np.sqrt(2 / fan_in), weights)
        per_channel = scaled(abs(w).max(others) / 127, axis=axis)
        spread = [-1 if i == axis else 1 for i in range(len(weights))]
        stored = np.rint(w / per_channel.scale.reshape(spread)).astype(np.int8)
        of_products = self._scales.get(x, _IMAGE).scale * per_channel.scale
        bias = np.rint(self._rng.normal(0, 0.1, of_products.shape) / of_products).astype(np.int32)
        operands = [
            self.builder.constant(stored, quantization=per_channel),
            self.builder.constant(bias, quantization=scaled(of_products)),
        ]
        return self.operator(name, [x, *operands], shape, options, quantization)
