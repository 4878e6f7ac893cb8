"""How far two results may differ: the one rule, which all comparisons ask.

1. A tensor agrees if no element is beyond `Bounds.limit`. If one is, rounding may be the reason.
   What it costs depends on the network, so it is measured, and decides by `allowed`:
2. An operator alone, on the reference's inputs, is right within twice the distance that rounding
   its operands moves the reference's own kernel (`Bounds.by_rounding`; operators.py).
3. The outputs as a whole are right if each figure (figures.py) loses at most `LOSSES`, or twice
   what LiteRT's other kernels lose, or the reference on rounded weights and inputs.
4. The log-probabilities of a language model (answers.py) are right within `LOG_PROBABILITIES`, or
   twice what LiteRT's other kernels are off by; and another token is right within twice the
   difference that was measured where the tokens are equal.

Nothing measured permits more than `MOST` of a loss or between two tokens.
"""

import dataclasses
from typing import Literal

import ml_dtypes
import numpy as np

from jaxdelegate.errors import OptionError
from jaxdelegate.measuring.tolerance import NETWORK, TOLERANCES
from jaxdelegate.model.records import Model, Tensor

Precision = Literal["float", "reduced", "quantized"]

MOST = 0.5
_TIMES = 2.0  # two results may be off in opposite directions
# By figure, what every network may lose.
LOSSES: dict[str, dict[Precision, float]] = {
    # Of numbers; 0.14 is a cosine of 0.99 for values without a mean.
    "relative RMS error": {"float": 1e-3, "reduced": 0.03, "quantized": 0.14},
    "other top-1": {"float": 0.0, "reduced": 0.0, "quantized": 0.0},
    "1 - mean IoU of labels": {"float": 0.01, "reduced": 0.03, "quantized": 0.1},
    "unequal elements": {"float": 0.0, "reduced": 0.0, "quantized": 0.0},
    "1 - IoU of selected boxes": {"float": 0.0, "reduced": 0.05, "quantized": 0.1},
    "1 - mean IoU of detections": {"float": 0.01, "reduced": 0.05, "quantized": 0.1},
}
# In float32 the kernels of LiteRT and XLA differ by up to 5e-6 for the bundles that were measured;
# weights that were rounded to float16 differ by 1e-3 and more.
LOG_PROBABILITIES: dict[Precision, float] = {"float": 1e-4, "reduced": 0.05, "quantized": 0.05}

_SHORT_FLOATS = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_REDUCED = TOLERANCES[np.dtype(np.float16)].rtol
_CANCELLED = 1e-2  # part of the bound that the operands count, for terms that cancel


def allowed(small: float, rounding: float, most: float = np.inf) -> float:
    """The largest difference that is rounding; what was measured of it permits at most `most`."""
    return max(small, min(_TIMES * rounding, most))


def precision(*records: Model, is_reduced: bool) -> Precision:
    """The least precise that models have; of two, also that of weights that one stores."""
    tensors = [t for record in records for graph in record.subgraphs for t in graph.tensors]
    if any(t.spec().is_quantized for t in tensors):
        return "quantized"
    is_short = any(t.stored is not None and t.dtype in _SHORT_FLOATS for t in tensors)
    return "reduced" if is_reduced or (is_short and len(records) > 1) else "float"


@dataclasses.dataclass(frozen=True)
class Bounds:
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

    def for_precision(self, *, is_reduced: bool) -> "Bounds":
        if is_reduced and self.of_largest is None:
            return dataclasses.replace(self, of_largest=_REDUCED)
        return self

    def of_real_values(self, tensor: Tensor) -> "Bounds":
        """For a tensor's dequantized values: quantization steps and float rounding."""
        q = tensor.quantization
        if not tensor.spec().is_quantized or q is None or not len(q.scale):
            return self
        step = float(q.scale.max())
        return dataclasses.replace(self, max_abs_error=(self.max_lsb + 0.01) * step)

    def by_rounding(self, rounded: np.ndarray, exact: np.ndarray) -> "Bounds":
        """For a result whose operands are rounded: its values from rounded and exact operands."""
        distance = float(np.abs(rounded - exact).max(initial=0.0))
        return dataclasses.replace(self, max_abs_error=allowed(0.0, distance))

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
        fraction = self.of_largest
        if fraction is None:
            fraction = _REDUCED if dtype in _SHORT_FLOATS else NETWORK.of_largest
        return fraction * largest + _CANCELLED * fraction * inputs_largest
