"""Common parts of dynamic range convolutions and matrix products: float32 rows, integer filters."""

import numpy as np

from jaxdelegate.quant.affine import asymmetric_quantize, symmetric_quantize
from jaxdelegate.reference.kernel import Array

Rows = tuple[Array, Array, Array]


def quantize_rows(x: Array, *, asymmetric: bool) -> Rows:
    """Quantize float32 rows [..., n] on the fly; scales and zero points are [...]."""
    if asymmetric:
        return asymmetric_quantize(x)
    q, scale = symmetric_quantize(x)
    return q, scale, np.zeros(scale.shape, np.int32)


def signed(w: Array) -> Array:
    """A stored filter as int8; the kernels read uint8 as signed bytes."""
    return w.view(np.int8) if w.dtype == np.uint8 else w.astype(np.int8)
