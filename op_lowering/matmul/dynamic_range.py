"""Dynamic range kernels of FULLY_CONNECTED and BATCH_MATMUL: float32 rows, integer filters.

Each row of K values is quantized to int8 on the fly; sums of integers are scaled back. Sources:
EvalHybridDense of kernels/fully_connected.cc, EvalHybrid of kernels/batch_matmul.cc.
BATCH_MATMUL uses each row's own scale; LiteRT's kernel reads another row's if two or more batch
dimensions of the activations are larger than 1.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxdelegate.op_lowering.common import dynamic_range
from jaxdelegate.op_lowering.common.integer_products import matrix_product, pieces
from jaxdelegate.op_lowering.common.packed_weights import WeightStorage
from jaxdelegate.op_lowering.common.products import finish
from jaxdelegate.op_lowering.common.quantized_products import INT2, INT4, INT8, UINT8, Tensors
from jaxdelegate.op_lowering.matmul import cpu_kernel, dynamic_range_blockwise
from jaxdelegate.op_lowering.matmul.options import BatchMatMulOptions, FullyConnectedOptions
from jaxdelegate.op_lowering.matmul.quantized import batch_product, row_sums
from jaxdelegate.op_lowering.records.record import QuantizesInputs
from jaxdelegate.op_lowering.rule import Function, Lowered, LoweringContext, Op

FULLY_CONNECTED = dynamic_range.DynamicRange(
    frozenset([INT8, UINT8, INT4, INT2]), why_not_blocks=dynamic_range_blockwise.why_not
)
BATCH_MATMUL = dynamic_range.DynamicRange(frozenset([INT8]))


def lower_fully_connected(op: Op[FullyConnectedOptions]) -> Function:
    """[..., K] x [N, K] -> [rows, N], or [..., N] with keep_num_dims."""
    tensors, activation = Tensors.of(op), op.options.fused_activation_function
    x_spec, w_spec, _, y_spec = tensors
    if cpu_kernel.is_chosen(op.context, tensors, activation):
        return cpu_kernel.fully_connected(op.options, tensors)
    if w_spec.blocks is not None:
        return dynamic_range_blockwise.lower_fully_connected(op, w_spec.blocks)
    output_channels, depth = w_spec.shape
    rows = math.prod(x_spec.shape) // depth
    scales, storage = dynamic_range.filter_scales(w_spec, output_channels), WeightStorage.of(w_spec)
    sums = None if w_spec.const is None else row_sums(dynamic_range.signed(w_spec.const))

    def fully_connected(
        x: jax.Array, w: jax.Array, bias: jax.Array | None = None
    ) -> tuple[jax.Array]:
        whole = x.reshape(-1)[: rows * depth].reshape(rows, depth)
        q, scale, zero = _quantize(whole, op.options)
        total = matrix_product(pieces(q, zero), pieces(storage.read(w), 0), w_sums=sums)
        y = dynamic_range.rescaled(total, scale, scales)
        return (finish(y, bias, activation, y_spec.dtype).reshape(y_spec.shape),)

    prepare = storage.prepare if storage.packed is not None else dynamic_range.signed
    return Lowered(fully_connected, {1: prepare}, storage)


def lower_batch_matmul(
    context: LoweringContext, options: BatchMatMulOptions, tensors: Tensors
) -> Function:
    """[..., M, K] x [..., K, N] -> [..., M, N]; adj_x and adj_y swap the last two dimensions."""
    if cpu_kernel.takes_batch_matmul(context, tensors):
        return cpu_kernel.batch_matmul(options, tensors)
    y_spec = tensors.y
    straight = BatchMatMulOptions(adj_y=options.adj_y)
    scales = dynamic_range.filter_scales(tensors.w, y_spec.shape[-1])

    def batch_matmul(x: jax.Array, w: jax.Array) -> tuple[jax.Array]:
        q, scale, zero = _quantize(x.swapaxes(-1, -2) if options.adj_x else x, options)
        total = batch_product(straight, q, w, zero).reshape(y_spec.shape)
        scale = scale.reshape((1,) * (total.ndim - scale.ndim) + scale.shape)
        return (dynamic_range.rescaled(total, scale, scales),)

    return batch_matmul


def _quantize(x: jax.Array, options: QuantizesInputs) -> tuple[jax.Array, jax.Array, Any]:
    """int8 rows [..., K], and a scale and a zero point for each, [..., 1]."""
    q, scale, zero = dynamic_range.quantize_rows(x, asymmetric=options.asymmetric_quantize_inputs)
    zero = zero if isinstance(zero, int) else jnp.expand_dims(zero, -1)
    return q, jnp.expand_dims(scale, -1), zero
