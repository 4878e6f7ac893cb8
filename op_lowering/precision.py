"""The precision policy: in which dtype an operator stores, multiplies and accumulates."""

import dataclasses

import ml_dtypes
import numpy as np

_HALF = frozenset(np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16))


@dataclasses.dataclass(frozen=True)
class PrecisionPolicy:
    """What lowerings ask; nobody else decides. This one computes at full precision.

    `dot_precision` is the `precision=` of every `lax` dot and convolution: XLA's default would use
    tensorfloat32 on a GPU and bfloat16 on a TPU.
    """

    dot_precision: str = "highest"

    def accumulator(self, dtype: np.dtype) -> np.dtype:
        """The dtype of sums, products and normalisations over `dtype` (float16 ends at 65504)."""
        return np.dtype(np.float32) if dtype in _HALF else dtype
