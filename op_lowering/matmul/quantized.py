"""Integer kernels of FULLY_CONNECTED and BATCH_MATMUL.

Sources: kernels/internal/reference/fully_connected.h, integer_ops/fully_connected.h and
batch_matmul.h; filters of int16 are in kernels/fully_connected.cc.
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
from jaxdelegate.op_lowering.common.packed_weights import WeightStorage
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
from jaxdelegate.op_lowering.convolution import cpu_kernel_integer
from jaxdelegate.op_lowering.matmul.options import BatchMatMulOptions, FullyConnectedOptions
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.op_lowering.rule import Function, Lowered, Op, first_reason
from jaxdelegate.op_lowering.spec import Shape, TensorSpec
from jaxdelegate.quant.params import Quantization
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


def why_not_fully_connected(options: FullyConnectedOptions, tensors: Tensors) -> str | None:
    x, w, bias, y = tensors
    reason = first_reason(
        why_not_tensors(_FULLY_CONNECTED, tensors, 0),
        why_not_sums(tensors, options.quantized_bias_type, w.shape[1]),
    )
    if reason is not None:
        return reason
    by_row = quantization_of(w).is_per_channel
    bare = x.dtype == UINT8 and y.dtype == INT16 and bias is None
    return first_reason(
        why_not_points(w) if by_row or w.dtype in _PACKED else None,
        None if by_row else why_not_bias_scale(tensors),
        "the kernel from uint8 to int16 needs a bias" if bare else None,
        why_not_epilogue(lambda: _fully_connected_epilogue(options, tensors)),
    )


def _fully_connected_epilogue(options: FullyConnectedOptions, tensors: Tensors) -> Epilogue:
    """The reference kernels round real numbers, except for filters of int16."""
    x, w, _, y = tensors
    scales = quantization_of(x), quantization_of(w), quantization_of(y)
    output_channels, total = w.shape[0], accumulator(x, options.quantized_bias_type)
    activation = options.fused_activation_function
    if w.dtype != INT16:
        return epilogue(activation, y, total, scale=effective_scales(*scales, output_channels))
    return epilogue(activation, y, INT64, **_multipliers(*scales, output_channels))


def _multipliers(
    x: Quantization, w: Quantization, y: Quantization, output_channels: int
) -> dict[str, Any]:
    multiplier, shift = (
        convolution_multipliers(x, w, y, output_channels)
        if w.is_per_channel
        else product_multiplier(x, w, y)
    )
    return {"multiplier": multiplier, "shift": shift}


def lower_fully_connected(op: Op[FullyConnectedOptions]) -> Function:
    """[..., K] x [N, K] -> [rows, N], or [..., N] with keep_num_dims."""
    tensors = Tensors.of(op)
    x_spec, w_spec, _, y = tensors
    depth = w_spec.shape[1]
    rows = math.prod(x_spec.shape) // depth
    end = _fully_connected_epilogue(op.options, tensors)
    x_zero, w_zero = _moved_zero(x_spec), _filter_zero(w_spec)
    if cpu_kernel_integer.is_chosen(op.context, tensors, cpu_kernel_integer.transposed):
        return cpu_kernel_integer.fully_connected(rows, tensors, w_zero, end)
    const, storage = w_spec.const, WeightStorage.of(w_spec)
    sums = None if const is None or w_spec.dtype == INT16 else row_sums(to_int8(const), w_zero)

    def fully_connected(
        x: jax.Array, w: jax.Array, bias: jax.Array | None = None
    ) -> tuple[jax.Array]:
        whole = to_int8(x).reshape(-1)[: rows * depth].reshape(rows, depth)
        w = storage.read(w)
        total = matrix_product(pieces(whole, x_zero), pieces(w, w_zero), w_sums=sums)
        return end(total.reshape(y.shape), bias)

    return Lowered(fully_connected, {1: storage.prepare}, storage)


def _moved_zero(spec: TensorSpec) -> int:
    return moved(zero_point_of(spec), spec.dtype)


def _filter_zero(w: TensorSpec) -> int:
    # Filters with a scale for each row are symmetric.
    return 0 if quantization_of(w).is_per_channel else _moved_zero(w)


def row_sums(w: np.ndarray, zero: int = 0) -> np.ndarray:
    """int32 [N]: sums of a constant filter [N, K] of int8, less its zero."""
    return np.asarray(np.sum(w, 1, dtype=np.int32) - w.shape[1] * zero)


def is_unscaled(tensors: Tensors) -> bool:
    """int8 times int8 gives int32: sums of the stored integers, without scales."""
    return tensors.x.dtype == INT8 and tensors.y.dtype == INT32


def why_not_batch_matmul(tensors: Tensors, products: int, columns: int) -> str | None:
    """`columns` is the axis of the second matrix that may have a scale for each index."""
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
    total = accumulator(x, TensorType.FLOAT32)
    return epilogue(Act.NONE, y, total, **_multipliers(*scales, y.shape[-1]))


def lower_batch_matmul(options: BatchMatMulOptions, tensors: Tensors) -> Function:
    """[..., M, K] x [..., K, N] -> [..., M, N]; adj_x and adj_y swap the last two dimensions."""
    y = tensors.y
    unscaled = is_unscaled(tensors)
    x_zero = 0 if unscaled else zero_point_of(tensors.x)
    w_zero = 0 if unscaled else _filter_zero(tensors.w)
    end = None if unscaled else _batch_matmul_epilogue(tensors)

    def batch_matmul(x: jax.Array, w: jax.Array) -> tuple[jax.Array]:
        total = batch_product(options, x, w, x_zero, w_zero).reshape(y.shape)
        return (total,) if end is None else end(total, None)

    return batch_matmul


def batch_product(
    options: BatchMatMulOptions, x: jax.Array, w: jax.Array, x_zero: Zero, w_zero: int = 0
) -> jax.Array:
    """Exact products of int8 or int16 matrices whose batches broadcast.

    `x_zero` may be an array [..., M, 1] if there is no adj_x.
    """
    axes = (-2 if options.adj_x else -1, -1 if options.adj_y else -2)
    if math.prod(w.shape[:-2]) == 1 and not options.adj_x:  # all rows of all batches, one matrix
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
