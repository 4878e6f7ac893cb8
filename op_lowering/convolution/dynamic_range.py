"""Dynamic range convolutions, plain, depthwise and transposed: float32 images, integer filters.

Each image is quantized to int8 on the fly; sums of integers are scaled back. Sources: EvalHybrid
and EvalHybridPerChannel of kernels/conv.cc, depthwise_conv.cc and transpose_conv.cc.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common import dynamic_range
from jaxdelegate.op_lowering.common.basics import Array, pad
from jaxdelegate.op_lowering.common.packed_weights import WeightStorage
from jaxdelegate.op_lowering.common.products import finish
from jaxdelegate.op_lowering.common.quantized_products import INT4, INT8, UINT8, Tensors
from jaxdelegate.op_lowering.common.window import Spreads
from jaxdelegate.op_lowering.convolution import cpu_kernel_dynamic_range
from jaxdelegate.op_lowering.convolution.algorithms import Convolution
from jaxdelegate.op_lowering.convolution.integer import IntegerConvolution, constant
from jaxdelegate.op_lowering.records.record import Activated
from jaxdelegate.op_lowering.rule import Function, Lowered, Op, Prepare

CONV_2D = dynamic_range.DynamicRange(frozenset([INT8, UINT8, INT4]), symmetric=True)
DEPTHWISE_CONV_2D = TRANSPOSE_CONV = dynamic_range.DynamicRange(frozenset([INT8]))
NONE = dynamic_range.DynamicRange()  # CONV_3D, CONV_3D_TRANSPOSE
# Channels that one pass over the output adds: with 8 or 32 a CPU takes four times as long.
_UNROLL = 16


def lower(
    op: Op[Activated], c: Convolution, spatial_io: Prepare, kernels: dynamic_range.DynamicRange
) -> Function:
    """Plain convolutions; `spatial_io` transposes the file's filter to [*spatial, I, O]."""
    context, tensors, activation = op.context, Tensors.of(op), op.options.fused_activation_function
    scales = dynamic_range.filter_scales(tensors.w, c.output_channels)
    storage = WeightStorage.of_convolution(tensors.w, c.output_channels, c.groups)
    # The symmetric kernel is for filters without groups whose scales are all the same.
    asymmetric = not kernels.symmetric or c.groups > 1 or bool((scales != scales[0]).any())
    in_turn = asymmetric and kernels.symmetric
    if cpu_kernel_dynamic_range.is_chosen(context, tensors, activation, c):
        modes = {"asymmetric": asymmetric, "in_turn": in_turn}
        return cpu_kernel_dynamic_range.convolution(c, spatial_io, activation, tensors, **modes)
    convolve = IntegerConvolution.of(
        context, c, INT8, 0, constant(tensors.w, lambda w: dynamic_range.signed(spatial_io(w)))
    )

    def convolution(x: jax.Array, w: jax.Array, bias: jax.Array | None = None) -> tuple[jax.Array]:
        q, scale, zero = _quantize_images(x, asymmetric=asymmetric)
        y = dynamic_range.rescaled(
            convolve(q, zero, storage.read(w)), scale, scales, in_turn=in_turn
        )
        return (finish(y, bias, activation, tensors.y.dtype),)

    def prepare(w: Array) -> Array:
        return storage.prepare(convolve.prepare(dynamic_range.signed(spatial_io(w))))

    return Lowered(convolution, {1: prepare}, (convolve.layout, storage))


def lower_transposed(
    options: Activated, spreads: Spreads, spatial_io: Prepare, tensors: Tensors
) -> Function:
    """Transposed convolutions; inputs are (output shape, filter, x, bias)."""
    scales = dynamic_range.filter_scales(tensors.w, tensors.y.shape[-1])
    scales = np.tile(scales, math.prod(s.stride for s in spreads))

    def transposed(
        _shape: object, w: jax.Array, x: jax.Array, bias: jax.Array | None = None
    ) -> tuple[jax.Array]:
        q, scale, zero = _quantize_images(x, asymmetric=True)
        y = _add_in_order(q.astype(np.int32) - zero, w, (scale, scales))
        y = _unfolded(y, spreads)
        return (finish(y, bias, options.fused_activation_function, tensors.y.dtype),)

    return Lowered(transposed, {1: lambda w: _folded(spatial_io(w), spreads)}, ())


