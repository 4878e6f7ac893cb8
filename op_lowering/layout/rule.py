"""Data movement: TRANSPOSE, CONCATENATION, PACK, TILE, REVERSE_V2, space to batch or depth."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.basics import Array, fused_activation, why_not_activation
from jaxdelegate.op_lowering.common.movement import (
    integers,
    why_not_axis,
    why_not_moved,
    why_not_present,
    zero_point,
)
from jaxdelegate.op_lowering.common.packed_weights import WeightStorage
from jaxdelegate.op_lowering.common.pointwise import INT8, UINT8
from jaxdelegate.op_lowering.common.quantization import (
    quantization_of,
    scale_of,
    why_not_per_tensor,
    zero_point_of,
)
from jaxdelegate.op_lowering.common.signature import KNOWN, MOVED, WHOLE, moving_rule
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.layout.options import (
    ConcatenationOptions,
    DepthToSpaceOptions,
    PackOptions,
    SpaceToDepthOptions,
)
from jaxdelegate.op_lowering.records.custom import CustomOptions
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType
from jaxdelegate.op_lowering.records.record import NoOptions
from jaxdelegate.op_lowering.rule import (
    Function,
    Lowered,
    LoweringContext,
    Op,
    first_reason,
    rule,
    table,
    why_not_const,
)
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.quant.affine import block_parameters, round_half_away, spread, why_not_blocks
from jaxdelegate.quant.lookup import lut_lookup
from jaxdelegate.quant.packing import bits_of
from jaxdelegate.quant.params import Quantization

_TABLES = frozenset(np.dtype(t) for t in (np.int8, np.uint8, ml_dtypes.int4, ml_dtypes.int2))
_ROWS = frozenset(np.dtype(t) for t in (np.float32, np.float16))


# ---- CONCATENATION rescales uint8 inputs to the output's scale


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


# ---- EMBEDDING_LOOKUP dequantizes the rows of a quantized table


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


# ---- all others leave the integers as they are


def _why_not_transpose(op: Op[NoOptions]) -> str | None:
    x, perm = op.inputs[:2]
    rank = len(x.shape)
    once = sorted(i % max(rank, 1) for i in integers(perm)) == list(range(rank))
    return None if once else f"{integers(perm)} does not permute {rank} dimensions"


def _lower_transpose(op: Op[NoOptions]) -> Function:
    perm = [i % len(op.inputs[0].shape) for i in integers(op.inputs[1])]
    return lambda x, _perm: (lax.transpose(x, perm),)


def _why_not_concatenation(op: Op[ConcatenationOptions]) -> str | None:
    y, activation = op.outputs[0], op.options.fused_activation_function
    rank = len(y.shape)
    reason = why_not_present(*op.inputs) or first_reason(
        why_not_joined(op.context, y, op.inputs),
        why_not_activation(activation),
        why_not_axis(op.options.axis, rank),
    )
    if reason is not None:
        return reason
    if activation is not ActivationFunctionType.NONE and y.dtype not in FLOATS:
        return f"no activation fuses into a concatenation of {y.dtype}"
    shapes = [spec.shape or (1,) for spec in op.inputs]
    axis = op.options.axis % rank
    fits = all(len(s) == rank for s in shapes) and all(
        len({s[i] for s in shapes}) == 1 for i in range(rank) if i != axis
    )
    return None if fits else f"shapes differ in a dimension other than axis {axis}"


def _lower_concatenation(op: Op[ConcatenationOptions]) -> Function:
    axis, activation = op.options.axis, fused_activation(op.options.fused_activation_function)
    shapes = [spec.shape or (1,) for spec in op.inputs]  # the kernel joins constant scalars too
    rescale = [rescaler(spec, op.outputs[0]) for spec in op.inputs]

    def concatenation(*xs: jax.Array) -> tuple[jax.Array]:
        joined = zip(rescale, xs, shapes, strict=True)
        parts = [to_output(x).reshape(shape) for to_output, x, shape in joined]
        return (activation(jnp.concatenate(parts, axis)),)

    return concatenation


def _why_not_pack(op: Op[PackOptions]) -> str | None:
    return why_not_present(*op.inputs) or first_reason(
        why_not_moved(op.context, op.outputs[0], *op.inputs),
        why_not_axis(op.options.axis, len(op.inputs[0].shape) + 1),
        None if len({spec.shape for spec in op.inputs}) == 1 else "the inputs' shapes differ",
    )


def _lower_pack(op: Op[PackOptions]) -> Function:
    axis = op.options.axis
    return lambda *xs: (jnp.stack(xs, axis),)


def _why_not_tile(op: Op[NoOptions]) -> str | None:
    x, times = op.inputs[:2]
    fits = len(integers(times)) == len(x.shape) and min(integers(times), default=0) >= 0
    return None if fits else f"{integers(times)} does not multiply {list(x.shape)}"


def _lower_tile(op: Op[NoOptions]) -> Function:
    times = integers(op.inputs[1])
    return lambda x, _times: (jnp.tile(x, times),)


def _why_not_reverse(op: Op[NoOptions]) -> str | None:
    x, axes = op.inputs[:2]
    return first_reason(*(why_not_axis(axis, len(x.shape)) for axis in integers(axes)))


def _lower_reverse(op: Op[NoOptions]) -> Function:
    axes = sorted({axis % len(op.inputs[0].shape) for axis in integers(op.inputs[1])})
    return lambda x, _axes: (lax.rev(x, axes),)


def _why_not_roll(op: Op[CustomOptions]) -> str | None:
    x, shift, axis = op.inputs[:3]
    if shift.shape != axis.shape:
        return "shift and axis have different shapes"
    if axis.const is None:
        return None
    return first_reason(*(why_not_axis(i, len(x.shape)) for i in integers(axis)))


def _lower_roll(op: Op[CustomOptions]) -> Function:
    """TensorFlow's Roll, a custom operator in files. Several shifts of one axis add up."""
    rank = len(op.inputs[0].shape)

    def roll(x: jax.Array, shift: jax.Array, axis: jax.Array) -> tuple[jax.Array]:
        shifts, axes = jnp.ravel(shift), jnp.ravel(axis) % rank
        for i in range(rank):
            x = jnp.roll(x, jnp.sum(jnp.where(axes == i, shifts, 0)), i)
        return (x,)

    if why_not_const(*op.inputs[1:3]):
        return roll
    shifts, axes = integers(op.inputs[1]), integers(op.inputs[2])
    return lambda x, _shift, _axis: (jnp.roll(x, shifts, axes),)


