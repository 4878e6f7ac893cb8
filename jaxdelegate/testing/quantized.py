"""Quantized operands of operator cases."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing.case import Arg


def scaled(scale: float, zero_point: int = 0) -> Quantization:
    """One scale and zero point for a whole tensor."""
    return Quantization(np.array([scale], np.float32), np.array([zero_point], np.int64))


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
    """Random integers; `extent`: of this magnitude at most, instead of the dtype's range."""
    info = np.iinfo(dtype)
    low, high = (info.min, info.max) if extent is None else (-extent, extent)
    array = rng.integers(low, high, shape, dtype, endpoint=True)
    return Arg(array, is_const, quantization=scaled(scale, zero_point))
