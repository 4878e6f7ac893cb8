"""Dynamic range kernels of FULLY_CONNECTED and BATCH_MATMUL: float32 rows, integer filters.

Each row of K values is quantized to int8 on the fly; sums of integers are scaled back. Sources:
EvalHybridDense of kernels/fully_connected.cc, EvalHybrid of kernels/batch_matmul.cc.
BATCH_MATMUL uses each row's own scale; LiteRT's kernel reads another row's if two or more batch
dimensions of the activations are larger than 1.
"""

import dataclasses
import math
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common import dynamic_range
from jaxdelegate.op_lowering.common.basics import Array
from jaxdelegate.op_lowering.common.dynamic_range import quantize_rows
from jaxdelegate.op_lowering.common.integer_products import matrix_product, pieces
from jaxdelegate.op_lowering.common.packed_weights import WeightStorage
from jaxdelegate.op_lowering.common.products import finish
from jaxdelegate.op_lowering.common.quantized_products import INT2, INT4, INT8, UINT8, Tensors
from jaxdelegate.op_lowering.matmul import cpu_kernel
from jaxdelegate.op_lowering.matmul.options import BatchMatMulOptions, FullyConnectedOptions
from jaxdelegate.op_lowering.matmul.quantized import batch_product, row_sums
from jaxdelegate.op_lowering.records.record import QuantizesInputs
from jaxdelegate.op_lowering.rule import Function, Lowered, LoweringContext, Op, first_reason
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.affine import block_parameters, spread, why_not_blocks
from jaxdelegate.quant.jax_affine import rounded
from jaxdelegate.quant.params import Blockwise, integer_range

# ---- a scale for each block of a row
#
# EvalBlockwise4Bit of kernels/fully_connected.cc: rows of activations are quantized asymmetrically,
# whatever the options say, the integer sum of each block is scaled separately, and the activations'
# scale comes last. That kernel ignores the fused activation and the zero points; XNNPACK applies
# the former. Here both count, and int8 and int2 filters are supported as well.

_FILTERS = frozenset([INT8, INT4, INT2])
_MOST_SUMS = 1 << 26  # bytes of the sums of all blocks; beyond, all devices go block by block
_EXACT = 1 << 24  # float32 holds all integers up to here


