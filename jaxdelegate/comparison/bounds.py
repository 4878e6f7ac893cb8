"""When two tensors agree: the one place that says how far apart they may be."""

import dataclasses

import ml_dtypes
import numpy as np

from jaxdelegate.errors import OptionError
from jaxdelegate.measuring.tolerance import NETWORK, TOLERANCES

_SHORT_FLOATS = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_REDUCED = TOLERANCES[np.dtype(np.float16)].rtol
_NOISE = 1e-2  # of the bound: what an operator may add relative to its inputs, when terms cancel


@dataclasses.dataclass(frozen=True)
class Bounds:
    """How far a tensor may be from the reference's.

    Attributes:
        of_largest: for floats, as a fraction of the largest reference value. None: 1e-4, the
            tolerance of whole networks; 1e-2 for tensors stored in float16 or bfloat16, and for
            all floats if the delegate computes in less than float32.
        max_lsb: for quantized integers, in units of the last place; 1: the float view of quantized
            operators, as TFLite's GPU delegate has it, may round a tie the other way. Integers
            that stand for themselves, booleans and strings must be equal.
        max_abs_error: an absolute bound in raw units that replaces all of these.
    """

    of_largest: float | None = None
    max_lsb: int = 1
    max_abs_error: float | None = None

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            OptionError: one of them is negative or NaN.
        """
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and not value >= 0:
                raise OptionError(f"{field.name}: must not be negative, got {value}")

    def fraction(self, dtype: np.dtype) -> float:
        """The bound of a float tensor as a fraction of its largest reference value."""
        if self.of_largest is not None:
            return self.of_largest
        return _REDUCED if dtype in _SHORT_FLOATS else NETWORK.of_largest

    def for_precision(self, *, is_reduced: bool) -> "Bounds":
        """The bounds for a delegate that computes in less than float32, or does not."""
        if is_reduced and self.of_largest is None:
            return dataclasses.replace(self, of_largest=_REDUCED)
        return self

    def limit(
        self, dtype: np.dtype, largest: float, *, is_quantized: bool, inputs_largest: float = 0.0
    ) -> float:
        """The largest allowed absolute error, in raw units.

        Args:
            dtype: of the tensor.
            largest: the largest finite absolute reference value.
            is_quantized: whether its integers stand for reals.
            inputs_largest: the same of what the operator read, when one operator is judged: the
                rounding of terms that cancel shows in proportion to them, not to their sum.
        """
        if self.max_abs_error is not None:
            return self.max_abs_error
        if is_quantized:
            return float(self.max_lsb)
        if dtype.kind not in "fcV":  # V: the floats of ml_dtypes
            return 0.0
        fraction = self.fraction(dtype)
        return fraction * largest + _NOISE * fraction * inputs_largest
