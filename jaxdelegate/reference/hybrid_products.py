"""What hybrid convolutions and matrix products share: float32 rows by integer filters."""

import numpy as np

from jaxdelegate.quant.affine import round_half_away, symmetric_quantize
from jaxdelegate.reference.kernel import Array

Rows = tuple[Array, Array, Array]


def quantize_rows(x: Array, *, asymmetric: bool) -> Rows:
    """Rows [..., n] of float32 on the fly: x ~ scale * (q - zero point).

    Returns:
        int8 [..., n], the scales, float32 [...], and the zero points, int32 [...].
    """
    if asymmetric:
        return _asymmetric(x)
    q, scale = symmetric_quantize(x)
    return q, scale, np.zeros(scale.shape, np.int32)


def _asymmetric(x: Array) -> Rows:
    """NeonAsymmetricQuantizeFloats of kernels/internal/optimized/neon_tensor_utils.cc.

    x86 builds run it too. It takes the range in float32, and rounds before it adds the zero point.
    """
    low, high = np.min(x, -1, initial=0), np.max(x, -1, initial=0)
    empty = low == high
    with np.errstate(all="ignore"):
        exact = np.where(empty, 1.0, (high - low).astype(np.float64) / 255)
        scale = exact.astype(np.float32)
        zero = _zero_point(low.astype(np.float64) / exact, high.astype(np.float64) / exact)
        steps = round_half_away(x * (np.float32(1) / scale)[..., None])
        steps = np.where(np.isnan(steps), 0, steps)  # 0 times the inverse of a denormal scale
    zero = np.where(empty, 0, zero)
    return np.clip(steps + zero[..., None], -128, 127).astype(np.int8), scale, zero.astype(np.int32)


def _zero_point(low: Array, high: Array) -> Array:
    """From whichever end of the range, in steps, loses less."""
    from_low = 128 + np.abs(low) < 127 + np.abs(high)
    return round_half_away(np.clip(np.where(from_low, -128 - low, 127 - high), -128, 127))


def signed(w: Array) -> Array:
    """A stored filter as int8; the kernels read the bytes of an uint8 one as signed ones."""
    return w.view(np.int8) if w.dtype == np.uint8 else w.astype(np.int8)
