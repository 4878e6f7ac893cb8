"""Error metrics of a tensor over any number of runs."""

import collections
import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from jaxdelegate.comparison.bounds import Bounds
from jaxdelegate.model.records import Operator, Tensor
from jaxdelegate.quant.affine import dequantize
from jaxdelegate.quant.params import Quantization
from jaxdelegate.runtime.tensor_details import array_type

HISTOGRAM_END = 16  # the outer bins of an LSB histogram include everything beyond


@dataclasses.dataclass(frozen=True)
class Worst:
    """The element with the largest error: its run (from 0), position, and both values."""

    run: int
    position: tuple[int, ...]
    got: float
    want: float


@dataclasses.dataclass(frozen=True)
class TensorComparison:
    """The comparison of one tensor with the reference's over all runs.

    Errors are in raw units: quantized integers are not scaled. Their zero point is subtracted where
    the magnitude of a value matters (relative errors, cosine, SNR). A metric that is undefined (for
    strings, an all-zero tensor, shapes that differ) is None. Elements that are NaN or infinite on
    either side are counted, and left out of all other metrics.
    """

    index: int
    name: str
    dtype: str  # numpy's name
    shape: tuple[int, ...]  # the reference's in the latest run
    runs: int
    elements: int
    mean_abs: float | None  # mean absolute error over the elements; TFLite's avg_error
    # Population standard deviation of the runs' mean absolute errors, as TFLite's.
    std_dev: float | None
    min_mean_abs: float | None  # the smallest of the runs' mean absolute errors
    max_mean_abs: float | None  # the largest of them
    max_abs: float | None
    relative: float | None  # sum of absolute errors / sum of absolute reference values
    relative_to_largest: float | None  # `max_abs` / the largest absolute reference value
    cosine: float | None  # cosine similarity, with all runs as one vector
    # 10 log10(energy of the reference / energy of the error); None without an error.
    snr_db: float | None
    unequal: int  # the number of elements that are not equal (NaN equals NaN)
    # The number of elements where only one side is NaN or infinite, or the sides differ in that.
    nonfinite_mismatches: int
    exceeding: int  # the number of elements whose error is larger than `limit`
    limit: float | None  # the largest allowed absolute error in the latest run
    # For quantized integers, the number of elements by test - reference; the bins -16 and 16
    # include everything beyond.
    lsb_histogram: dict[int, int] | None
    shape_mismatch: str | None  # a text about shapes or dtypes that differ
    worst: Worst | None

    @property
    def agrees(self) -> bool:
        return not (self.exceeding or self.nonfinite_mismatches or self.shape_mismatch)

    @property
    def severity(self) -> tuple[bool, float, float]:
        """A sort key: agreement first, then the relative error."""
        odd = self.nonfinite_mismatches or self.shape_mismatch
        error = self.relative_to_largest
        if error is None:
            error = self.max_abs
        if error is None:
            error = self.unequal / max(self.elements, 1)
        return not self.agrees, math.inf if odd else error, self.mean_abs or 0.0

    def brief(self) -> str:
        if self.shape_mismatch:
            return self.shape_mismatch
        if self.max_abs is None:
            return f"{self.unequal} of {self.elements} unequal"
        words = f"max_abs={self.max_abs:.4g}"
        if self.relative_to_largest is not None:
            words += f" ({self.relative_to_largest:.3g} of the largest)"
        if self.nonfinite_mismatches:
            words += f", {self.nonfinite_mismatches} NaN or infinite on one side only"
        return words


