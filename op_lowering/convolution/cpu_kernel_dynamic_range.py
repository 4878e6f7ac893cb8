"""Dynamic range convolutions, and FULLY_CONNECTED of one row, by this package's CPU kernels.

A kernel quantizes each image on the fly, sums in int32, and scales sums back while they are in the
nearest cache; results equal those of XLA's algorithms bit for bit. XLA:CPU would compile ten
kernels for each operator.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.kernels.library import DEPTHWISE_DYNAMIC_RANGE, PANEL, PRODUCT_DYNAMIC_RANGE
from jaxdelegate.op_lowering.common.basics import Array, pad
from jaxdelegate.op_lowering.common.dynamic_range import filter_scales, signed
from jaxdelegate.op_lowering.common.packed_weights import WeightStorage
from jaxdelegate.op_lowering.common.quantized_products import Tensors
from jaxdelegate.op_lowering.common.window import Window
from jaxdelegate.op_lowering.convolution.algorithms import Convolution
from jaxdelegate.op_lowering.convolution.cpu_kernel import (
    NATIVE,
    geometry,
    packed_groups,
    runs_by_channel,
)
from jaxdelegate.op_lowering.convolution.cpu_kernel_integer import QUAD, pairs, steps, takes
from jaxdelegate.op_lowering.convolution.integer import filter_sums
from jaxdelegate.op_lowering.matmul.options import FullyConnectedOptions
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.records.enums import Padding
from jaxdelegate.op_lowering.rule import Lowered, LoweringContext, Prepare

_RANGES = {
    Act.NONE: (-math.inf, math.inf),
    Act.RELU: (0.0, math.inf),
    Act.RELU_N1_TO_1: (-1.0, 1.0),
    Act.RELU6: (0.0, 6.0),
}


def algorithms(
    context: LoweringContext, tensors: Tensors, activation: Act, c: Convolution | None = None
) -> tuple[str, ...]:
    """For operators that LiteRT's dynamic range kernels accept; `c` is None for FULLY_CONNECTED.

    That must have one row, because the kernels read all weights for every row.
    """
    w = tensors.w
    if not context.native_kernels or w.const is None or activation not in _RANGES:
        return ()
    if c is None:
        is_row = math.prod(tensors.x.shape) // w.shape[1] == 1
        fits, storage = is_row and w.blocks is None, WeightStorage.of(w)
    else:
        fits, storage = takes(c), WeightStorage.of_convolution(w, c.output_channels, c.groups)
    return (NATIVE,) if fits and storage.packed is None else ()


def is_chosen(
    context: LoweringContext, tensors: Tensors, activation: Act, c: Convolution | None = None
) -> bool:
    return context.algorithm in (None, NATIVE) and bool(algorithms(context, tensors, activation, c))


def row_by_matrix(options: FullyConnectedOptions, tensors: Tensors) -> Lowered:
    """[..., K] x [N, K] -> y, which has N elements."""

    def spatial_io(w: Array) -> Array:
        return w.transpose(1, 0).reshape(1, 1, w.shape[1], w.shape[0])

    output_channels, depth = tensors.w.shape
    pixel = Window(1, 1, 1, Padding.VALID)
    c = Convolution((pixel, pixel), depth, depth, output_channels)
    activation = options.fused_activation_function
    asymmetric = options.asymmetric_quantize_inputs
    return convolution(c, spatial_io, activation, tensors, asymmetric=asymmetric)


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
    y_type = jax.ShapeDtypeStruct(tensors.y.shape, jnp.float32)  # type: ignore[no-untyped-call]
    call = jax.ffi.ffi_call(target, y_type, vmap_method="sequential")
    attributes = {
        "geometry": np.array(fields, np.int64),
        "modes": np.array((asymmetric, in_turn), np.int64),
        "range": np.array(_RANGES[activation], np.float32),
    }

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
        y: jax.Array = call(image, w, none if bias is None else bias, scales, sums, **attributes)
        return (y,)

    prepare = {1: laid_out} if tensors.bias is None else {1: laid_out, 2: columns}
    return Lowered(run, prepare, (NATIVE, count))