def _why_not_blocks(x: TensorSpec, block: TensorSpec, margins: TensorSpec) -> str | None:
    """Why `block` [M] and `margins` [M, 2] do not fit M spatial dimensions of [N, ..., rest]."""
    m = len(integers(block))
    aligned = block.shape == (m,) and margins.shape == (m, 2) and m < len(x.shape)
    positive = min(integers(block), default=1) > 0 <= min(integers(margins), default=0)
    return None if aligned and positive else f"{integers(block)} is not a block of {list(x.shape)}"


def _blocks(block: TensorSpec, margins: TensorSpec) -> tuple[Shape, list[tuple[int, int]]]:
    flat = integers(margins)
    return integers(block), list(zip(flat[::2], flat[1::2], strict=True))


def _why_not_space_to_batch(op: Op[NoOptions]) -> str | None:
    x, block, paddings = op.inputs[:3]
    reason = _why_not_blocks(x, block, paddings)
    if reason is not None:
        return reason
    sides = zip(x.shape[1:], *_blocks(block, paddings), strict=False)
    even = all((n + sum(padding)) % b == 0 for n, b, padding in sides)
    return None if even else f"padded {list(x.shape)} does not divide into {integers(block)}"


def _lower_space_to_batch(op: Op[NoOptions]) -> Function:
    (n, *_), y = op.inputs[0].shape, op.outputs[0]
    block, paddings = _blocks(*op.inputs[1:3])
    m = len(block)
    rest = y.shape[m + 1 :]
    widths = [(0, 0, 0), *((low, high, 0) for low, high in paddings), *((0, 0, 0) for _ in rest)]
    split = [n, *(side for pair in zip(y.shape[1 : m + 1], block, strict=True) for side in pair)]
    # [N, n1, b1, n2, b2, ..., rest] -> [b1, b2, ..., N, n1, n2, ..., rest]
    order = [*range(2, 2 * m + 1, 2), 0, *range(1, 2 * m, 2)]
    order += range(2 * m + 1, 2 * m + 1 + len(rest))
    zero = np.asarray(zero_point(y)).astype(y.dtype)

    def space_to_batch(x: jax.Array, _block: jax.Array, _paddings: jax.Array) -> tuple[jax.Array]:
        x = lax.pad(x, jnp.asarray(zero), widths).reshape(*split, *rest)
        return (lax.transpose(x, order).reshape(y.shape),)

    return space_to_batch


