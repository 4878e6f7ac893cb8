"""Dynamic range convolutions: float32 images, quantized on the fly, by integer filters.

HybridConvPerChannel of kernels/internal/reference/conv.h, EvalHybrid of kernels/conv.cc,
DepthwiseConvHybridPerChannel of integer_ops/depthwise_conv.h, HybridTransposeConv of
transpose_conv.h, which adds up floats.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.convolution.reference_quantized import Run, Sums
from jaxdelegate.quant.params import channel_scales
from jaxdelegate.reference.kernel import Array
from jaxdelegate.reference.products import quantize_rows, signed
from jaxdelegate.reference.quantization import quantization_of
from jaxdelegate.reference.window import clamp, require_floats

# Adds, in place, the products of pixels [N, *in, I] and one tap of the filter, [O, I], to
# [N, *in, O].
Add = Callable[[Array, Array, Array], None]
Scatter = Callable[[Array, Array, Add], Array]  # image, filter, for each tap -> [N, *out, O]


def convolution(
    run: Run,
    sums: Sums,
    *,
    filters: tuple[Any, ...] = (np.int8,),
    symmetric: bool = False,
    in_turn: bool = False,
) -> tuple[Array]:
    """Each image, float32 [N, *spatial, C], has its own scale, and zero point if not `symmetric`.

    `filters` are the dtypes that the kernel supports. `in_turn`: sums are scaled by the filter,
    then by the image, not by the scales' product.
    """
    integers, scale, each = _quantized(run, filters=filters, symmetric=symmetric)
    total = sums(integers, signed(run.w).astype(np.float64)).reshape(run.outputs[0].shape)
    y = total.astype(np.float32)
    return _finish(run, y * each * scale if in_turn else y * (scale * each))


def transposed(run: Run, scatter: Scatter) -> tuple[Array]:
    """Products are scaled one by one and added up in float32, by pixel and channel."""
    integers, scale, each = _quantized(run, filters=(np.int8,))

    def add(y: Array, x: Array, w: Array) -> None:
        for pixels, weights in zip(np.moveaxis(x, -1, 0), w.T, strict=True):
            y += pixels[..., np.newaxis] * weights * each * scale

    return _finish(run, scatter(integers.astype(np.float32), run.w.astype(np.float32), add))


def _quantized(
    run: Run, *, filters: tuple[Any, ...], symmetric: bool = False
) -> tuple[Array, Array, Array]:
    """The images as integers without zero point; their scales [N, 1, ..., 1]; the filters' [O]."""
    (x_spec, w_spec, *bias), x = run.inputs, run.x
    require_floats(run.name, x_spec, *bias, *run.outputs)
    each = channel_scales(quantization_of(run.name, w_spec, *filters), run.outputs[0].shape[-1])
    rows = x.reshape(len(x), math.prod(x.shape[1:]))
    q, scale, zero = quantize_rows(rows, asymmetric=not symmetric)
    integers = (q.astype(np.float64) - zero[:, None]).reshape(x.shape)
    return integers, scale.reshape(-1, *(1,) * (x.ndim - 1)), each


def _finish(run: Run, y: Array) -> tuple[Array]:
    if run.b is not None:
        y = y + run.b.reshape(-1)
    return (clamp(run.o.fused_activation_function, y).astype(run.outputs[0].dtype),)
