"""Short convolutions of floats in the order of LiteRT's kernels, which they equal bit for bit.

In a dynamic range model, later operators quantize their results on the fly, which turns a
difference in the last bit into one of a step. Source: Conv of kernels/internal/reference/conv.h,
DepthwiseConv of depthwiseconv_float.h: taps by rows, then channels, then the bias.
"""

import itertools
import math
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxdelegate.kernels.library import PRODUCT_ORDERED
from jaxdelegate.op_lowering.common.basics import Array
from jaxdelegate.op_lowering.common.products import finish
from jaxdelegate.op_lowering.common.quantized_products import Tensors
from jaxdelegate.op_lowering.common.window import pad_windows, read_tap, taps
from jaxdelegate.op_lowering.convolution.algorithms import Convolution
from jaxdelegate.op_lowering.convolution.cpu_kernel import call, geometry, matrices, panels
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.rule import Function, Lowered, LoweringContext, Prepare
from jaxdelegate.quant.jax_affine import rounded

_MOST_PRODUCTS = 64  # an output's; each is a separate step of the program


def is_chosen(context: LoweringContext, c: Convolution, tensors: Tensors) -> bool:
    """A model that follows the kernels, in float32, and a convolution short enough for that."""
    is_float32 = all(spec.dtype == np.float32 for spec in tensors if spec is not None)
    has_form = c.groups == 1 or c.output_channels == c.channels == c.groups
    wanted = context.follows_kernels and not context.precision.is_reduced
    return wanted and is_float32 and has_form and c.products <= _MOST_PRODUCTS


def lower(
    context: LoweringContext,
    c: Convolution,
    spatial_io: Prepare,
    activation: Act,
    tensors: Tensors,
) -> Function:
    """[N, *in, C] -> [N, *out, O]; `spatial_io` transposes a filter to [*spatial, I, O]."""
    is_known = context.kernels.cpu and tensors.w.const is not None
    if is_known and c.groups == 1 and len(c.windows) == 2:
        return _by_kernel(c, spatial_io, activation, tensors)

    def convolution(x: jax.Array, w: jax.Array, bias: jax.Array | None = None) -> tuple[jax.Array]:
        padded = pad_windows(x, c.windows, 0)
        # Without the barrier XLA cuts a constant filter into a constant for each product.
        whole: jax.Array = lax.optimization_barrier(w)  # type: ignore[no-untyped-call]
        rows = whole.reshape(c.products, *[1] * (x.ndim - 2), c.output_channels)
        total: Any = 0.0
        for k, (tap, i) in enumerate(itertools.product(taps(c.windows), range(c.depth))):
            pixels = read_tap(padded, c.windows, tap)
            one = pixels if c.groups > 1 else lax.slice_in_dim(pixels, i, i + 1, axis=-1)
            total = total + rounded(one * lax.slice_in_dim(rows, k, k + 1))
        return (finish(total, bias, activation, tensors.y.dtype, is_finite=True),)

    return Lowered(convolution, {1: spatial_io}, "ordered")


def _by_kernel(c: Convolution, spatial_io: Prepare, activation: Act, tensors: Tensors) -> Function:
    """This package's CPU kernel adds the products, and XLA the bias."""
    everything = -math.inf, math.inf
    out = (c.batch, *c.out, c.output_channels)
    kernel = call(PRODUCT_ORDERED, geometry(c), everything, out)

    def convolution(x: jax.Array, w: jax.Array, bias: jax.Array | None = None) -> tuple[jax.Array]:
        (total,) = kernel(x, w)
        return (finish(total, bias, activation, tensors.y.dtype, is_finite=True),)

    def layout(w: Array) -> Array:
        return panels(matrices(spatial_io(w), 1))

    return Lowered(convolution, {1: layout}, ("ordered", "native"))