def _why_not_in_blocks(w: TensorSpec) -> str | None:
    """`w` is [N, K], quantized in blocks."""
    reason = why_not_blocks(w.quantization, w.shape)
    if w.blocks is None or reason is not None:
        return f"{w.name!r} is quantized in blocks: {reason}"
    scale, points = block_parameters(w.blocks, w.shape)
    return first_reason(
        None if w.dtype in _FILTERS else f"{w.name!r} is {w.dtype}, quantized in blocks",
        None
        if points.shape[1] in (1, scale.shape[1])
        else f"{w.name!r} has {points.shape[1]} zero points and {scale.shape[1]} scales in a row",
        f"a scale of {w.name!r} is negative" if (scale < 0).any() else None,
    )


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """A filter's blocks: scales (float32) and zero points (int32), [blocks, N].

    `operand` is a dtype in which sums of products are exact.
    """

    scales: np.ndarray
    points: np.ndarray
    operand: np.dtype

    @classmethod
    def of(cls, w: TensorSpec, blocks: Blockwise) -> Self:
        scale, points = block_parameters(blocks, w.shape)
        shape = w.shape[0], scale.shape[1]
        scale, points = (np.broadcast_to(spread(v, shape), shape).T for v in (scale, points))
        low, high = integer_range(w.dtype)
        largest = max(high - points.min(initial=0), points.max(initial=0) - low)
        exact = 128 * largest * (w.shape[1] // shape[1]) < _EXACT
        return cls(scale, points, np.dtype(np.float32 if exact else np.int32))

    def scaled(self, q: jax.Array, w: jax.Array, scale: Array, points: Array) -> jax.Array:
        """[..., rows, size] times [..., size, N], scaled: float32 [..., rows, N]."""
        batch = tuple(range(q.ndim - 2))
        w = w.astype(self.operand) - jnp.expand_dims(jnp.asarray(points), -2).astype(self.operand)
        total = lax.dot_general(
            q.astype(self.operand),
            w,
            (((q.ndim - 1,), (q.ndim - 2,)), (batch, batch)),
            precision="highest",
        )
        return rounded(total.astype(np.float32) * jnp.expand_dims(jnp.asarray(scale), -2))


def _lower_in_blocks(op: Op[FullyConnectedOptions], blocks: Blockwise) -> Function:
    """[..., K] x [N, K] -> [rows, N], or [..., N] with keep_num_dims.

    The filter is stored as [blocks, block size, N], or packed along its output channels.
    """
    x_spec, w_spec, _, y_spec = Tensors.of(op)
    activation = op.options.fused_activation_function
    output_channels, depth = w_spec.shape
    rows = math.prod(x_spec.shape) // depth
    filters, storage = _Blocks.of(w_spec, blocks), WeightStorage.of(w_spec, output_channels)
    count = len(filters.scales)
    small = 4 * rows * filters.scales.size <= _MOST_SUMS
    add_up = _all_blocks if small and op.context.platform != "cpu" else _block_by_block

    def fully_connected(
        x: jax.Array, w: jax.Array, bias: jax.Array | None = None
    ) -> tuple[jax.Array]:
        whole = x.reshape(-1)[: rows * depth].reshape(rows, depth)
        q, scale, zero = quantize_rows(whole, asymmetric=True)
        # The products of a row of ones are the filter's sums, which the zero points multiply.
        q = jnp.concatenate([q, jnp.ones((1, depth), np.int8)])
        y = add_up(filters, storage, q.reshape(rows + 1, count, -1).swapaxes(0, 1), w)
        moved = rounded(jnp.expand_dims(jnp.asarray(zero), -1).astype(np.float32) * y[rows:])
        y = rounded((y[:rows] - moved) * jnp.expand_dims(scale, -1))
        return (finish(y, bias, activation, y_spec.dtype).reshape(y_spec.shape),)

    def prepare(w: Array) -> Array:
        return storage.prepare(w.transpose(1, 0).reshape(count, depth // count, output_channels))

    return Lowered(fully_connected, {1: prepare}, storage)


def _all_blocks(filters: _Blocks, storage: WeightStorage, q: jax.Array, w: jax.Array) -> jax.Array:
    """int8 [blocks, rows, block size] and the stored filter -> float32 [rows, N]."""
    return jnp.sum(filters.scaled(q, storage.read(w), filters.scales, filters.points), 0)


def _block_by_block(
    filters: _Blocks, storage: WeightStorage, q: jax.Array, w: jax.Array
) -> jax.Array:
    """Equals _all_blocks; faster on a CPU, and takes less memory."""

    def add(y: jax.Array, block: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        q, w, scale, points = block
        return y + filters.scaled(q, storage.read(w), scale, points), None

    start = jnp.zeros((q.shape[1], filters.scales.shape[1]), np.float32)
    y, _ = lax.scan(add, start, (q, w, jnp.asarray(filters.scales), jnp.asarray(filters.points)))
    return y


FULLY_CONNECTED = dynamic_range.DynamicRange(
    frozenset([INT8, UINT8, INT4, INT2]), why_not_blocks=_why_not_in_blocks
)
BATCH_MATMUL = dynamic_range.DynamicRange(frozenset([INT8]))


# ---- the operators


def lower_fully_connected(op: Op[FullyConnectedOptions]) -> Function:
    """[..., K] x [N, K] -> [rows, N], or [..., N] with keep_num_dims."""
    tensors, activation = Tensors.of(op), op.options.fused_activation_function
    x_spec, w_spec, _, y_spec = tensors
    if cpu_kernel.is_chosen(op.context, tensors, activation):
        return cpu_kernel.fully_connected(op.options, tensors)
    if w_spec.blocks is not None:
        return _lower_in_blocks(op, w_spec.blocks)
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
