"""Products of 8-bit integers and real factors, in few operations of int32, equal to LiteRT's.

LiteRT multiplies by 31-bit fractions in 64 bits and rounds twice. But 8-bit integers have only 256
values, and pairs of them 65,536: a shorter form's results are compared with LiteRT's for all of
them, and the form is used only if none differs.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxdelegate.quant.fixed_point import multiply_by_quantized_multiplier

STEPS = 255  # the largest difference of an 8-bit integer and a zero point

_SIGNED = np.arange(-STEPS, STEPS + 1, dtype=np.int32)
_HIGHEST, _LARGEST_SHIFT = (1 << 31) - 1, 30
_LOW_BITS = 20


def _shift(size: float) -> int:
    """The largest shift for which sums of |x| * size, rounded, are below 2**31; it may be < 1."""
    return min(int(math.log2(_HIGHEST / (STEPS * size + 2))), _LARGEST_SHIFT)


# ---- one integer


@dataclasses.dataclass(frozen=True)
class ShortProduct:
    """x * factor / 2**shift, rounded; all are ints, or int32 arrays for different elements."""

    factor: Any  # of x
    offset: Any  # a half, or a little more
    correction: Any  # added to products of negative x
    shift: int  # an int

    def __call__(self, x: Any) -> Any:
        """int32 of numpy or jax, |x| <= STEPS -> int32."""
        total = x * self.factor
        if np.any(self.correction):
            total = total + (x >> 31 & self.correction)
        return total + self.offset >> self.shift


@functools.lru_cache(4096)
def short_product(multiplier: int, shift: int) -> ShortProduct | None:
    """multiply_by_quantized_multiplier for |x| <= STEPS; None: no form has all its results."""
    forms = _products(multiplier, shift, np.ones(1, np.int32))
    if forms is None:
        return None
    *arrays, bits = forms
    factor, offset, correction = (int(a[0]) for a in arrays)
    return ShortProduct(factor, offset, correction, bits)


def short_products(multiplier: int, shift: int, steps: np.ndarray) -> ShortProduct | None:
    """multiply_by_quantized_multiplier of x times int32 constants; their shapes broadcast."""
    constants, positions = np.unique(steps, return_inverse=True)
    positions = positions.reshape(steps.shape)
    forms = _products(multiplier, shift, abs(constants))
    if forms is None:
        return None
    factors, offsets, corrections, bits = forms
    # x * -c is -x * c: what a negative product gets, all others get with the opposite sign.
    is_negative = constants < 0
    offsets = offsets + np.where(is_negative, corrections, 0)
    factors, corrections = (np.where(is_negative, -a, a) for a in (factors, corrections))
    return ShortProduct(factors[positions], offsets[positions], corrections[positions], bits)


_Products = tuple[np.ndarray, np.ndarray, np.ndarray, int]  # as the fields of ShortProduct


def _products(multiplier: int, shift: int, times: np.ndarray) -> _Products | None:
    """Forms of the products of x times each of [n] integers; None: one has none."""
    size = multiplier * 2.0 ** (shift - 31) * int(times.max(initial=0))
    bits = _shift(size)
    if multiplier < 0 or bits < 1:
        return None
    expected = multiply_by_quantized_multiplier(_SIGNED * times[:, None], multiplier, shift)
    # LiteRT rounds to 2**-right first, and then, away from zero, to an integer. Together that is
    # one rounding, at a point that is `distance` from the tie, on the side of zero.
    half, right = 1 << bits - 1, max(-shift, 0)
    distance = 1 << bits - right - 1 if bits > right > 0 else 0
    plain, corrected = (_with_factors(expected, bits, half + d, -2 * d) for d in (0, distance))
    forms = np.where(plain[-1], plain, corrected)
    factors, offsets, corrections = forms[:3].astype(np.int32)
    return (factors, offsets, corrections, bits) if forms[-1].all() else None


def _with_factors(expected: np.ndarray, bits: int, offset: int, correction: int) -> np.ndarray:
    """int64 [4, n]: factor, offset, correction; whether they have these results for _SIGNED.

    The factor is in the middle of those that do.
    """
    x, start = _SIGNED.astype(np.int64), expected.astype(np.int64) << bits
    added = offset + np.where(x < 0, correction, 0)
    first, last = start - added, start + (1 << bits) - 1 - added  # bounds of x * factor
    up, down = x > 0, x < 0
    least = np.maximum((-(-first[:, up] // x[up])).max(1), (-(last[:, down] // -x[down])).max(1))
    most = np.minimum((last[:, up] // x[up]).min(1), (-first[:, down] // -x[down]).min(1))
    factors = (least + most) // 2
    are_right = ((x * factors[:, None] + added) >> bits == expected).all(1)
    return np.stack(np.broadcast_arrays(factors, offset, correction, are_right))


# ---- sums


@dataclasses.dataclass(frozen=True)
class ShortSum:
    """The sum of x * factor / 2**(shift + 20), rounded; a factor is high * 2**20 + low."""

    high: tuple[int, ...]  # by argument
    low: tuple[int, ...]  # by argument, in [0, 2**20)
    carry: int  # added to the sum of the low products
    offset: int  # added to the sum of the high ones
    shift: int  # of the sum of both

    def __call__(self, *arrays: Any) -> Any:
        """int32 of numpy or jax that broadcast, |x| <= STEPS -> int32."""
        low = _dot(self.low, arrays) + self.carry >> _LOW_BITS
        return _dot(self.high, arrays) + low + self.offset >> self.shift


# LiteRT's three roundings matter where a sum is that close to a tie. Then one of these may help.
_CARRIES = (0, *itertools.chain.from_iterable((1 << n, -(1 << n)) for n in range(18, 24)))
_FROM_TIES = 1 + 2.0**-28  # halves are rounded away from zero


def short_sum(reals: Sequence[float], is_right: Callable[[ShortSum], bool]) -> ShortSum | None:
    """The first form of a sum of x * real that is right; None: none is."""
    shift = _shift(sum(map(abs, reals)))
    if shift < 1:
        return None
    factors = [round(real * _FROM_TIES * 2.0 ** (shift + _LOW_BITS)) for real in reals]
    mask = (1 << _LOW_BITS) - 1
    first = ShortSum(
        high=tuple(f >> _LOW_BITS for f in factors),
        low=tuple(f & mask for f in factors),
        carry=0,
        offset=1 << shift - 1,
        shift=shift,
    )
    forms = (dataclasses.replace(first, carry=carry) for carry in _CARRIES)
    return next(filter(is_right, forms), None)


def _dot(factors: Sequence[int], arrays: Sequence[Any]) -> Any:
    products = (x * factor for x, factor in zip(arrays, factors, strict=True))
    return functools.reduce(lambda a, b: a + b, products)
