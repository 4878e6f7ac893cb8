"""Dynamic range convolutions by this package's CPU kernels.

A kernel quantizes each image on the fly, sums in int32, and scales sums back while they are in the
nearest cache; results equal those of XLA's algorithms bit for bit. XLA:CPU would compile ten
kernels for each operator.
"""

import math

import jax
import numpy as np

from jaxdelegate.kernels.library import DEPTHWISE_DYNAMIC_RANGE, PANEL, PRODUCT_DYNAMIC_RANGE
from jaxdelegate.op_lowering.common.basics import Array, pad
from jaxdelegate.op_lowering.common.dynamic_range import RANGES, filter_scales, signed
from jaxdelegate.op_lowering.common.native_call import native_call
from jaxdelegate.op_lowering.common.quantized_products import Tensors
from jaxdelegate.op_lowering.convolution.algorithms import Convolution
from jaxdelegate.op_lowering.convolution.cpu_kernel import (
    NATIVE,
    geometry,
    packed_groups,
    runs_by_channel,
)
from jaxdelegate.op_lowering.convolution.cpu_kernel_integer import QUAD, pairs, steps, takes
from jaxdelegate.op_lowering.convolution.integer import filter_sums
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.rule import Lowered, LoweringContext, Prepare


def algorithms(
    context: LoweringContext, tensors: Tensors, activation: Act, c: Convolution
) -> tuple[str, ...]:
    """For operators that LiteRT's dynamic range kernels accept."""
    is_asked = context.kernels.cpu and tensors.w.const is not None
    return (NATIVE,) if is_asked and activation in RANGES and takes(c) else ()


def is_chosen(context: LoweringContext, tensors: Tensors, activation: Act, c: Convolution) -> bool:
    return context.algorithm in (None, NATIVE) and bool(algorithms(context, tensors, activation, c))


def convolution(
    c: Convolution,
    spatial_io: Prepare,
    activation: Act,
    tensors: Tensors,
    *,
    asymmetric: bool,
    in_turn: bool = False,
) -> Lowered:
    """[N, H, W, C] -> y, with as many elements as [N, *out, O].

    `spatial_io` transposes the file's filter to [H, W, I, O]. `asymmetric`: images have zero
    points. `in_turn`: see `rescaled` in common/dynamic_range.py.
    """
    by_channel = runs_by_channel(c)
    count = 1 if by_channel else c.groups // packed_groups(c, QUAD)
    fields = geometry(c) if by_channel else geometry(c, packed_groups(c, QUAD))
    target = DEPTHWISE_DYNAMIC_RANGE if by_channel else PRODUCT_DYNAMIC_RANGE
    call = native_call(
        target,
        tensors.y.shape,
        geometry=np.array(fields, np.int64),
        modes=np.array((asymmetric, in_turn), np.int64),
        range=np.array(RANGES[activation], np.float32),
    )

    def columns(values: Array) -> Array:
        # Values of all output channels -> of the columns of all panels.
        if by_channel:
            return values.reshape(-1)
        output_channels = c.output_channels // count
        edges = [(0, 0), (0, -output_channels % PANEL)]
        return pad(values.reshape(count, output_channels), edges).reshape(-1)

    def laid_out(w: Array) -> Array:
        filters = signed(spatial_io(w))
        return pairs(filters, 0) if by_channel else steps(filters, QUAD, count)

    scales = columns(filter_scales(tensors.w, c.output_channels).astype(np.float32))
    sums = columns(filter_sums(signed(spatial_io(tensors.w.const)), 0))
    # -0.0, so that zeros keep their sign.
    none = columns(np.full(c.output_channels, -0.0, np.float32))

    def run(x: jax.Array, w: jax.Array, bias: jax.Array | None = None) -> tuple[jax.Array]:
        image = x.reshape(-1)[: c.batch * math.prod(d.n_in for d in c.windows) * c.channels]
        return (call(image, w, none if bias is None else bias, scales, sums),)

    prepare = {1: laid_out} if tensors.bias is None else {1: laid_out, 2: columns}
    return Lowered(run, prepare, (NATIVE, count))
