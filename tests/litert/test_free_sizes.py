"""Models whose inputs have free sizes: stock interpreters apply delegates before any resize."""

import logging
from collections.abc import Callable

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

import jaxdelegate as jd
from jaxdelegate.measuring.tolerance import NETWORK
from jaxdelegate.op_lowering.options import (
    ConcatenationOptions,
    Conv2DOptions,
    MulOptions,
    Options,
    ResizeNearestNeighborOptions,
    ShapeOptions,
    TensorType,
    TransposeConvOptions,
)
from jaxdelegate.testing import ModelBuilder, assert_close
from jaxdelegate.testing.running import run_once

Stock = Callable[..., Interpreter]
pytestmark = pytest.mark.litert


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "jaxdelegate")


class UNet:
    """One step down, one up by sizes computed at run time, and the input next to the result."""

    def __init__(self, *, is_transposed: bool, signature: tuple[int, ...]) -> None:
        self.is_transposed, self.signature = is_transposed, signature
        self.builder = ModelBuilder()
        self.random = np.random.default_rng(0)

    def build(self) -> bytes:
        builder = self.builder
        x = builder.input((1, 1, 1, 3), name="x", shape_signature=self.signature)
        down = self._tensor(16)
        filters = self._weights(16, 3, 3, 3)
        options = Conv2DOptions(stride_w=2, stride_h=2)
        builder.operator("CONV_2D", [x, filters, self._weights(16)], [down], options)
        up, joined, y = self._tensor(16), self._tensor(19), self._tensor(4)
        if self.is_transposed:
            self._transposed(down, up)
        else:
            self._resized(down, up)
        builder.operator("CONCATENATION", [up, x], [joined], ConcatenationOptions(3))
        options = Conv2DOptions(stride_w=1, stride_h=1)
        weights = [self._weights(4, 3, 3, 19), self._weights(4)]
        builder.operator("CONV_2D", [joined, *weights], [y], options)
        builder.outputs(y)
        return builder.build()

    def _resized(self, x: int, y: int) -> None:
        size = self._part(self._shape(x), 1, 2)
        twice = self._integers("MUL", [size, self._constant(2)], 2, MulOptions())
        options = ResizeNearestNeighborOptions()
        self.builder.operator("RESIZE_NEAREST_NEIGHBOR", [x, twice], [y], options)

    def _transposed(self, x: int, y: int) -> None:
        factors = self._constant(1, 2, 2, 1)
        shape = self._integers("MUL", [self._shape(x), factors], 4, MulOptions())
        options = TransposeConvOptions(stride_w=2, stride_h=2)
        self.builder.operator(
            "TRANSPOSE_CONV", [shape, self._weights(16, 2, 2, 16), x], [y], options
        )

    def _shape(self, x: int) -> int:
        return self._integers("SHAPE", [x], 4, ShapeOptions(TensorType.INT32))

    def _part(self, vector: int, start: int, size: int) -> int:
        return self._integers("SLICE", [vector, self._constant(start), self._constant(size)], size)

    def _integers(
        self, name: str, inputs: list[int], size: int, options: Options | None = None
    ) -> int:
        y = self.builder.tensor((size,), np.int32)
        self.builder.operator(name, inputs, [y], options)
        return y

    def _constant(self, *values: int) -> int:
        return self.builder.constant(np.array(values, np.int32))

    def _weights(self, *shape: int) -> int:
        return self.builder.constant(self.random.normal(size=shape).astype(np.float32))

    def _tensor(self, channels: int) -> int:
        return self.builder.tensor(
            (1, 1, 1, channels), shape_signature=(*self.signature[:3], channels)
        )


@pytest.mark.parametrize("signature", [(1, -1, -1, 3), (-1, -1, -1, 3)], ids=str)
@pytest.mark.parametrize("is_transposed", [False, True], ids=["resize", "transpose_conv"])
def test_a_u_net_of_free_size_is_delegated_whole(
    stock: Stock, is_transposed: bool, signature: tuple[int, ...]
) -> None:
    content = UNet(is_transposed=is_transposed, signature=signature).build()
    delegate = jd.JaxDelegate()
    interpreter, plain = stock(content, [delegate]), stock(content)
    for batch, height, width in ((1, 128, 96), (1, 64, 64), (1, 128, 96), (2, 8, 6)):
        if batch == signature[0] or signature[0] < 0:
            x = np.random.default_rng(1).normal(size=(batch, height, width, 3)).astype(np.float32)
            assert_close(run_once(interpreter, [x]), run_once(plain, [x]), tolerance=NETWORK)
    assert not delegate.report().left


def test_an_operator_that_refuses_likely_sizes_leaves_the_declared_ones(stock: Stock) -> None:
    """The sum only has a shape where the free size is 1 or the constant's."""
    builder = ModelBuilder()
    x = builder.input((1, 1), name="x", shape_signature=(1, -1))
    y = builder.tensor((1, 5), name="y")
    builder.operator("ADD", [x, builder.constant(np.arange(5, dtype=np.float32)[None])], [y])
    builder.outputs(y)
    delegate = jd.JaxDelegate(min_gain=0)
    interpreter = stock(builder.build(), [delegate])
    for size in (1, 5):
        x_value = np.ones((1, size), np.float32)
        assert_close(run_once(interpreter, [x_value]), [np.arange(5, dtype=np.float32)[None] + 1])
    assert not delegate.report().left
