"""Real functions of quantized tensors through tables.

Tables are numpy's. The lookups take the array namespace `xp`: numpy, or jax.numpy for traced arrays
(with 64-bit types).

Sources: LUTPopulate and LUTLookup of kernels/internal/common.h; reference/integer_ops/
{logistic,tanh}.h for int16.
"""

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from jaxdelegate.quant.affine import round_half_away
from jaxdelegate.quant.multiplier import checked_log2

Array = Any  # numpy's or jax's
# From float32 (or float64) reals to as many of the same dtype.
RealFunction = Callable[[np.ndarray], np.ndarray]

SEGMENTS = 512  # they divide the range of int16, 128 values each


# ---- Real functions, each float32 operation rounded as in the C++ lambdas of the kernels.
# Library functions are computed in float64 and rounded; the C library's float32 results rarely
# differ from that, in the last bit.


def _rounded(function: Any, x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(function(x.astype(np.float64)), x.dtype)


def exp(x: np.ndarray) -> np.ndarray:
    """For EXP and the int16 SOFTMAX (kernels/exp.cc, activations.cc)."""
    return _rounded(np.exp, x)


def one_over_one_plus(x: np.ndarray) -> np.ndarray:
    """For the int16 SOFTMAX (kernels/activations.cc)."""
    one = x.dtype.type(1)
    return np.asarray(one / (one + x))


def logistic(x: np.ndarray) -> np.ndarray:
    """For LOGISTIC of 8 bits (kernels/activations.cc)."""
    return one_over_one_plus(exp(-x))


def tanh(x: np.ndarray) -> np.ndarray:
    """For TANH of 8 bits (kernels/activations.cc)."""
    return _rounded(np.tanh, x)


def elu(x: np.ndarray) -> np.ndarray:
    """For ELU (kernels/activations.cc)."""
    return np.where(x < 0, _rounded(np.expm1, np.minimum(x, 0)), x)


def gelu(x: np.ndarray) -> np.ndarray:
    """GELU, x / 2 * erfc(-x / sqrt(2)) (reference/gelu.h)."""
    half, root = x.dtype.type(0.5), x.dtype.type(-math.sqrt(0.5))
    return np.asarray(half * x * _rounded(np.vectorize(math.erfc, [np.float64]), x * root))


def gelu_approximate(x: np.ndarray) -> np.ndarray:
    """GELU's approximation by tanh (reference/gelu.h)."""
    half, one, cubic, root = (x.dtype.type(c) for c in (0.5, 1, 0.044715, math.sqrt(2 / math.pi)))
    return np.asarray(half * x * (one + tanh(root * (x + cubic * x * x * x))))


def log(lowest: float) -> RealFunction:
    """`lowest` where x <= 0: LOG's least output (kernels/elementwise.cc)."""

    def function(x: np.ndarray) -> np.ndarray:
        return np.where(x <= 0, x.dtype.type(lowest), _rounded(np.log, x))

    return function


def rsqrt(largest: float) -> RealFunction:
    """`largest` where x <= 0, for RSQRT of int16 (kernels/elementwise.cc)."""

    def function(x: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            y = x.dtype.type(1) / np.sqrt(x)
            return np.asarray(np.where(x <= 0, x.dtype.type(largest), y))

    return function


# ---- Tables


def lookup_table(
    function: RealFunction,
    input_scale: float,
    input_zero_point: int,
    output_scale: float,
    output_zero_point: int,
    dtype: np.dtype,
    *,
    real: type[np.floating] = np.float32,
) -> np.ndarray:
    """The table of `function` on all quantized inputs, for lut_lookup.

    Reals beyond the output's range saturate; a NaN becomes the lowest 8 bit integer, and 0 in a
    table of int16 (C++ leaves both undefined; NaN as its compilers do on x86-64). `dtype` is
    that of input and output: int8, uint8 or int16. `real` is the type of all arithmetic;
    float64 only in the int16 SOFTMAX.

    The table is [256] of the dtype, indexed by the input's bits as uint8; or for int16 [513],
    at every 128th input from -32768 to 32768.
    """
    build = _table_of_int16 if dtype == np.int16 else _table_of_8_bits
    scales = real(input_scale), real(output_scale)
    with np.errstate(all="ignore"):
        return build(function, scales, (input_zero_point, output_zero_point), dtype)


def _table_of_8_bits(
    function: RealFunction, scales: tuple[Any, Any], zero_points: tuple[int, int], dtype: np.dtype
) -> np.ndarray:
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    q = np.arange(256, dtype=np.uint8).view(dtype).astype(np.int64)
    real = type(scales[0])
    x = scales[0] * (q - zero_points[0]).astype(real)
    steps = round_half_away(function(x) * (real(1) / scales[1])) + real(zero_points[1])
    steps = np.minimum(np.where(steps >= low, steps, real(low)), real(high))
    return np.asarray(steps, dtype)


def _table_of_int16(
    function: RealFunction, scales: tuple[Any, Any], zero_points: tuple[int, int], _dtype: np.dtype
) -> np.ndarray:
    """Each value is shifted by half the interpolation error in the middle of its segment."""
    real = type(scales[0])
    first, last, lowest, highest = (
        scale * real(bound - point)
        for scale, point in zip(scales, zero_points, strict=True)
        for bound in (-32768, 32767)
    )
    step = (last - first) / real(SEGMENTS)
    to_steps = real(65536) / (highest - lowest)
    start = np.arange(SEGMENTS).astype(real) * step + first
    following = np.arange(1, SEGMENTS + 1).astype(real) * step + first
    value = round_half_away(function(start) * to_steps)
    middle = round_half_away(function(start + step / real(2)) * to_steps)
    interpolated = round_half_away((function(following) * to_steps + value) / real(2))
    value = value - round_half_away((interpolated - middle) / real(2))
    end = round_half_away(function(np.asarray([last], real)) * to_steps)
    table = np.clip(np.concatenate([value, end]), real(-32768), real(32767))
    return np.asarray(np.where(np.isnan(table), real(0), table), np.int16)


@np.errstate(over="ignore")  # a slope of int16 wraps around
def lut_lookup(x: Array, table: np.ndarray, xp: ModuleType = np) -> Array:
    """The table's values at 8 bit integers, or at int16 ones, interpolated (LUTLookup)."""
    values = xp.asarray(table)
    if x.dtype != np.int16:
        return values[x.view(np.uint8).astype(np.int32)]
    wide = x.astype(np.int32)
    index, offset = 256 + (wide >> 7), wide & 0x7F
    base, following = values[index], values[index + 1]
    slope = (following - base).astype(np.int32)
    return (base.astype(np.int32) + ((slope * offset + 64) >> 7)).astype(np.int16)


# ---- LOGISTIC and TANH of int16


def _sigmoid_table() -> np.ndarray:
    """logistic(i / 24) in 16 bits, int64 [256]: sigmoid_table_uint16 of common.h.

    Each value is raised by half of the error of linear interpolation in the middle of a segment, by
    the second derivative; the last one is the largest uint16.
    """
    y = 1 / (1 + np.exp(-np.arange(256) / 24))
    lost = y * (1 - y) * (2 * y - 1) / 24**2 / 8
    table: np.ndarray = np.floor(65536 * (y + lost / 2) + 0.5).astype(np.int64)
    table[-1] = 65535
    return table


SIGMOID_TABLE = _sigmoid_table()


def int16_input_multiplier(input_scale: float, largest_exact_shift: int) -> tuple[int, int]:
    """Multiplier and shift of logistic_int16 and tanh_int16 for an input scale.

    The table's steps are 1 / 24, so inputs become multiples of 1 / (3 * 4096); a multiplier of
    0 means 3 * 2**shift, for a scale of 2**(shift - 12), where shift is at most
    `largest_exact_shift`: 0 in LOGISTIC, 1 in TANH. Source: SigmoidPrepare and TanhPrepare in
    kernels/activations.cc.
    """
    power, is_power_of_two = checked_log2(input_scale)
    if is_power_of_two and 0 <= 12 + power <= largest_exact_shift:
        return 0, 12 + power
    real, shift = float(np.float32(input_scale)) * 4096.0 * 3.0, 0
    while real <= 32767.0 / 2.0 and shift <= 30:
        real, shift = real * 2.0, shift + 1
    return int(real), shift


def _table_steps(x: Array, multiplier: int, shift: int) -> Array:
    """int64: the inputs as multiples of 1 / (3 * 4096), wrapped to int32 as in C++."""
    if multiplier == 0:
        multiplier, shift = 3 << shift, 0
    half = 1 << (shift - 1) if shift > 0 else 0
    scaled = (x.astype(np.int64) * multiplier + half).astype(np.int32)
    return (scaled >> shift).astype(np.int64)


def _interpolate(magnitude: Array, bits: int, xp: ModuleType) -> tuple[Array, Array]:
    """SIGMOID_TABLE at magnitude / 2**bits, times 2**bits, and whether the index exceeds it."""
    index, offset = magnitude >> bits, magnitude & ((1 << bits) - 1)
    inside, table = xp.minimum(index, 254), xp.asarray(SIGMOID_TABLE)
    base = table[inside]
    return (base << bits) + offset * (table[inside + 1] - base), index >= 255


def logistic_int16(x: Array, multiplier: int, shift: int, xp: ModuleType = np) -> Array:
    """LOGISTIC of int16, as Q0 (reference/integer_ops/logistic.h)."""
    steps = _table_steps(x, multiplier, shift)
    y, beyond = _interpolate(xp.abs(steps), 9, xp)
    y = xp.where(beyond, 0x7FFF << 10, y)
    y = xp.where(steps >= 0, y + (1 << 9), (1 << 25) - y + (1 << 9) - 1)
    return (y >> 10).astype(np.int16)


def tanh_int16(x: Array, multiplier: int, shift: int, xp: ModuleType = np) -> Array:
    """TANH of int16 as 2 * logistic(2 * x) - 1, as Q0 (reference/integer_ops/tanh.h)."""
    steps = _table_steps(x, multiplier, shift)
    y, beyond = _interpolate(xp.abs(steps), 8, xp)
    y = xp.where(beyond, 0xFFFF << 8, y) - (1 << 23)
    y = xp.where(steps >= 0, y, -y - 1) + (1 << 7)
    return (y >> 8).astype(np.int16)