class Comparer:
    """Compares one tensor in several runs; keeps sums, not arrays."""

    def __init__(
        self,
        index: int,
        name: str,
        dtype: np.dtype,
        bounds: Bounds,
        quantization: Quantization | None = None,
    ) -> None:
        """Integers are quantized if there is a `quantization`."""
        self._index, self._name, self._dtype, self._bounds = index, name, dtype, bounds
        self._quantization = quantization if dtype.kind in "iu" else None
        self._shape: tuple[int, ...] = ()
        self._counts: collections.Counter[str] = collections.Counter()
        self._sums: dict[str, float] = collections.defaultdict(float)
        self._histogram: collections.Counter[int] = collections.Counter()
        self._means: list[float] = []
        self._largest = 0.0
        self._limit: float | None = None
        self._mismatch: str | None = None
        self._worst: Worst | None = None
        self._max_abs = 0.0
        self.runs = 0

    def add(self, got: np.ndarray, want: np.ndarray, inputs_largest: float = 0.0) -> None:
        """Compare one run's arrays; for `inputs_largest` see `Bounds.limit`."""
        self._shape = want.shape
        self._counts["elements"] += want.size
        strings = {got.dtype.kind, want.dtype.kind} <= set("OSU")
        if got.shape != want.shape or (got.dtype != want.dtype and not strings):
            self._mismatch = (
                f"{got.dtype} {list(got.shape)} instead of {want.dtype} {list(want.shape)}"
            )
        elif strings:
            unequal = int(np.count_nonzero(got != want))
            self._counts.update(unequal=unequal, exceeding=unequal)
        else:
            with np.errstate(invalid="ignore", over="ignore"):  # signaling NaN, huge numbers
                self._add_numbers(got, want, inputs_largest)
        self.runs += 1

    def _add_numbers(self, got: np.ndarray, want: np.ndarray, inputs_largest: float) -> None:
        finite = np.isfinite(got) & np.isfinite(want)
        odd = int(np.count_nonzero(~finite & ~((got == want) | (np.isnan(got) & np.isnan(want)))))
        error = np.where(finite, _absolute_error(got, want), 0.0)
        g, w = self._centered(got, finite), self._centered(want, finite)
        largest = _largest(w)
        self._largest = max(self._largest, largest)
        self._limit = self._bounds.limit(
            self._dtype,
            largest,
            is_quantized=self._quantization is not None,
            inputs_largest=inputs_largest,
        )
        self._counts.update(
            odd=odd,
            unequal=odd + int(np.count_nonzero(error)),
            exceeding=int(np.count_nonzero(error > self._limit)),
            finite=int(np.count_nonzero(finite)),
        )
        self._means.append(float(error.sum() / max(np.count_nonzero(finite), 1)))
        self._add_energies(error, g, w)
        self._find_worst(error, got, want)
        if self._quantization is not None:
            self._add_to_histogram(got, want)

    def _add_energies(self, error: np.ndarray, g: np.ndarray, w: np.ndarray) -> None:
        for name, value in (
            ("error", error.sum()),
            ("error2", np.vdot(error, error)),
            ("want", np.abs(w).sum()),
            ("want2", np.vdot(w, w)),
            ("got2", np.vdot(g, g)),
            ("dot", np.vdot(w, g)),
        ):
            self._sums[name] += float(np.real(value))

    def _find_worst(self, error: np.ndarray, got: np.ndarray, want: np.ndarray) -> None:
        if not error.size or error.max() <= self._max_abs:
            return
        where = np.unravel_index(int(np.argmax(error)), error.shape)
        self._max_abs = float(error[where])
        position = tuple(int(n) for n in where)
        self._worst = Worst(self.runs, position, _number(got[where]), _number(want[where]))

    def _add_to_histogram(self, got: np.ndarray, want: np.ndarray) -> None:
        end = HISTOGRAM_END
        signed = np.where(got >= want, 1, -1) * np.minimum(_absolute_error(got, want), end)
        values, counts = np.unique(signed.astype(np.int64), return_counts=True)
        self._histogram.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))

    def _centered(self, array: np.ndarray, finite: np.ndarray) -> np.ndarray:
        """Flat float64 (or complex128) values of the finite elements, without the zero point."""
        wide = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
        q = self._quantization
        if q is not None and len(q.zero_point):
            zero = np.asarray(q.zero_point, np.float64)
            if zero.size > 1:
                axes = [i for i in range(array.ndim) if i != q.quantized_dimension]
                zero = np.expand_dims(zero, axes)
            wide = wide - zero.reshape(zero.shape if zero.size > 1 else ())
        result: np.ndarray = wide[finite]
        return result

    def result(self) -> TensorComparison:
        counts, sums = self._counts, self._sums
        means, numbers = np.array(self._means), bool(self._means)
        return TensorComparison(
            index=self._index,
            name=self._name,
            dtype=str(self._dtype),
            shape=self._shape,
            runs=self.runs,
            elements=counts["elements"],
            mean_abs=sums["error"] / max(counts["finite"], 1) if numbers else None,
            std_dev=float(means.std()) if numbers else None,
            min_mean_abs=float(means.min()) if numbers else None,
            max_mean_abs=float(means.max()) if numbers else None,
            max_abs=self._max_abs if numbers else None,
            relative=_ratio(sums["error"], sums["want"]) if numbers else None,
            relative_to_largest=_ratio(self._max_abs, self._largest) if numbers else None,
            cosine=_cosine(sums) if numbers else None,
            snr_db=_snr(sums) if numbers else None,
            unequal=counts["unequal"],
            nonfinite_mismatches=counts["odd"],
            exceeding=counts["exceeding"],
            limit=self._limit,
            lsb_histogram=dict(sorted(self._histogram.items())) if self._histogram else None,
            shape_mismatch=self._mismatch,
            worst=self._worst,
        )


