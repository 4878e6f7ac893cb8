"""What to do with an array that does not fit a tensor: the remedy in messages."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from jaxdelegate.errors import TensorError
from jaxdelegate.op_lowering.dtypes import TENSOR_TYPES
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.params import tensor_scale, tensor_zero_point
from jaxdelegate.text import printable

_FLOATS = tuple(map(np.dtype, (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)))


def mismatch(index: int, array: Any, spec: TensorSpec) -> TensorError:
    """What `set_tensor` raises for an array, of the host or a device, of another dtype or shape."""
    name, dtype, shape = spec.name, spec.dtype, spec.shape
    wants = f"{name!r} wants {dtype} {list(shape)}, got {array.dtype} {list(array.shape)}"
    wants += remedy(array.dtype, array.shape, dtype, shape) + grid(array.dtype, spec)
    wants += resize(array.shape, shape) if array.dtype == dtype else ""
    if array.dtype != dtype:
        got = TENSOR_TYPES[array.dtype].name if array.dtype in TENSOR_TYPES else str(array.dtype)
        return TensorError(
            f"Cannot set tensor: Got value of type {got} but expected type "
            f"{TENSOR_TYPES[dtype].name} for input {index}, name: {printable(name)} ({wants})"
        )
    where, got_size, size = "", array.ndim, len(shape)
    if got_size == size:
        pairs = enumerate(zip(array.shape, shape, strict=True))
        axis, (got_size, size) = next(pair for pair in pairs if pair[1][0] != pair[1][1])
        where = f"dimension {axis} of "
    return TensorError(
        f"Cannot set tensor: Dimension mismatch. Got {got_size} but expected {size} "
        f"for {where}input {index}. ({wants})"
    )


def remedy(got: np.dtype, shape: Sequence[int], wanted: np.dtype, declared: Sequence[int]) -> str:
    """What to add to a message, with a semicolon before it; empty where nothing is sure."""
    if got != wanted:  # integers of another width may mean another quantization
        are_floats = got in _FLOATS and wanted in _FLOATS
        return f"; convert it with .astype({str(wanted)!r})" if are_floats else ""
    if _fits(shape, declared):
        return ""
    if _fits((1, *shape), declared):
        return "; add the batch dimension with x[np.newaxis]"
    if shape[:1] == (1,) and _fits(shape[1:], declared):
        return "; leave the first dimension out: pass x[0], or x instead of [x]"
    if len(shape) == 4 and _fits([shape[i] for i in (0, 2, 3, 1)], declared):
        return "; the tensor is [batch, height, width, channels]: use x.transpose(0, 2, 3, 1)"
    return ""


def grid(got: np.dtype, spec: TensorSpec) -> str:
    """What to add about the grid of a quantized tensor for an array of another dtype."""
    if got == spec.dtype or spec.quantization is None or not spec.is_quantized:
        return ""
    q = spec.quantization
    if q.scale.size != 1:
        return "; it is quantized: pass the integers of its grid"
    return (
        f"; it is quantized, with scale {tensor_scale(q):.8g} and zero point "
        f"{tensor_zero_point(q)}: pass round(x / scale) + zero_point of real values x"
    )


def resize(shape: Sequence[int], declared: Sequence[int]) -> str:
    """What to add for an array of another batch size than a tensor that was not resized for it."""
    is_batch = len(shape) == len(declared) and _fits((*declared[:1], *shape[1:]), declared)
    if not is_batch or _fits(shape, declared):
        return ""
    return f"; for another batch size call resize_tensor_input with {list(shape)} first"


def _fits(shape: Sequence[int], declared: Sequence[int]) -> bool:
    return len(shape) == len(declared) and all(
        n in (m, -1) or m == -1 for n, m in zip(shape, declared, strict=True)
    )
