"""Data movement that changes the stored numbers.

CONCATENATION rescales uint8 inputs to the output's scale, and EMBEDDING_LOOKUP dequantizes the rows
of a quantized table. Every other movement of quantized tensors leaves the integers as they are.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.movement import why_not_moved
from jaxdelegate.op_lowering.pointwise import INT8, UINT8, quantization_of, scale_of, zero_point_of
from jaxdelegate.op_lowering.quantized_checks import why_not_per_tensor
from jaxdelegate.op_lowering.rule import Function, Lowered, LoweringContext, first_reason
from jaxdelegate.op_lowering.spec import Specs, TensorSpec
from jaxdelegate.quant.affine import round_half_away
from jaxdelegate.quant.jax_lookup import lut_lookup

_TABLES = frozenset(np.dtype(t) for t in (np.int8, np.uint8, ml_dtypes.int4, ml_dtypes.int2))
_ROWS = frozenset(np.dtype(t) for t in (np.float32, np.float16))


# ---- CONCATENATION


def why_not_joined(context: LoweringContext, y: TensorSpec, inputs: Specs) -> str | None:
    """A sentence if the inputs cannot be joined in `y`: only uint8 is rescaled."""
    rescales = y.is_quantized and all(spec.is_quantized for spec in inputs)
    if rescales and all(spec.dtype == UINT8 for spec in (y, *inputs)):
        return first_reason(*(why_not_per_tensor(s, frozenset([UINT8])) for s in (y, *inputs)))
    return why_not_moved(context, y, *inputs)


def rescaler(x: TensorSpec, y: TensorSpec) -> Callable[[jax.Array], jax.Array]:
    """The function from integers of `x` to integers of `y`, by a table of all of them.

    Source: ConcatenationWithScaling of kernels/internal/reference/concatenation.h, in float32.
    """
    if x.dtype != UINT8 or not (x.is_quantized and y.is_quantized):
        return lambda q: q
    pairs = [(scale_of(spec), zero_point_of(spec)) for spec in (x, y)]
    if pairs[0] == pairs[1]:
        return lambda q: q
    table = _rescaled(*pairs)
    return lambda q: lut_lookup(q, table)


def _rescaled(source: tuple[float, int], target: tuple[float, int]) -> np.ndarray:
    with np.errstate(all="ignore"):
        scale = np.float32(source[0]) * (np.float32(1) / np.float32(target[0]))
        bias = np.float32(-source[1]) * scale
        steps = round_half_away(np.arange(256, dtype=np.float32) * scale + bias)
    return np.clip(steps.astype(np.float64) + target[1], 0, 255).astype(UINT8)


# ---- EMBEDDING_LOOKUP


def why_not_dequantized(table: TensorSpec, y: TensorSpec) -> str | None:
    """A sentence unless `table` [rows, ...] has one scale, or one for each row, and no offset."""
    quantization = table.quantization
    if quantization is not None and quantization.blockwise is not None:
        return f"{table.name!r} is quantized in blocks, whose scales are a tensor of the model"
    if quantization is None or not table.is_quantized:
        return f"{table.name!r} is {table.dtype} without a scale, but {y.name!r} is {y.dtype}"
    scales = quantization.scale.size
    by_row = scales == 1 or (quantization.quantized_dimension, scales) == (0, table.shape[0])
    return first_reason(
        None if table.dtype in _TABLES else f"no kernel dequantizes rows of {table.dtype}",
        None if y.dtype in _ROWS else f"no kernel dequantizes rows to {y.dtype}",
        None if by_row else f"{table.name!r} has {scales} scales for {table.shape[0]} rows",
        f"{table.name!r} has a zero point" if np.any(quantization.zero_point) else None,
    )


def lower_dequantizing_lookup(table: TensorSpec, y: TensorSpec) -> Function:
    """Rows of a quantized table as floats (EvalHybrid of kernels/embedding_lookup.cc)."""
    scales = quantization_of(table).scale.astype(np.float32)

    def lookup(ids: jax.Array, rows: jax.Array) -> tuple[jax.Array]:
        taken = jnp.take(rows, ids, axis=0, mode="clip").astype(np.float32)
        scale = jnp.take(jnp.asarray(scales), ids if scales.size > 1 else jnp.zeros_like(ids))
        return ((taken * scale.reshape(-1, *[1] * (taken.ndim - 1))).astype(y.dtype),)

    # The kernel reads uint8, an old name of signed bytes, as int8; and XLA packs no int4.
    return Lowered(lookup, {1: lambda rows: rows.astype(INT8)})
