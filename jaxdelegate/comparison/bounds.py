"""The error bounds within which two tensors agree."""

import dataclasses

import ml_dtypes
import numpy as np

from jaxdelegate.errors import OptionError
from jaxdelegate.measuring.tolerance import NETWORK, TOLERANCES

SHORT_FLOATS = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_REDUCED = TOLERANCES[np.dtype(np.float16)].rtol
_NOISE = 1e-2  # of the bound: an operator's error relative to its inputs, for terms that cancel


@dataclasses.dataclass(frozen=True)
class Bounds:
    """How far a tensor may differ from the reference's."""

    # For floats, as a fraction of the largest reference value. None: 1e-4, the tolerance of whole
    # networks; 1e-2 for tensors stored in float16 or bfloat16, and for all floats if the delegate
    # computes in reduced precision.
    of_largest: float | None = None
    # For quantized integers, in quantization steps. 1, since computing quantized operators in
    # floats, as TFLite's GPU delegate does, may round a tie the other way. Integers without a
    # scale, booleans and strings must be equal.
    max_lsb: int = 1
    # An absolute bound in raw units, which replaces the other two.
    max_abs_error: float | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and not value >= 0:
                raise OptionError(f"{field.name}: must not be negative, got {value}")

    def fraction(self, dtype: np.dtype) -> float:
        """The bound of a float tensor as a fraction of its largest reference value."""
        if self.of_largest is not None:
            return self.of_largest
        return _REDUCED if dtype in SHORT_FLOATS else NETWORK.of_largest

    def for_precision(self, *, is_reduced: bool) -> "Bounds":
        if is_reduced and self.of_largest is None:
            return dataclasses.replace(self, of_largest=_REDUCED)
        return self

    def limit(
        self, dtype: np.dtype, largest: float, *, is_quantized: bool, inputs_largest: float = 0.0
    ) -> float:
        """The largest allowed absolute error in raw units; `largest` is the reference's.

        `inputs_largest` is that of the inputs if one operator is compared: the rounding of terms
        that cancel is proportional to them, not to their sum.
        """
        if self.max_abs_error is not None:
            return self.max_abs_error
        if is_quantized:
            return float(self.max_lsb)
        if dtype.kind not in "fcV":  # V: the floats of ml_dtypes
            return 0.0
        fraction = self.fraction(dtype)
        return fraction * largest + _NOISE * fraction * inputs_largest
