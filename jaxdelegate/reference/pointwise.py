"""The shell around numpy kernels that act element by element."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.spec import Specs
from jaxdelegate.reference.kernel import Array, Run

_HALF = (np.float16, ml_dtypes.bfloat16)


def elementwise(function: Callable[..., Any]) -> Run:
    """A kernel that applies `function` to all inputs, which numpy broadcasts."""
    return with_options(lambda _o, *arrays: function(*arrays))


def with_options(function: Callable[..., Any]) -> Run:
    """A kernel that applies `function(options, *arrays)`; half precision is computed in float32."""

    def run(o: Any, inputs: Specs, outputs: Specs, *arrays: Array) -> tuple[Array]:
        reject_quantized(inputs)
        with np.errstate(all="ignore"):  # overflow, NaN and division by zero are results here
            y = function(o, *(widen(a) for a in arrays))
            return (np.asarray(y).astype(outputs[0].dtype),)

    return run


def widen(x: Array) -> Array:
    """Half precision as float32, anything else as it is."""
    return x.astype(np.float32) if x.dtype in _HALF else x


def reject_quantized(inputs: Specs) -> None:
    """Keep integers that stand for reals out of arithmetic on plain numbers.

    Raises:
        TypeError: an input has a scale.
    """
    for spec in inputs:
        if spec is not None and spec.is_quantized:
            raise TypeError(
                f"{spec.name!r} is quantized {spec.dtype}: this kernel computes on plain numbers"
            )
