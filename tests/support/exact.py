"""Rounding and clamping of single numbers, exactly."""

import math
from fractions import Fraction

import numpy as np


def half_away(x: Fraction | float | np.floating) -> int:
    """The nearest integer, halves away from zero, as std::round."""
    whole = math.floor(abs(Fraction(x if isinstance(x, Fraction) else float(x))) + Fraction(1, 2))
    return whole if x >= 0 else -whole


def clamped(x: int, low: int, high: int) -> int:
    return min(max(x, low), high)
