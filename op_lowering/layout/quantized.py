"""Data movement that changes the stored numbers.

CONCATENATION rescales uint8 inputs to the output's scale, and EMBEDDING_LOOKUP dequantizes the rows
of a quantized table. Every other movement of quantized tensors leaves the integers as they are.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.basics import Array
from jaxdelegate.op_lowering.common.movement import why_not_moved
from jaxdelegate.op_lowering.common.packed_weights import WeightStorage
from jaxdelegate.op_lowering.common.pointwise import INT8, UINT8
from jaxdelegate.op_lowering.common.quantization import (
    quantization_of,
    scale_of,
    why_not_per_tensor,
    zero_point_of,
)
from jaxdelegate.op_lowering.rule import Function, Lowered, LoweringContext, first_reason
from jaxdelegate.op_lowering.spec import Specs, TensorSpec
from jaxdelegate.quant.affine import block_parameters, round_half_away, spread, why_not_blocks
from jaxdelegate.quant.lookup import lut_lookup
from jaxdelegate.quant.packing import bits_of
from jaxdelegate.quant.params import Quantization

_TABLES = frozenset(np.dtype(t) for t in (np.int8, np.uint8, ml_dtypes.int4, ml_dtypes.int2))
_ROWS = frozenset(np.dtype(t) for t in (np.float32, np.float16))


# ---- CONCATENATION


def why_not_joined(context: LoweringContext, y: TensorSpec, inputs: Specs) -> str | None:
    """Only uint8 is rescaled."""
    rescales = y.is_quantized and all(spec.is_quantized for spec in inputs)
    if rescales and all(spec.dtype == UINT8 for spec in (y, *inputs)):
        return first_reason(*(why_not_per_tensor(s, frozenset([UINT8])) for s in (y, *inputs)))
    return why_not_moved(context, y, *inputs)


def rescaler(x: TensorSpec, y: TensorSpec) -> Callable[[jax.Array], jax.Array]:
    """Integers of `x` -> integers of `y`, by a lookup table.

    Source: ConcatenationWithScaling of kernels/internal/reference/concatenation.h, in float32.
    """
    if x.dtype != UINT8 or not (x.is_quantized and y.is_quantized):
        return lambda q: q
    pairs = [(scale_of(spec), zero_point_of(spec)) for spec in (x, y)]
    if pairs[0] == pairs[1]:
        return lambda q: q
    table = _rescaled(*pairs)
    return lambda q: lut_lookup(q, table, jnp)


def _rescaled(source: tuple[float, int], target: tuple[float, int]) -> np.ndarray:
    with np.errstate(all="ignore"):
        scale = np.float32(source[0]) * (np.float32(1) / np.float32(target[0]))
        bias = np.float32(-source[1]) * scale
        steps = round_half_away(np.arange(256, dtype=np.float32) * scale + bias)
    return np.clip(steps.astype(np.float64) + target[1], 0, 255).astype(UINT8)


# ---- EMBEDDING_LOOKUP


def why_not_dequantized(table: TensorSpec, y: TensorSpec) -> str | None:
    """A reason unless `table` [rows, ...] has scales for its rows or blocks, and no offset."""
    quantization = table.quantization
    if quantization is None or not table.is_quantized:
        return f"{table.name!r} is {table.dtype} without a scale, but {y.name!r} is {y.dtype}"
    return first_reason(
        None if table.dtype in _TABLES else f"no kernel dequantizes rows of {table.dtype}",
        None if y.dtype in _ROWS else f"no kernel dequantizes rows to {y.dtype}",
        _why_not_row_scales(quantization, table),
    )


def _why_not_row_scales(quantization: Quantization, table: TensorSpec) -> str | None:
    if quantization.blockwise is not None:
        reason = why_not_blocks(quantization, table.shape)
        return None if reason is None else f"{table.name!r} is quantized in blocks: {reason}"
    scales = quantization.scale.size
    by_row = scales == 1 or (quantization.quantized_dimension, scales) == (0, table.shape[0])
    return first_reason(
        None if by_row else f"{table.name!r} has {scales} scales for {table.shape[0]} rows",
        f"{table.name!r} has a zero point" if np.any(quantization.zero_point) else None,
    )


def lower_dequantizing_lookup(
    context: LoweringContext, table: TensorSpec, y: TensorSpec
) -> Function:
    """Rows of a quantized table as floats, including zero points of blocks, which LiteRT ignores.

    Source: EvalHybrid and EvalBlockwise of kernels/embedding_lookup.cc.
    """
    storage = WeightStorage.of(table)
    scale, points = _row_parameters(table)
    # For single rows of bytes XLA:TPU would copy the whole table to another layout at every call.
    bits = 8 if storage.packed is None else bits_of(table.dtype)
    row_bytes = math.prod(table.shape[1:-1]) * -(-table.shape[-1] * bits // 8)
    in_words = context.platform == "tpu" and row_bytes % 4 == 0

    # The kernel reads uint8, an old name of signed bytes, as int8; and XLA packs no int4.
    def prepare(rows: Array) -> Array:
        laid_out = rows.astype(INT8) if storage.packed is None else storage.prepare(rows)
        return laid_out.reshape(len(laid_out), -1).view(np.int32) if in_words else laid_out

    def lookup(ids: jax.Array, rows: jax.Array) -> tuple[jax.Array]:
        picked = jnp.take(rows, ids, axis=0, mode="clip")
        if in_words:
            of_bytes = lax.bitcast_convert_type(picked, INT8 if storage.packed is None else UINT8)
            picked = of_bytes.reshape(*ids.shape, *table.shape[1:-1], -1)
        taken = storage.read(picked).astype(np.int32)
        reals = (taken - _of_rows(points, ids, taken)).astype(np.float32)
        return ((reals * _of_rows(scale, ids, taken)).astype(y.dtype),)

    return Lowered(lookup, {1: prepare}, (storage, in_words))


def _row_parameters(table: TensorSpec) -> tuple[np.ndarray, np.ndarray]:
    """float32 scales and int32 zero points: for each row, or one row for all of them."""
    quantization, ones = quantization_of(table), (1,) * (len(table.shape) - 1)
    if quantization.blockwise is not None:
        scale, points = block_parameters(quantization.blockwise, table.shape)
        rows = table.shape[0]
        return spread(scale, (rows, *scale.shape[1:])), spread(points, (rows, *points.shape[1:]))
    scale = quantization.scale.astype(np.float32).reshape(-1, *ones)
    return scale, np.zeros((1, *ones), np.int32)


def _of_rows(values: np.ndarray, ids: jax.Array, taken: jax.Array) -> jax.Array:
    """The `values` of the rows taken, repeated within blocks."""
    picked = jnp.asarray(values)
    if len(values) > 1:
        picked = jnp.take(picked, ids, axis=0, mode="clip")
    for axis in range(1, taken.ndim):
        if picked.shape[axis] not in (1, taken.shape[axis]):
            picked = jnp.repeat(picked, taken.shape[axis] // picked.shape[axis], axis)
    return picked
