"""Quantized operands of operator cases."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing.case import Arg, of


def scaled(scale: Any, zero_point: int | Sequence[int] = 0, axis: int = 0) -> Quantization:
    """One scale for a whole tensor, or one for each index of an axis; zero points likewise."""
    scales = np.atleast_1d(np.asarray(scale, np.float32))
    return Quantization(scales, np.full(scales.shape, zero_point, np.int64), axis)


def ends(dtype: Any) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def any_integers(dtype: Any, *shape: int, seed: int = 0) -> np.ndarray:
    low, high = ends(dtype)
    return of(dtype, *shape, low=low, high=high, seed=seed).value


def integers(
    rng: np.random.Generator,
    dtype: Any,
    shape: Sequence[int],
    scale: float,
    zero_point: int = 0,
    *,
    extent: int | None = None,
    is_const: bool = True,
) -> Arg:
    """Random integers of the dtype's range, or of a magnitude up to `extent`."""
    info = np.iinfo(dtype)
    low, high = (info.min, info.max) if extent is None else (-extent, extent)
    array = rng.integers(low, high, shape, dtype, endpoint=True)
    return Arg(array, is_const, quantization=scaled(scale, zero_point))
