"""tanh and logistic as Eigen computes them in LiteRT's recurrent kernels, in float32.

Each step is computed in float64 and rounded to float32: this gives the bits of float32 arithmetic,
and XLA cannot merge a step with the next one. `arithmetic` is affine, or jax_affine for traced
arrays, which needs 64-bit types.

Sources: ApplyTanhToVector and ApplySigmoidToVector of kernels/internal/tensor_utils.h; ptanh_float
and scalar_logistic_op of Eigen, without fused multiply-add, as in builds for any x86-64.
"""

from types import ModuleType
from typing import Any

import numpy as np

from jaxdelegate.quant import affine

Array = Any  # numpy's or jax's

_TANH_BOUND = 7.90738964080810547  # the quotient is 1 from here on
_TANH_NUMERATOR = (1.394553628e-8, 2.102733560e-5, 3.520756727e-3, 1.340216100e-1)
_TANH_DENOMINATOR = (8.015776984e-7, 3.326951409e-4, 2.597254514e-2, 4.673548340e-1, 1.0)

_LOGISTIC_BOUNDS = -104.0, 16.6355324  # 0 below; above as at the bound
_LOG2_E = 1.44269504088896341
_LN_2 = 0.693359375, -2.12194440e-4  # ln 2 in two parts, of which the first has few bits
# exp(r) = 1 + r + r**2 * (the rest), the rest by its even and its odd powers.
_EXP_EVEN = 4.1898667812347412109375e-2, 0.49999141693115234375
_EXP_ODD = 8.33471305668354034423828125e-3, 0.16666877269744873046875


def _constant(value: float) -> float:
    return float(np.float32(value))


def _polynomial(coefficients: tuple[float, ...], x: Array, arithmetic: ModuleType) -> Array:
    """Horner's rule; coefficients start with that of the highest power."""
    y = arithmetic.xp.full_like(x, _constant(coefficients[0]))
    for c in coefficients[1:]:
        y = arithmetic.as_float32(arithmetic.as_float32(y * x) + _constant(c))
    return y


def tanh(x: Array, arithmetic: ModuleType = affine) -> Array:
    """float32 of any shape: a quotient of polynomials."""
    xp, rounded = arithmetic.xp, arithmetic.as_float32
    bound = _constant(_TANH_BOUND)
    wide = xp.clip(x.astype(np.float64), -bound, bound)
    square = rounded(wide * wide)
    cube = rounded(square * wide)
    numerator = rounded(rounded(cube * _polynomial(_TANH_NUMERATOR, square, arithmetic)) + wide)
    return (numerator / _polynomial(_TANH_DENOMINATOR, square, arithmetic)).astype(np.float32)


@np.errstate(invalid="ignore")  # NaN has no exponent, and stays NaN
def logistic(x: Array, arithmetic: ModuleType = affine) -> Array:
    """float32 of any shape: e / (1 + e), where e = exp(x / 2) ** 2.

    This is Eigen's form for vectors of four. The kernels compute the rest of a row with std::exp,
    which differs in the last bit.
    """
    xp, rounded = arithmetic.xp, arithmetic.as_float32
    low, high = map(_constant, _LOGISTIC_BOUNDS)
    half = xp.clip(x.astype(np.float64), low, high) * 0.5
    exponent = xp.floor(rounded(rounded(half * _constant(_LOG2_E)) + 0.5))
    r = half
    for part in _LN_2:
        r = rounded(r - rounded(exponent * _constant(part)))
    square = rounded(r * r)
    odd, even = (_polynomial(c, square, arithmetic) for c in (_EXP_ODD, _EXP_EVEN))
    rest = rounded(rounded(r * odd) + even)
    power_of_two = ((exponent.astype(np.int64) + 1023) << 52).view(np.float64)
    root = rounded(rounded(square * rest) + rounded(r + 1.0)) * power_of_two
    e = rounded(root * root)
    y = rounded(e / rounded(e + 1.0))
    return xp.where(x < low, xp.zeros_like(y), y).astype(np.float32)
