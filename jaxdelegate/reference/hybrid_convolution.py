"""Hybrid convolutions: float32 images, quantized on the fly, by integer filters.

HybridConvPerChannel of kernels/internal/reference/conv.h, EvalHybrid of kernels/conv.cc,
DepthwiseConvHybridPerChannel of integer_ops/depthwise_conv.h, HybridTransposeConv of
transpose_conv.h, which adds up floats.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.spec import Specs
from jaxdelegate.quant.affine import asymmetric_quantize, symmetric_quantize
from jaxdelegate.quant.params import channel_scales
from jaxdelegate.reference.kernel import Array
from jaxdelegate.reference.quantized_checks import quantization_of
from jaxdelegate.reference.window import clamp, require_floats

Sums = Callable[[Array, Array], Array]  # image and filter, padded with zeros -> [N, *out, O]


def convolution(
    name: str,
    sums: Sums,
    o: Any,
    inputs: Specs,
    outputs: Specs,
    x: Array,
    w: Array,
    b: Array | None,
    *,
    filters: tuple[Any, ...] = (np.int8,),
    symmetric: bool = False,
) -> tuple[Array]:
    """Each image has a scale, and without `symmetric` a zero point, of its own.

    Args:
        name: the operator.
        sums: its sums of products, over real numbers.
        o: its options.
        inputs: image, filter and perhaps bias.
        outputs: the output.
        x: the image, float32 [N, *spatial, C].
        w: the filter, as the file stores it.
        b: the bias, float32 [O].
        filters: which dtypes the kernel takes.
        symmetric: the zero points are 0.

    Raises:
        TypeError: a tensor of another dtype, or a filter without scales.
    """
    require_floats(name, inputs[0], *inputs[2:], *outputs)
    scales = quantization_of(name, inputs[1], *filters)
    rows = x.reshape(len(x), -1)
    q, scale, zero = (*symmetric_quantize(rows), 0) if symmetric else asymmetric_quantize(rows)
    each = (-1, *(1,) * (x.ndim - 1))
    integers = q.astype(np.float64) - np.reshape(zero, (-1, 1))
    total = sums(integers.reshape(x.shape), signed(w).astype(np.float64))
    total = total.reshape(outputs[0].shape).astype(np.float32)
    y = total * (scale.reshape(each) * channel_scales(scales, total.shape[-1]))
    if b is not None:
        y = y + b.reshape(-1)
    return (clamp(o.fused_activation_function, y).astype(outputs[0].dtype),)


def signed(w: Array) -> Array:
    """A stored filter as int8; the kernels read the bytes of an uint8 one as signed ones."""
    return w.view(np.int8) if w.dtype == np.uint8 else w.astype(np.int8)
