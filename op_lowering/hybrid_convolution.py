"""Hybrid kernels of CONV_2D, DEPTHWISE_CONV_2D and TRANSPOSE_CONV: float32 images, integer filters.

Each image is quantized on the fly, to int8; sums of integers are scaled back. Sources: EvalHybrid
and EvalHybridPerChannel of kernels/conv.cc, depthwise_conv.cc and transpose_conv.cc.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxdelegate.op_lowering.convolution_ways import Convolution
from jaxdelegate.op_lowering.hybrid_products import (
    Hybrid,
    filter_scales,
    quantize_rows,
    signed,
)
from jaxdelegate.op_lowering.integer_convolution import (
    IntegerConvolution,
    IntegerTransposedConvolution,
    constant,
)
from jaxdelegate.op_lowering.pointwise import quantization_of
from jaxdelegate.op_lowering.products import finish
from jaxdelegate.op_lowering.quantized_products import INT4, INT8, UINT8, Tensors
from jaxdelegate.op_lowering.rule import Function, Lowered, LoweringContext, Prepare
from jaxdelegate.op_lowering.window import Spreads

CONV_2D = Hybrid(frozenset([INT8, UINT8, INT4]), symmetric=True)
DEPTHWISE_CONV_2D = TRANSPOSE_CONV = Hybrid(frozenset([INT8]))
Rescale = Callable[[jax.Array, jax.Array, Any], tuple[jax.Array]]

NONE = Hybrid()  # CONV_3D, CONV_3D_TRANSPOSE


def is_asymmetric(kernels: Hybrid, tensors: Tensors, groups: int) -> bool:
    """Whether the kernel quantizes images asymmetrically.

    The symmetric one is for filters without groups whose scales are all the same.
    """
    scales = quantization_of(tensors.w).scale
    return not kernels.symmetric or groups > 1 or bool((scales != scales[0]).any())


def lower(
    context: LoweringContext,
    c: Convolution,
    spatial_io: Prepare,
    o: Any,
    tensors: Tensors,
    *,
    asymmetric: bool,
) -> Function:
    """Plain convolutions; `spatial_io` turns the file's filter into [*spatial, I, O]."""
    convolve = IntegerConvolution.of(
        context.platform, c, INT8, 0, constant(tensors.w, lambda w: signed(spatial_io(w)))
    )
    rescale = _rescaled(o, tensors)

    def convolution(x: jax.Array, w: jax.Array, bias: Any = None) -> tuple[jax.Array]:
        q, scale, zero = _quantize_images(x, asymmetric=asymmetric)
        return rescale(convolve(q, zero, w), scale, bias)

    return Lowered(convolution, {1: lambda w: convolve.prepare(signed(spatial_io(w)))})


def lower_transposed(spreads: Spreads, spatial_io: Prepare, o: Any, tensors: Tensors) -> Function:
    """Transposed convolutions; inputs are (output shape, filter, x, bias)."""
    convolve = IntegerTransposedConvolution.of(spreads, INT8, 0, constant(tensors.w, spatial_io))
    rescale = _rescaled(o, tensors)

    def transposed(_shape: Any, w: jax.Array, x: jax.Array, bias: Any = None) -> tuple[jax.Array]:
        q, scale, zero = _quantize_images(x, asymmetric=True)
        return rescale(convolve(q, zero, w), scale, bias)

    return Lowered(transposed, {1: lambda w: convolve.prepare(spatial_io(w))})


def _quantize_images(x: jax.Array, *, asymmetric: bool) -> tuple[jax.Array, jax.Array, Any]:
    """int8 images, and for each of them a scale and a zero point, [N, 1, ..., 1]."""
    q, scale, zero = quantize_rows(x.reshape(x.shape[0], -1), asymmetric=asymmetric)
    each = (-1, *(1,) * (x.ndim - 1))
    zero = zero if isinstance(zero, int) else zero.reshape(each)
    return q.reshape(x.shape), scale.reshape(each), zero


def _rescaled(o: Any, tensors: Tensors) -> Rescale:
    """(integer sums, scales of the images, bias) -> the output."""
    scales = filter_scales(tensors.w, tensors.y.shape[-1])

    def rescaled(total: jax.Array, scale: jax.Array, bias: Any) -> tuple[jax.Array]:
        each = scales.reshape((1,) * (total.ndim - 1) + (-1,))
        y = total.astype(np.float32) * (scale * each)
        return (finish(y, bias, o.fused_activation_function, tensors.y.dtype),)

    return rescaled
