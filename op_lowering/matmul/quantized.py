"""Integer kernels of FULLY_CONNECTED and BATCH_MATMUL.

kernels/internal/reference/fully_connected.h, integer_ops/fully_connected.h and batch_matmul.h;
filters of int16 are in kernels/fully_connected.cc.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.common.integer_products import (
    Zero,
    matrix_product,
    moved,
    pieces,
    to_int8,
)
from jaxdelegate.op_lowering.common.packed_weights import Kept
from jaxdelegate.op_lowering.common.quantization import quantization_of, zero_point_of
from jaxdelegate.op_lowering.common.quantized_products import (
    INT2,
    INT4,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    Dtypes,
    Epilogue,
    Kernels,
    Tensors,
    accumulator,
    epilogue,
    why_not_bias_scale,
    why_not_epilogue,
    why_not_points,
    why_not_sums,
    why_not_tensors,
)
from jaxdelegate.op_lowering.convolution import cpu_kernel_int8
from jaxdelegate.op_lowering.matmul.options import BatchMatMulOptions, FullyConnectedOptions
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.op_lowering.rule import Function, Lowered, LoweringContext, first_reason
from jaxdelegate.op_lowering.spec import Shape, TensorSpec
from jaxdelegate.quant.requantize import (
    convolution_multipliers,
    effective_scales,
    product_multiplier,
)

_PACKED = frozenset([INT4, INT2])
_FULLY_CONNECTED: Kernels = {
    UINT8: Dtypes(frozenset([UINT8]), frozenset([INT32]), frozenset([UINT8, INT16]), False),
    INT8: Dtypes(_PACKED | {INT8}, frozenset([INT32]), frozenset([INT8]), False),
    INT16: Dtypes(_PACKED | {INT8, INT16}, frozenset([INT32, INT64]), frozenset([INT16]), False),
}
_BATCH_MATMUL: Kernels = {
    INT8: Dtypes(frozenset([INT8]), frozenset(), frozenset([INT8]), False),
    INT16: Dtypes(frozenset([INT8, INT16]), frozenset(), frozenset([INT16])),
}


def why_not_fully_connected(o: FullyConnectedOptions, tensors: Tensors) -> str | None:
    """A reason unless an integer kernel takes these tensors."""
    x, w, bias, y = tensors
    reason = first_reason(
        why_not_tensors(_FULLY_CONNECTED, tensors, 0),
        why_not_sums(tensors, o.quantized_bias_type, w.shape[1]),
    )
    if reason is not None:
        return reason
    by_row = quantization_of(w).is_per_channel
    bare = x.dtype == UINT8 and y.dtype == INT16 and bias is None
    return first_reason(
        why_not_points(w) if by_row or w.dtype in _PACKED else None,
        None if by_row else why_not_bias_scale(tensors),
        "the kernel from uint8 to int16 wants a bias" if bare else None,
        why_not_epilogue(lambda: _fully_connected_epilogue(o, tensors)),
    )


def _fully_connected_epilogue(o: FullyConnectedOptions, tensors: Tensors) -> Epilogue:
    """The reference kernels round real numbers, but for filters of int16.

    Raises:
        ValueError: the scales make no multiplier.
    """
    x, w, _, y = tensors
    scales = quantization_of(x), quantization_of(w), quantization_of(y)
    output_channels, total = w.shape[0], accumulator(x, o.quantized_bias_type)
    activation = o.fused_activation_function
    if w.dtype != INT16:
        return epilogue(activation, y, total, scale=effective_scales(*scales, output_channels))
    multiplier, shift = (
        convolution_multipliers(*scales, output_channels)
        if scales[1].is_per_channel
        else product_multiplier(*scales)
    )
    return epilogue(activation, y, INT64, multiplier=multiplier, shift=shift)


def lower_fully_connected(
    context: LoweringContext, o: FullyConnectedOptions, tensors: Tensors
) -> Function:
    """[..., K] x [N, K] -> [rows, N], or [..., N] with keep_num_dims."""
    x_spec, w_spec, _, y = tensors
    depth = w_spec.shape[1]
    rows = math.prod(x_spec.shape) // depth
    end = _fully_connected_epilogue(o, tensors)
    x_zero, w_zero = _moved_zero(x_spec), _filter_zero(w_spec)
    if cpu_kernel_int8.is_chosen(context, tensors):
        return cpu_kernel_int8.fully_connected(rows, tensors, w_zero, end)
    const, kept = w_spec.const, Kept.of(w_spec)
    sums = None if const is None or w_spec.dtype == INT16 else row_sums(to_int8(const), w_zero)

    def fully_connected(
        x: jax.Array, w: jax.Array, bias: jax.Array | None = None
    ) -> tuple[jax.Array]:
        whole = to_int8(x).reshape(-1)[: rows * depth].reshape(rows, depth)
        total = matrix_product(pieces(whole, x_zero), pieces(kept.read(w), w_zero), w_sums=sums)
        return end(total.reshape(y.shape), bias)

    return Lowered(fully_connected, {1: kept.prepare}, kept)


def _moved_zero(spec: TensorSpec) -> int:
    return moved(zero_point_of(spec), spec.dtype)


def _filter_zero(w: TensorSpec) -> int:
    """Filters with a scale for each row are symmetric."""
    return 0 if quantization_of(w).is_per_channel else _moved_zero(w)


def row_sums(w: np.ndarray, zero: int = 0) -> np.ndarray:
    """int32 [N]: a constant filter [N, K] of int8, less its zero, added up."""
    return np.asarray(np.sum(w, 1, dtype=np.int32) - w.shape[1] * zero)


def is_unscaled(tensors: Tensors) -> bool:
    """Whether int8 times int8 gives int32: sums of what is stored, whatever it stands for."""
    return tensors.x.dtype == INT8 and tensors.y.dtype == INT32


def why_not_batch_matmul(tensors: Tensors, products: int, columns: int) -> str | None:
    """A reason unless an integer kernel takes these tensors.

    `columns` is the axis of the second matrix that may have a scale for each index; LiteRT's kernel
    takes the product of such scales for zero.
    """
    if is_unscaled(tensors):
        w = tensors.w
        return None if w.dtype == INT8 else f"{w.name!r} is {w.dtype}, not int8"
    reason = why_not_tensors(_BATCH_MATMUL, tensors, columns)
    if reason is not None:
        return reason
    return first_reason(
        why_not_points(tensors.w) if quantization_of(tensors.w).is_per_channel else None,
        why_not_sums(tensors, TensorType.FLOAT32, products),
        why_not_epilogue(lambda: _batch_matmul_epilogue(tensors)),
    )


def _batch_matmul_epilogue(tensors: Tensors) -> Epilogue:
    x, w, _, y = tensors
    scales = quantization_of(x), quantization_of(w), quantization_of(y)
    multiplier: Any
    shift: Any
    if scales[1].is_per_channel:
        multiplier, shift = convolution_multipliers(*scales, y.shape[-1])
    else:
        multiplier, shift = product_multiplier(*scales)
    total = accumulator(x, TensorType.FLOAT32)
    return epilogue(Act.NONE, y, total, multiplier=multiplier, shift=shift)


def lower_batch_matmul(o: BatchMatMulOptions, tensors: Tensors) -> Function:
    """[..., M, K] x [..., K, N] -> [..., M, N]; adj_x and adj_y swap the last two dimensions."""
    y = tensors.y
    unscaled = is_unscaled(tensors)
    x_zero = 0 if unscaled else zero_point_of(tensors.x)
    w_zero = 0 if unscaled else _filter_zero(tensors.w)
    end = None if unscaled else _batch_matmul_epilogue(tensors)

    def batch_matmul(x: jax.Array, w: jax.Array) -> tuple[jax.Array]:
        total = batch_product(o, x, w, x_zero, w_zero).reshape(y.shape)
        return (total,) if end is None else end(total, None)

    return batch_matmul


def batch_product(
    o: BatchMatMulOptions, x: jax.Array, w: jax.Array, x_zero: Zero, w_zero: int = 0
) -> jax.Array:
    """Exact products of int8 or int16 matrices whose batches broadcast.

    `x_zero` may be an array [..., M, 1]; there is no adj_x then.
    """
    axes = (-2 if o.adj_x else -1, -1 if o.adj_y else -2)
    if math.prod(w.shape[:-2]) == 1 and not o.adj_x:  # all rows of all batches, one matrix
        rows = math.prod(x.shape[:-1])
        x_zero = x_zero if isinstance(x_zero, int) else x_zero.reshape(rows, 1)
        x, w = x.reshape(rows, x.shape[-1]), w.reshape(w.shape[-2:])
    else:
        batch: Shape = np.broadcast_shapes(x.shape[:-2], w.shape[:-2])
        x_zero = x_zero if isinstance(x_zero, int) else _broadcast(x_zero, batch)
        x, w = _broadcast(x, batch), _broadcast(w, batch)
    return matrix_product(pieces(x, x_zero), pieces(w, w_zero), axes)


def _broadcast(x: jax.Array, batch: Shape) -> jax.Array:
    x = x.reshape((1,) * (len(batch) + 2 - x.ndim) + x.shape)
    return jnp.broadcast_to(x, (*batch, *x.shape[-2:]))