def _why_not_batch_to_space(op: Op[NoOptions]) -> str | None:
    x, block, crops = op.inputs[:3]
    reason = _why_not_blocks(x, block, crops)
    if reason is not None:
        return reason
    if x.shape[0] % math.prod(integers(block)):
        return f"a batch of {x.shape[0]} does not divide into {integers(block)}"
    sides = zip(x.shape[1:], *_blocks(block, crops), strict=False)
    inside = all(sum(crop) <= n * b for n, b, crop in sides)
    return None if inside else f"crops {integers(crops)} leave nothing of {list(x.shape)}"


def _lower_batch_to_space(op: Op[NoOptions]) -> Function:
    shape = op.inputs[0].shape
    block, crops = _blocks(*op.inputs[1:3])
    m = len(block)
    n, sides, rest = shape[0] // math.prod(block), shape[1 : m + 1], shape[m + 1 :]
    # [b1, b2, ..., N, n1, n2, ..., rest] -> [N, n1, b1, n2, b2, ..., rest]
    order = [m, *(i for k in range(m) for i in (m + 1 + k, k))]
    order += range(2 * m + 1, 2 * m + 1 + len(rest))
    whole = [n, *(side * b for side, b in zip(sides, block, strict=True)), *rest]
    low = [0, *(crop[0] for crop in crops), *(0 for _ in rest)]
    high = [start + size for start, size in zip(low, op.outputs[0].shape, strict=True)]

    def batch_to_space(x: jax.Array, _block: jax.Array, _crops: jax.Array) -> tuple[jax.Array]:
        x = lax.transpose(x.reshape(*block, n, *sides, *rest), order)
        return (lax.slice(x.reshape(whole), low, high),)

    return batch_to_space


def _why_not_space_to_depth(op: Op[SpaceToDepthOptions]) -> str | None:
    x, b = op.inputs[0], op.options.block_size
    even = b > 0 and len(x.shape) == 4 and x.shape[1] % b == x.shape[2] % b == 0
    return None if even else f"{list(x.shape)} does not divide into blocks of {b}"


def _lower_space_to_depth(op: Op[SpaceToDepthOptions]) -> Function:
    (n, h, w, c), b = op.inputs[0].shape, op.options.block_size
    shape = op.outputs[0].shape

    def space_to_depth(x: jax.Array) -> tuple[jax.Array]:
        x = x.reshape(n, h // b, b, w // b, b, c)
        return (lax.transpose(x, (0, 1, 3, 2, 4, 5)).reshape(shape),)

    return space_to_depth


def _why_not_depth_to_space(op: Op[DepthToSpaceOptions]) -> str | None:
    x, b = op.inputs[0], op.options.block_size
    even = b > 0 and len(x.shape) == 4 and x.shape[3] % (b * b) == 0
    return None if even else f"{list(x.shape)} does not have the channels for blocks of {b}"


def _lower_depth_to_space(op: Op[DepthToSpaceOptions]) -> Function:
    (n, h, w, c), b = op.inputs[0].shape, op.options.block_size
    shape = op.outputs[0].shape

    def depth_to_space(x: jax.Array) -> tuple[jax.Array]:
        x = x.reshape(n, h, w, b, b, c // (b * b))
        return (lax.transpose(x, (0, 1, 3, 2, 4, 5)).reshape(shape),)

    return depth_to_space


_IN_BLOCKS = [MOVED, KNOWN, KNOWN]
RULES = table(
    moving_rule("TRANSPOSE", 9, [MOVED, KNOWN], _lower_transpose, _why_not_transpose),
    rule("CONCATENATION", 7, _why_not_concatenation, _lower_concatenation),
    rule("PACK", 5, _why_not_pack, _lower_pack),
    moving_rule("TILE", 3, [MOVED, KNOWN], _lower_tile, _why_not_tile),
    moving_rule("REVERSE_V2", 4, [MOVED, KNOWN], _lower_reverse, _why_not_reverse),
    moving_rule("Roll", 1, [MOVED, WHOLE, WHOLE], _lower_roll, _why_not_roll),
    moving_rule("SPACE_TO_BATCH_ND", 4, _IN_BLOCKS, _lower_space_to_batch, _why_not_space_to_batch),
    moving_rule("BATCH_TO_SPACE_ND", 4, _IN_BLOCKS, _lower_batch_to_space, _why_not_batch_to_space),
    moving_rule("SPACE_TO_DEPTH", 2, [MOVED], _lower_space_to_depth, _why_not_space_to_depth),
    moving_rule("DEPTH_TO_SPACE", 2, [MOVED], _lower_depth_to_space, _why_not_depth_to_space),
)
