"""dtypes of operator cases, and why LiteRT accepts only some of them."""

from typing import Any

import ml_dtypes
import numpy as np

BF16 = ml_dtypes.bfloat16
NO_KERNEL = "LiteRT has no kernel for this dtype"
# All but float32.
OTHERS: list[Any] = [np.float16, BF16, np.float64, np.bool_, np.complex64]
OTHERS += [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]


# Those of StableHLO's operators.
STABLEHLO = [
    np.dtype(t)
    for t in (
        *(np.float32, np.float16, BF16, np.float64, np.complex64, np.complex128),
        *(np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, bool),
    )
]


def name(dtype: Any) -> str:
    return str(np.dtype(dtype).name)


def unless(dtype: Any, *known: Any) -> str | None:
    """Why LiteRT cannot run a case of this dtype."""
    return None if dtype in known else NO_KERNEL
