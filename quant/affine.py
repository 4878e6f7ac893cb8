"""real = scale * (q - zero_point), both ways, and fake quantization; for jax: jax_affine.py."""

from typing import Any, cast

import numpy as np

from jaxdelegate.quant.lazy import LazyConstant
from jaxdelegate.quant.packing import MANY
from jaxdelegate.quant.params import Blockwise, Quantization, along_axis
from jaxdelegate.quant.params import integer_range as integer_range

xp = np  # for functions that serve numpy and jax
_MOST_BYTES = 2  # float32 holds the steps of integers of this size


def along(quantization: Quantization, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Scale (float32) and zero point (int32), shaped to broadcast with a tensor of this rank."""
    if quantization.blockwise is not None:
        raise ValueError("blockwise scales vary along more than one dimension")
    scale = quantization.scale.astype(np.float32)
    zero_point = np.broadcast_to(
        quantization.zero_point.astype(np.int32) if quantization.zero_point.size else np.int32(0),
        scale.shape,
    )
    if not quantization.is_per_channel:
        return scale.reshape(()), zero_point.reshape(())
    axis = quantization.quantized_dimension
    return along_axis(scale, rank, axis), along_axis(zero_point, rank, axis)


def dequantize(q: np.ndarray, quantization: Quantization) -> np.ndarray:
    """float32 reals: the exact product, rounded once, for integers of up to 32 bits.

    Source: kernels/internal/reference/dequantize.h. Blockwise integers have at most 16 bits.
    """
    if quantization.blockwise is not None:
        block_scale, points = block_parameters(quantization.blockwise, q.shape)
        return dequantize_blocks(q, block_scale, points, quantization.blockwise)
    scale, zero_point = along(quantization, q.ndim)
    if q.dtype.itemsize <= 2:  # exact in float32 up to the product, and half the memory
        return np.asarray(scale * (q.astype(np.int32) - zero_point).astype(np.float32))
    steps = q.astype(np.int64) - zero_point
    real: np.ndarray = scale.astype(np.float64) * steps.astype(np.float64)
    return real.astype(np.float32)


class DequantizedConstant(LazyConstant):
    """The reals of a large constant of integers, float32.

    Attributes:
        stored: the integers.
        quantization: theirs.
    """

    def __init__(self, stored: np.ndarray, quantization: Quantization) -> None:
        super().__init__(stored.shape, np.dtype(np.float32))
        self.stored, self.quantization = stored, quantization

    def values(self) -> np.ndarray:
        return dequantize(self.stored, self.quantization)


def dequantized(constant: np.ndarray, quantization: Quantization) -> np.ndarray:
    """The reals of a constant; of a large one a `DequantizedConstant`, which acts as an array."""
    if constant.size < MANY:
        return dequantize(constant, quantization)
    return cast("np.ndarray", DequantizedConstant(constant, quantization))


def quantize(x: np.ndarray, quantization: Quantization, dtype: np.dtype) -> np.ndarray:
    """Integers of `dtype`, halves away from zero, saturated. Source: kernels/.../quantize.h.

    The kernel's float -> int32 conversion is undefined in C++ for NaN and beyond 2**31; here NaN
    gives the smallest integer (as that conversion on x86), and large values saturate (as on Arm
    and in XNNPACK).
    """
    scale, zero_point = along(quantization, x.ndim)
    low, high = integer_range(dtype)
    with np.errstate(all="ignore"):
        steps = round_half_away(x.astype(np.float32) / scale)
        steps = np.where(steps > low - zero_point, steps, (low - zero_point).astype(np.float32))
        steps = np.minimum(steps, (high - zero_point).astype(np.float32))
    q: np.ndarray = steps.astype(np.int32) + zero_point
    return np.asarray(q, dtype)


def is_narrow(stored: np.ndarray, quantization: Quantization) -> bool:
    """Whether a file's weight does not use the least integer of its dtype, as converters write it.

    Kernels that multiply pairs of 8-bit weights in 16 bits rely on that: int8 in [-127, 127]
    (quantization_spec), uint8 in [1, 255] (gemmlowp's L8R8WithLhsNonzeroBitDepthParams). A weight
    that holds the least integer uses the whole range.
    """
    low, _ = integer_range(stored.dtype)
    blockwise = quantization.blockwise
    points = [quantization.zero_point]
    if blockwise is not None and blockwise.zero_point is not None:
        points.append(blockwise.zero_point)
    is_symmetric = not any(point.any() for point in points)
    if stored.dtype.itemsize > _MOST_BYTES or not (low == 0 or is_symmetric):
        return False
    return not bool((stored == low).any())


def quantize_weight(
    x: np.ndarray, quantization: Quantization, dtype: np.dtype, *, narrow: bool
) -> np.ndarray:
    """The integers that a file stores for float weights: the nearest, halves away from zero.

    int32 and int64 (biases) are exact, where `quantize` has the precision of float32; float64
    `x` keeps biases of more than 24 bits. `narrow`: see `is_narrow`.
    """
    if quantization.blockwise is not None:
        blocks = block_parameters(quantization.blockwise, x.shape)
        scale, zero_point = (spread(values, x.shape) for values in blocks)
    else:
        scale, zero_point = along(quantization, x.ndim)
    zero_point = zero_point.astype(np.int64)
    wide = np.float64 if dtype.itemsize > _MOST_BYTES else np.float32
    low, high = integer_range(dtype, narrow=narrow)
    with np.errstate(all="ignore"):
        steps = round_half_away(x.astype(wide) / scale.astype(wide))
        steps = np.where(steps > low - zero_point, steps, low - zero_point)
    highest = high - zero_point
    whole = np.where(steps < highest, steps, 0).astype(np.int64)
    return np.asarray(np.where(steps < highest, whole, highest) + zero_point).astype(dtype)


# ---- Scales as tensors


def block_scales(scales: np.ndarray, shape: tuple[int, ...], blockwise: Blockwise) -> np.ndarray:
    """The scales (or zero points) of a blockwise or multi-axis tensor, in a shape that divides its.

    A single one applies to all blocks. The shape of a scale tensor of the tensor's rank
    determines the size of the blocks. Any other scale tensor is read in C order:
    BlockwiseQuantization has scales for every row, one for `block_size` values of the last
    dimension; MultiAxisQuantization has them along its dimensions, the last of which is blocked
    if it has fewer scales than indices. Sources: schema.fbs, EvalBlockwise4Bit in
    kernels/fully_connected.cc; no kernel of LiteRT reads MultiAxisQuantization.
    """
    rank, block_size = len(shape), blockwise.block_size
    if scales.size == 1:
        return scales.reshape((1,) * rank)
    if scales.ndim == rank and not np.any(np.mod(shape, np.maximum(scales.shape, 1))):
        return scales
    dimensions = blockwise.quantized_dimensions or tuple(range(rank))
    if not dimensions or not 0 <= min(dimensions) <= max(dimensions) < rank:
        raise ValueError(f"{scales.size} scales do not fit {list(shape)}, {blockwise}")
    counts = [shape[d] for d in dimensions]
    if scales.size != np.prod(counts) and block_size and counts[-1] % block_size == 0:
        counts[-1] //= block_size
    if scales.size != np.prod(counts):
        raise ValueError(f"{scales.size} scales do not fit {list(shape)}, {blockwise}")
    at = dict(zip(dimensions, counts, strict=True))
    ordered = scales.reshape(counts).transpose(np.argsort(dimensions))
    return ordered.reshape([at.get(d, 1) for d in range(rank)])


def block_parameters(
    blockwise: Blockwise, shape: tuple[int, ...], rows: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Scales (float32) and zero points (int32) of a tensor, of shapes that divide `shape`.

    With `rows`, indices [n], those of these rows: of shapes that divide [n, *shape[1:]].
    """
    scale, points = blockwise.scale, blockwise.zero_point
    if scale is None or (points is None and blockwise.zero_points >= 0):
        raise ValueError("its blockwise scales are not known before it runs")
    points = np.zeros(1) if points is None else points
    scale, points = (block_scales(values, shape, blockwise) for values in (scale, points))
    if rows is not None:
        scale, points = (v[rows * len(v) // shape[0]] for v in (scale, points))
    return scale.astype(np.float32), points.astype(np.int32)


def why_not_blocks(quantization: Quantization | None, shape: tuple[int, ...]) -> str | None:
    """A reason if a tensor has blockwise scales that do not fit it or are not finite."""
    if quantization is None or quantization.blockwise is None:
        return None
    try:
        scale, _ = block_parameters(quantization.blockwise, shape)
    except ValueError as error:
        return str(error)
    return None if np.isfinite(scale).all() else "a blockwise scale is not finite"


def spread(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """One value for each block -> one for each element."""
    for axis, (n, count) in enumerate(zip(shape, values.shape, strict=True)):
        if count not in (1, n):
            values = np.repeat(values, n // count, axis)
    return values


def dequantize_blocks(
    q: np.ndarray, scales: np.ndarray, zero_points: np.ndarray | None, blockwise: Blockwise
) -> np.ndarray:
    """float32 reals of integers of up to 16 bits, by scales in float16 or float32."""
    scale = spread(block_scales(scales, q.shape, blockwise), q.shape).astype(np.float32)
    steps = q.astype(np.int32)
    if zero_points is not None:
        steps = steps - spread(block_scales(zero_points, q.shape, blockwise), q.shape)
    return np.asarray(scale * steps.astype(np.float32))


# ---- Floats on the fly, for dynamic range kernels


def symmetric_quantize(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows [..., n] of finite floats as int8 in [-127, 127], x ~ scale * q.

    The scales are float32 [...], 1 for a row of zeros. Source: NeonSymmetricQuantizeFloats of
    optimized/neon_tensor_utils.cc.
    """
    extent = np.max(np.abs(x), -1, keepdims=True, initial=0).astype(np.float32)
    empty = extent == 0
    with np.errstate(all="ignore"):
        inverse = np.where(empty, np.float32(0), np.float32(127) / extent)
        steps = round_half_away(x * inverse)
    scale = np.where(empty, np.float32(1), extent / np.float32(127))
    steps = np.where(np.isnan(steps), 0, steps)  # 0 times the inverse of a denormal extent
    return np.clip(steps, -127, 127).astype(np.int8), scale[..., 0]


def asymmetric_quantize(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows [..., n] of finite floats as int8, x ~ scale * (q - offset).

    Scales are float32 [...], offsets int32 [...]; 1 and 0 for a row of zeros. Source:
    NeonAsymmetricQuantizeFloats of optimized/neon_tensor_utils.cc, which x86 builds run too. It
    takes the range in float32, and rounds before it adds the offset.
    """
    low, high = (f(x, -1, keepdims=True, initial=0) for f in (np.min, np.max))
    empty = low == high
    with np.errstate(all="ignore"):
        exact = np.where(empty, 1.0, (high - low).astype(np.float64) / 255)
        scale = exact.astype(np.float32)
        ends = low.astype(np.float64) / exact, high.astype(np.float64) / exact
        offset = round_half_away(nudged_offset(*ends))
        steps = round_half_away(x * (np.float32(1) / scale))
    offset = np.where(empty, 0, offset)
    steps = np.where(np.isnan(steps), 0, steps)  # 0 times the inverse of a denormal scale
    q = np.clip(steps + offset, -128, 127).astype(np.int8)
    return q, scale[..., 0], offset[..., 0].astype(np.int32)


def nudged_offset(low_steps: Any, high_steps: Any, xp: Any = np) -> Any:
    """The number for 0, not rounded, from whichever end of the range loses less (float64)."""
    from_low, from_high = -128.0 - low_steps, 127.0 - high_steps
    lower_is_better = 128.0 + xp.abs(low_steps) < 127.0 + xp.abs(high_steps)
    return xp.clip(xp.where(lower_is_better, from_low, from_high), -128, 127)


# ---- Floats on a grid


def fake_quantize(
    x: np.ndarray, low: float, high: float, num_bits: int, *, narrow_range: bool
) -> np.ndarray:
    """float32 `x` on 2**num_bits levels over [low, high] (FakeQuantizeArray, quantization_util)."""
    first, last, step = nudged_range(low, high, num_bits, narrow_range=narrow_range)
    with np.errstate(all="ignore"):
        inverse = np.float32(1) / step
        inside = np.where(x > first, x, first)  # NaN becomes the first level
        inside = np.where(inside < last, inside, last)
        return round_half_away((inside - first) * inverse) * step + first


def nudged_range(
    low: float, high: float, num_bits: int, *, narrow_range: bool
) -> tuple[np.float32, np.float32, np.float32]:
    """First level, last level, step (float32): [low, high] moved so that zero is a level.

    Source: NudgeQuantizationRange (quantization_util.cc). With narrow_range, level 0 is unused, as
    in TensorFlow.
    """
    first, last = np.float32(narrow_range), np.float32(2**num_bits - 1)
    with np.errstate(all="ignore"):
        step = (np.float32(high) - np.float32(low)) / (last - first)
        zero = first - np.float32(low) / step
        zero = np.float32(round_half_away(np.clip(zero, first, last)))
        return (first - zero) * step, (last - zero) * step, step


def as_float32(x: np.ndarray) -> np.ndarray:
    """float64, rounded to float32's precision."""
    return np.asarray(x).astype(np.float32).astype(np.float64)


@np.errstate(invalid="ignore")  # infinity minus infinity
def round_half_away(x: np.ndarray | np.floating) -> np.ndarray:
    """std::round. Not trunc(x + 0.5): the sum rounds 0.49999997 up to 1."""
    whole = np.trunc(x)
    return np.asarray(np.where(np.abs(x - whole) >= 0.5, whole + np.sign(x), whole))
