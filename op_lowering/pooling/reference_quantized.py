"""Integer pools, as kernels/pooling.cc, pooling3d.cc and reference/integer_ops/pooling.h have them.

Input and output share their scale, which only the fused activation reads. A dimension of the window
is (size, stride, padding before, places).
"""

from collections.abc import Iterator, Sequence

import numpy as np

from jaxdelegate.op_lowering.records.enums import ActivationFunctionType
from jaxdelegate.op_lowering.spec import Specs
from jaxdelegate.quant.params import activation_range, integer_range
from jaxdelegate.quant.requantize import clamp
from jaxdelegate.reference.kernel import Array
from jaxdelegate.reference.quantization import quantization_of
from jaxdelegate.reference.window import windows

_POOLED = (np.int8, np.uint8, np.int16)
_Dimensions = Sequence[tuple[int, int, int, int]]


def average(
    dimensions: _Dimensions,
    activation: ActivationFunctionType,
    inputs: Specs,
    outputs: Specs,
    x: Array,
) -> Array:
    """The mean over each window of [N, *spatial, C], halves away from zero."""
    quantization_of("average pool", inputs[0], *_POOLED)
    total = sum(_reads(dimensions, x.astype(np.int64), 0))
    count = sum(_reads(dimensions, np.ones((1, *x.shape[1:-1], 1), np.int64), 0))
    mean = np.sign(total) * ((np.abs(total) + count // 2) // count)
    return _activated(activation, outputs, np.asarray(mean))


def maximum(
    dimensions: _Dimensions,
    activation: ActivationFunctionType,
    inputs: Specs,
    outputs: Specs,
    x: Array,
) -> Array:
    """The largest value in each window of [N, *spatial, C]."""
    quantization_of("maximum pool", inputs[0], *_POOLED)
    reads = _reads(dimensions, x, integer_range(x.dtype)[0])
    return _activated(activation, outputs, np.max(list(reads), axis=0))


def _reads(dimensions: _Dimensions, x: Array, fill: int) -> Iterator[Array]:
    sizes, strides, before, out = zip(*dimensions, strict=True)
    return (
        read
        for _, read in windows(
            x, out, before, sizes, strides, dilations=[1] * len(sizes), fill=fill
        )
    )


def _activated(activation: ActivationFunctionType, outputs: Specs, pooled: Array) -> Array:
    y = outputs[0]
    target = quantization_of("pool", y, *_POOLED)
    return clamp(pooled, *activation_range(activation, target, y.dtype), y.dtype)
