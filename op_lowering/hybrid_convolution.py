"""Hybrid kernels of CONV_2D, DEPTHWISE_CONV_2D and TRANSPOSE_CONV: float32 images, integer filters.

Each image is quantized on the fly, to int8; sums of integers are scaled back. Sources: EvalHybrid
and EvalHybridPerChannel of kernels/conv.cc, depthwise_conv.cc and transpose_conv.cc.
"""

from typing import Any

import jax

from jaxdelegate.op_lowering.convolution_ways import Convolution
from jaxdelegate.op_lowering.hybrid_products import (
    Hybrid,
    filter_scales,
    quantize_rows,
    rescaled,
    signed,
)
from jaxdelegate.op_lowering.integer_convolution import (
    IntegerConvolution,
    IntegerTransposedConvolution,
    constant,
)
from jaxdelegate.op_lowering.packed_weights import Kept
from jaxdelegate.op_lowering.products import finish
from jaxdelegate.op_lowering.quantized_products import INT4, INT8, UINT8, Tensors
from jaxdelegate.op_lowering.rule import Function, Lowered, LoweringContext, Prepare
from jaxdelegate.op_lowering.window import Spreads

CONV_2D = Hybrid(frozenset([INT8, UINT8, INT4]), symmetric=True)
DEPTHWISE_CONV_2D = TRANSPOSE_CONV = Hybrid(frozenset([INT8]))
NONE = Hybrid()  # CONV_3D, CONV_3D_TRANSPOSE


def lower(
    context: LoweringContext,
    c: Convolution,
    spatial_io: Prepare,
    o: Any,
    tensors: Tensors,
    kernels: Hybrid,
) -> Function:
    """Plain convolutions; `spatial_io` turns the file's filter into [*spatial, I, O]."""
    convolve = IntegerConvolution.of(
        context, c, INT8, 0, constant(tensors.w, lambda w: signed(spatial_io(w)))
    )
    scales, kept = filter_scales(tensors.w, c.units), Kept.of_convolution(tensors.w, c)
    # The symmetric kernel is for filters without groups whose scales are all the same.
    asymmetric = not kernels.symmetric or c.groups > 1 or bool((scales != scales[0]).any())
    in_turn = asymmetric and kernels.symmetric

    def convolution(x: jax.Array, w: jax.Array, bias: Any = None) -> tuple[jax.Array]:
        q, scale, zero = _quantize_images(x, asymmetric=asymmetric)
        y = rescaled(convolve(q, zero, kept.read(w)), scale, scales, in_turn=in_turn)
        return (finish(y, bias, o.fused_activation_function, tensors.y.dtype),)

    def prepare(w: Any) -> Any:
        return kept.prepare(convolve.prepare(signed(spatial_io(w))))

    return Lowered(convolution, {1: prepare}, (convolve.layout, kept))


def lower_transposed(spreads: Spreads, spatial_io: Prepare, o: Any, tensors: Tensors) -> Function:
    """Transposed convolutions; inputs are (output shape, filter, x, bias)."""
    convolve = IntegerTransposedConvolution.of(spreads, INT8, 0, constant(tensors.w, spatial_io))
    scales = filter_scales(tensors.w, tensors.y.shape[-1])

    def transposed(_shape: Any, w: jax.Array, x: jax.Array, bias: Any = None) -> tuple[jax.Array]:
        q, scale, zero = _quantize_images(x, asymmetric=True)
        y = rescaled(convolve(q, zero, w), scale, scales)
        return (finish(y, bias, o.fused_activation_function, tensors.y.dtype),)

    return Lowered(transposed, {1: lambda w: convolve.prepare(spatial_io(w))}, ())


def _quantize_images(x: jax.Array, *, asymmetric: bool) -> tuple[jax.Array, jax.Array, Any]:
    """int8 images, and for each of them a scale and a zero point, [N, 1, ..., 1]."""
    q, scale, zero = quantize_rows(x.reshape(x.shape[0], -1), asymmetric=asymmetric)
    each = (-1, *(1,) * (x.ndim - 1))
    zero = zero if isinstance(zero, int) else zero.reshape(each)
    return q.reshape(x.shape), scale.reshape(each), zero
