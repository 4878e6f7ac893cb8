"""tanh and logistic as Eigen computes them in LiteRT's recurrent kernels, in float32.

Sources: ApplyTanhToVector and ApplySigmoidToVector of kernels/internal/tensor_utils.h; ptanh_float
and scalar_logistic_op of Eigen, without fused multiply-add, as in builds for any x86-64.
"""

import numpy as np

TANH_BOUND = 7.90738964080810547  # the quotient is 1 from here on
TANH_NUMERATOR = (1.394553628e-8, 2.102733560e-5, 3.520756727e-3, 1.340216100e-1)
TANH_DENOMINATOR = (8.015776984e-7, 3.326951409e-4, 2.597254514e-2, 4.673548340e-1, 1.0)

LOGISTIC_BOUNDS = -104.0, 16.6355324  # 0 below; above as at the bound
LOG2_E = 1.44269504088896341
LN_2 = 0.693359375, -2.12194440e-4  # ln 2 in two parts, of which the first has few bits
# exp(r) = 1 + r + r**2 * (the rest), the rest by its even and its odd powers.
EXP_EVEN = 4.1898667812347412109375e-2, 0.49999141693115234375
EXP_ODD = 8.33471305668354034423828125e-3, 0.16666877269744873046875

_F32 = np.float32


def _polynomial(coefficients: tuple[float, ...], x: np.ndarray) -> np.ndarray:
    """By Horner's rule, the highest power first."""
    y = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        y = y * x + _F32(c)
    return y


def tanh(x: np.ndarray) -> np.ndarray:
    """float32 of any shape: a quotient of polynomials."""
    x = np.clip(x, _F32(-TANH_BOUND), _F32(TANH_BOUND))
    square = x * x
    numerator = (square * x) * _polynomial(TANH_NUMERATOR, square) + x
    return np.asarray(numerator / _polynomial(TANH_DENOMINATOR, square))


def logistic(x: np.ndarray) -> np.ndarray:
    """float32 of any shape: e / (1 + e), where e = exp(x / 2) ** 2.

    This is Eigen's form for vectors of four. What is left of a row beyond them the kernels compute
    by std::exp, which differs in the last bit.
    """
    low, high = map(_F32, LOGISTIC_BOUNDS)
    half = np.clip(x, low, high) * _F32(0.5)
    exponent = np.floor(half * _F32(LOG2_E) + _F32(0.5))
    r = half - exponent * _F32(LN_2[0])
    r = r - exponent * _F32(LN_2[1])
    square = r * r
    rest = r * _polynomial(EXP_ODD, square) + _polynomial(EXP_EVEN, square)
    with np.errstate(invalid="ignore"):  # NaN has no exponent, and stays NaN
        root = np.ldexp(square * rest + (r + _F32(1)), exponent.astype(np.int32))
    e = root * root
    return np.asarray(np.where(x < low, _F32(0), e / (_F32(1) + e)))