def _folded(w: Array, spreads: Spreads) -> Array:
    """Filters [*size, I, O] -> [*turns, I, *stride * O]: taps a stride apart reach the same place.

    In a turn each pixel adds to the outputs between it and the next.
    """
    rank = len(spreads)
    turns = [-(-s.size // s.stride) for s in spreads]
    missing = [(0, t * s.stride - s.size) for t, s in zip(turns, spreads, strict=True)]
    w = pad(w, [*missing, (0, 0), (0, 0)])
    pairs = (n for t, s in zip(turns, spreads, strict=True) for n in (t, s.stride))
    w = w.reshape(*pairs, *w.shape[-2:])
    w = w.transpose(*range(0, 2 * rank, 2), 2 * rank, *range(1, 2 * rank, 2), 2 * rank + 1)
    return w.reshape(*turns, w.shape[rank], -1)


def _unfolded(y: jax.Array, spreads: Spreads) -> jax.Array:
    """The result of `_add_in_order` -> [N, *out, O]."""
    rank = len(spreads)
    y = y.reshape(*y.shape[:-1], *(s.stride for s in spreads), -1)
    y = y.transpose(0, *(1 + i + rank * j for i in range(rank) for j in (0, 1)), 1 + 2 * rank)
    y = y.reshape(y.shape[0], *(y.shape[1 + 2 * i] * s.stride for i, s in enumerate(spreads)), -1)
    edges = [
        (-s.before, s.before + s.n_out - n, 0) for s, n in zip(spreads, y.shape[1:], strict=False)
    ]
    return lax.pad(y, jnp.zeros((), y.dtype), [(0, 0, 0), *edges, (0, 0, 0)])


def _add_in_order(
    steps: jax.Array, w: jax.Array, scales: tuple[jax.Array, np.ndarray]
) -> jax.Array:
    """int32 [N, *in, I] and folded filters -> float32 [N, *(in + turns - 1), *stride * O].

    Products are scaled one by one and added as floats, in the kernel's order: it loops over the
    input's pixels and channels, and an output gets pixels by falling taps. `scales` are of the
    images, float32 [N, 1, ..., 1], and of the filters, [*stride * O].
    """
    turns = w.shape[:-2]
    edges = [(t - 1, t - 1, 0) for t in turns]
    steps = lax.pad(steps, jnp.zeros((), np.int32), [(0, 0, 0), *edges, (0, 0, 0)])
    reach = [n - t + 1 for n, t in zip(steps.shape[1:], turns, strict=False)]

    def add(y: jax.Array, channel: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        pixels, weights = channel
        products = pixels[..., None] * jnp.expand_dims(weights, range(pixels.ndim))
        return y + dynamic_range.rescaled(products, *scales, in_turn=True), None

    y = jnp.zeros((len(steps), *reach, w.shape[-1]), np.float32)
    for turn in reversed(list(np.ndindex(*turns))):
        first = [t - 1 - i for t, i in zip(turns, turn, strict=True)]
        landed = lax.dynamic_slice(steps, [0, *first, 0], [len(steps), *reach, steps.shape[-1]])
        channels = jnp.moveaxis(landed, -1, 0), w[turn].astype(np.int32)
        y, _ = lax.scan(add, y, channels, unroll=_UNROLL)
    return y


def _quantize_images(x: jax.Array, *, asymmetric: bool) -> tuple[jax.Array, jax.Array, Any]:
    """int8 images, and a scale and a zero point for each, [N, 1, ..., 1]."""
    q, scale, zero = dynamic_range.quantize_rows(x.reshape(x.shape[0], -1), asymmetric=asymmetric)
    each = (-1, *(1,) * (x.ndim - 1))
    zero = zero if isinstance(zero, int) else zero.reshape(each)
    return q.reshape(x.shape), scale.reshape(each), zero
