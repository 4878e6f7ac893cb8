"""Layers of a .tflite with random weights: `jaxdelegate.testing.ModelBuilder` with shapes."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    AddOptions,
    ConcatenationOptions,
    Conv2DOptions,
    DepthwiseConv2DOptions,
    FullyConnectedOptions,
    Padding,
    ReducerOptions,
    ReshapeOptions,
    ResizeBilinearOptions,
    SoftmaxOptions,
    SubOptions,
    SVDFOptions,
)
from jaxdelegate.testing import ModelBuilder

RELU6, NONE = ActivationFunctionType.RELU6, ActivationFunctionType.NONE


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor of the file: its index, and its shape for one image."""

    index: int
    shape: tuple[int, ...]


class Layers:
    """Adds layers to `builder`; training finds weights by their names."""

    def __init__(self, description: str, seed: int) -> None:
        """Start an empty model; `seed` is for the random weights."""
        self.builder = ModelBuilder(description)
        self._rng = np.random.default_rng(seed)
        self._count = 0

    def image(self, size: int) -> Tensor:
        """The input, float32 [batch, size, size, 3], with a free batch size."""
        shape = (1, size, size, 3)
        index = self.builder.input(shape, np.float32, "image", shape_signature=(-1, *shape[1:]))
        return Tensor(index, shape)

    def contrasts(self, x: Tensor) -> Tensor:
        """The image minus its mean color, and the magnitude of the difference."""
        mean = self._tensor((1, 1, 1, x.shape[3]), self._name("mean"))
        axes = self.builder.constant(np.array([1, 2], np.int32))
        self.builder.operator("MEAN", [x.index, axes], [mean.index], ReducerOptions(keep_dims=True))
        y = self._tensor(x.shape, self._name("centered"))
        self.builder.operator("SUB", [x.index, mean.index], [y.index], SubOptions())
        size = self._tensor(x.shape, self._name("magnitude"))
        self.builder.operator("ABS", [y.index], [size.index])
        both = self._tensor((*x.shape[:3], 2 * x.shape[3]), self._name("contrasts"))
        options = ConcatenationOptions(axis=3)
        self.builder.operator("CONCATENATION", [y.index, size.index], [both.index], options)
        return both

    def conv(
        self,
        x: Tensor,
        filters: int,
        window: int = 3,
        stride: int = 1,
        activation: ActivationFunctionType = RELU6,
    ) -> Tensor:
        """CONV_2D with padding SAME."""
        name, channels = self._name("conv"), x.shape[3]
        weights = self._weights((filters, window, window, channels), window**2 * channels, name)
        bias = self._bias(filters, name)
        y = self._tensor(_strided(x.shape, stride, filters), name)
        options = Conv2DOptions(Padding.SAME, stride, stride, activation)
        self.builder.operator("CONV_2D", [x.index, weights, bias], [y.index], options)
        return y

    def separable(self, x: Tensor, filters: int, stride: int = 1) -> Tensor:
        """DEPTHWISE_CONV_2D of 3 x 3, then CONV_2D of 1 x 1, as in MobileNet."""
        name, channels = self._name("depthwise"), x.shape[3]
        weights = self._weights((1, 3, 3, channels), 9, name)
        y = self._tensor(_strided(x.shape, stride, channels), name)
        options = DepthwiseConv2DOptions(Padding.SAME, stride, stride, 1, RELU6)
        inputs = [x.index, weights, self._bias(channels, name)]
        self.builder.operator("DEPTHWISE_CONV_2D", inputs, [y.index], options)
        return self.conv(y, filters, window=1)

    def enlarged(self, x: Tensor, factor: int = 2, name: str | None = None) -> Tensor:
        """RESIZE_BILINEAR."""
        height, width = factor * x.shape[1], factor * x.shape[2]
        y = self._tensor((1, height, width, x.shape[3]), name or self._name("enlarged"))
        size = self.builder.constant(np.array([height, width], np.int32))
        options = ResizeBilinearOptions(half_pixel_centers=True)
        self.builder.operator("RESIZE_BILINEAR", [x.index, size], [y.index], options)
        return y

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """ADD of two tensors of one shape."""
        y = self._tensor(a.shape, self._name("add"))
        self.builder.operator("ADD", [a.index, b.index], [y.index], AddOptions())
        return y

    def mean(self, x: Tensor, name: str) -> Tensor:
        """The mean over height and width: [batch, channels]."""
        y = self._tensor((1, x.shape[3]), name)
        axes = self.builder.constant(np.array([1, 2], np.int32))
        self.builder.operator("MEAN", [x.index, axes], [y.index], ReducerOptions())
        return y

    def dense(self, x: Tensor, units: int, name: str) -> Tensor:
        """FULLY_CONNECTED without an activation."""
        weights = self._weights((units, x.shape[1]), x.shape[1], name)
        y = self._tensor((1, units), name)
        inputs = [x.index, weights, self._bias(units, name)]
        self.builder.operator("FULLY_CONNECTED", inputs, [y.index], FullyConnectedOptions())
        return y

    def softmax(self, x: Tensor, name: str) -> Tensor:
        """SOFTMAX over the last dimension."""
        y = self._tensor(x.shape, name)
        self.builder.operator("SOFTMAX", [x.index], [y.index], SoftmaxOptions(beta=1.0))
        return y

    def logistic(self, x: Tensor, name: str) -> Tensor:
        """LOGISTIC."""
        y = self._tensor(x.shape, name)
        self.builder.operator("LOGISTIC", [x.index], [y.index])
        return y

    def rows(self, x: Tensor, values: int, name: str) -> Tensor:
        """A map [batch, h, w, n] as [batch, h * w * n / values, values]."""
        count = int(np.prod(x.shape[1:])) // values
        y = self._tensor((1, count, values), name)
        shape = self.builder.constant(np.array([-1, count, values], np.int32))
        options = ReshapeOptions(new_shape=(-1, count, values))
        self.builder.operator("RESHAPE", [x.index, shape], [y.index], options)
        return y

    def svdf(self, x: Tensor, units: int, memory: int) -> Tensor:
        """SVDF of rank 1: each unit weighs its last `memory` values, kept in a variable tensor."""
        name = self._name("svdf")
        inputs = [
            x.index,
            self._weights((units, x.shape[1]), x.shape[1], name),
            self._weights((units, memory), memory, f"{name}/time"),
            self._bias(units, name),
            self.builder.tensor((1, units * memory), name=f"{name}/state", is_variable=True),
        ]
        y = self._tensor((1, units), name)
        options = SVDFOptions(1, ActivationFunctionType.RELU)
        self.builder.operator("SVDF", inputs, [y.index], options)
        return y

    def finished(
        self, given: Tensor, outputs: dict[str, Tensor], given_name: str = "image"
    ) -> bytes:
        """The file, with a signature from the input to the named outputs."""
        self.builder.outputs(*(t.index for t in outputs.values()))
        named = {name: t.index for name, t in outputs.items()}
        self.builder.signature("serving_default", {given_name: given.index}, named)
        return self.builder.build()

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._count}"

    def _tensor(self, shape: Sequence[int], name: str) -> Tensor:
        return Tensor(self.builder.tensor(shape, name=name), tuple(shape))

    def _weights(self, shape: Sequence[int], fan_in: int, name: str) -> int:
        values = self._rng.normal(0, np.sqrt(2 / fan_in), shape)
        return self.builder.constant(values.astype(np.float32), f"{name}/weights")

    def _bias(self, n: int, name: str) -> int:
        return self.builder.constant(np.zeros(n, np.float32), f"{name}/bias")


def _strided(shape: Sequence[int], stride: int, channels: int) -> tuple[int, ...]:
    return 1, -(-shape[1] // stride), -(-shape[2] // stride), channels
