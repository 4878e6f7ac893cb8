"""The tolerance table, and the comparison of outputs with it."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """|got - want| <= atol + rtol * |want| + of_largest * max |want|, over the finite elements."""

    rtol: float = 0.0
    atol: float = 0.0
    of_largest: float = 0.0


TOLERANCES: dict[np.dtype, Tolerance] = {
    np.dtype(np.float64): Tolerance(1e-5, 1e-6),  # kernels compute in float32
    np.dtype(np.float32): Tolerance(1e-5, 1e-6),
    np.dtype(np.complex64): Tolerance(1e-5, 1e-6),
    np.dtype(np.complex128): Tolerance(1e-5, 1e-6),
    np.dtype(np.float16): Tolerance(1e-2, 1e-2),
    np.dtype(ml_dtypes.bfloat16): Tolerance(1e-2, 1e-2),
}
NETWORK = Tolerance(of_largest=1e-4)  # whole float networks
EXACT = Tolerance()


def tolerance_for(dtype: np.dtype, accumulated: int = 1) -> Tolerance:
    """The table's entry, multiplied by sqrt(K) for sums over K values; integers are exact."""
    base = TOLERANCES.get(np.dtype(dtype), EXACT)
    return Tolerance(base.rtol * math.sqrt(accumulated), base.atol * math.sqrt(accumulated))


def assert_close(
    got: Sequence[Any],
    want: Sequence[Any],
    *,
    accumulated: int = 1,
    tolerance: Tolerance | None = None,
    because: str | None = None,
) -> None:
    """Compare outputs one by one: count, shape, dtype, NaN and infinity positions, values.

    Args:
        got: the arrays to check.
        want: the expected arrays.
        accumulated: how many products each value sums (K); widens float tolerances by sqrt(K).
        tolerance: replaces the table's entry; needs `because`.
        because: why this comparison needs another tolerance.

    Raises:
        AssertionError: the outputs differ; the message says where and by how much.
        ValueError: a tolerance without a reason.
    """
    if tolerance is not None and tolerance is not NETWORK and not because:
        raise ValueError("a custom tolerance needs because=")
    assert len(got) == len(want), f"{len(got)} outputs, expected {len(want)}"
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        _assert_one(
            i,
            np.asarray(g),
            np.asarray(w),
            tolerance or tolerance_for(np.asarray(w).dtype, accumulated),
        )


def _assert_one(i: int, got: np.ndarray, want: np.ndarray, tolerance: Tolerance) -> None:
    assert got.shape == want.shape, f"output {i}: shape {got.shape}, expected {want.shape}"
    assert got.dtype == want.dtype, f"output {i}: dtype {got.dtype}, expected {want.dtype}"
    if want.size == 0:
        return
    if tolerance == EXACT or want.dtype == object:
        wrong = np.flatnonzero(got.ravel() != want.ravel())
        where = wrong[0] if wrong.size else 0
        assert not wrong.size, (
            f"output {i}: {wrong.size} of {want.size} differ, first at {where}: "
            f"got {got.flat[where]}, expected {want.flat[where]}"
        )
        return
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore"):  # signaling NaN
        g, w = got.astype(wide), want.astype(wide)
    same = (g == w) | (np.isnan(g) & np.isnan(w))
    finite = np.isfinite(g) & np.isfinite(w)
    assert np.all(same | finite), (
        f"output {i}: NaN or infinity in {int((~(same | finite)).sum())} other places"
    )
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, np.abs(g - w))
    largest = float(np.abs(w[np.isfinite(w)]).max(initial=0.0))
    base = tolerance.atol + tolerance.of_largest * largest
    limit = base + tolerance.rtol * np.where(finite, np.abs(w), 0.0)
    worst = int(np.argmax(error - limit))
    assert error.flat[worst] <= limit.flat[worst], (
        f"output {i}: {int((error > limit).sum())} of {w.size} out of tolerance, worst at "
        f"{[int(n) for n in np.unravel_index(worst, w.shape)]}: "
        f"got {g.flat[worst]}, expected {w.flat[worst]}, allowed {limit.flat[worst]:.3g}"
    )
