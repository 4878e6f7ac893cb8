"""Integer pools, as kernels/pooling.cc and reference/integer_ops/pooling.h compute them.

Input and output share their scale, which only the fused activation reads.
"""

from collections.abc import Iterator

import numpy as np

from jaxdelegate.op_lowering.options import Padding, Pool2DOptions
from jaxdelegate.op_lowering.spec import Specs
from jaxdelegate.quant.params import activation_range, integer_range
from jaxdelegate.quant.requantize import clamp
from jaxdelegate.reference.kernel import Array
from jaxdelegate.reference.quantized_checks import quantization_of
from jaxdelegate.reference.window import pad_before, windows

_POOLED = (np.int8, np.uint8, np.int16)


def average_pool_2d(o: Pool2DOptions, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """The mean of what the window reads of the image, halves away from zero.

    Raises:
        TypeError: a dtype other than int8, uint8 and int16, or no scale.
    """
    quantization_of("AVERAGE_POOL_2D", inputs[0], *_POOLED)
    total = sum(_reads(o, x.astype(np.int64), 0))
    count = sum(_reads(o, np.ones((1, *x.shape[1:3], 1), np.int64), 0))
    mean = np.sign(total) * ((np.abs(total) + count // 2) // count)
    return (_activated("AVERAGE_POOL_2D", o, outputs, np.asarray(mean)),)


def max_pool_2d(o: Pool2DOptions, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """The largest value that the window reads.

    Raises:
        TypeError: a dtype other than int8, uint8 and int16, or no scale.
    """
    quantization_of("MAX_POOL_2D", inputs[0], *_POOLED)
    lowest = integer_range(x.dtype)[0]
    largest = np.max(list(_reads(o, x.astype(np.int64), lowest)), axis=0)
    return (_activated("MAX_POOL_2D", o, outputs, largest),)


def _reads(o: Pool2DOptions, x: Array, fill: int) -> Iterator[Array]:
    """What all windows read at each place within them; `fill` outside of the image."""
    sizes, strides = (o.filter_height, o.filter_width), (o.stride_h, o.stride_w)
    dimensions = list(zip(x.shape[1:3], sizes, strides, strict=True))
    out = [_places(o.padding, *dimension) for dimension in dimensions]
    before = [
        pad_before(o.padding, *dimension, places)
        for dimension, places in zip(dimensions, out, strict=True)
    ]
    return (read for _, read in windows(x, out, before, sizes, strides, (1, 1), fill))


def _places(padding: Padding, n: int, size: int, stride: int) -> int:
    return -(-n // stride) if padding is Padding.SAME else max(n + stride - size, 0) // stride


def _activated(name: str, o: Pool2DOptions, outputs: Specs, pooled: Array) -> Array:
    y = outputs[0]
    target = quantization_of(name, y, *_POOLED)
    low, high = activation_range(o.fused_activation_function, target, y.dtype)
    return clamp(pooled, low, high, y.dtype)