def real_values(tensor: Tensor, array: np.ndarray) -> np.ndarray:
    """What an interpreter's array means: float32 if the tensor is quantized, else the array."""
    spec = tensor.spec()
    if not spec.is_quantized or spec.quantization is None:
        return array
    return dequantize(array, spec.quantization)


def comparer_for(tensor: Tensor, bounds: Bounds) -> Comparer:
    quantization = tensor.quantization if tensor.spec().is_quantized else None
    dtype = np.dtype(array_type(tensor))
    return Comparer(tensor.index, tensor.name, dtype, bounds, quantization)


def read_by(operator: Operator, values: Mapping[int, np.ndarray]) -> float:
    """The largest finite magnitude of the floats that an operator reads; 0 without floats."""
    arrays = (values[i] for i in operator.inputs if i in values)
    return max((_largest_finite(a) for a in arrays if a.dtype.kind in "fcV"), default=0.0)


def _largest_finite(array: np.ndarray) -> float:
    with np.errstate(invalid="ignore"):  # signaling NaN
        wide = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    return _largest(wide[np.isfinite(wide)])


def _largest(values: np.ndarray) -> float:
    return float(np.abs(values).max(initial=0.0))


def _absolute_error(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """|got - want| in float64; for integers of any size the exact difference is rounded."""
    if got.dtype.kind == "b":
        unequal: np.ndarray = got != want
        return unequal.astype(np.float64)
    if got.dtype.kind in "iu":
        above, below = np.maximum(got, want), np.minimum(got, want)
        apart: np.ndarray = above.astype(np.uint64) - below.astype(np.uint64)
        return apart.astype(np.float64)
    wide = np.complex128 if got.dtype.kind == "c" else np.float64
    error: np.ndarray = np.abs(got.astype(wide) - want.astype(wide))
    return error


def _number(value: np.generic) -> float:
    return float(np.abs(np.complex128(value))) if value.dtype.kind == "c" else float(value)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _cosine(sums: dict[str, float]) -> float | None:
    norm = math.sqrt(sums["got2"]) * math.sqrt(sums["want2"])
    return min(1.0, max(-1.0, sums["dot"] / norm)) if norm else None


def _snr(sums: dict[str, float]) -> float | None:
    if not sums["error2"] or not sums["want2"]:
        return None
    return 10 * math.log10(sums["want2"] / sums["error2"])
