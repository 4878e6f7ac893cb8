"""Decodes a tensor's bytes: numbers, packed integers, strings.

Sources: util.cc BytesRequired, kernels/internal/portable_tensor_utils.cc, string_util.h.
"""

import itertools
import math
from typing import cast

import numpy as np

from jaxdelegate.op_lowering.dtypes import DTYPES
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.quant.packing import BITS, MANY, PackedConstant, unpack


def byte_count(tensor_type: TensorType, count: int) -> int:
    """The bytes of `count` values in a file, with small integers packed. Not for STRING."""
    dtype = DTYPES[tensor_type]
    return -(-count * BITS[dtype] // 8) if dtype in BITS else count * dtype.itemsize


def is_copied(tensor_type: TensorType) -> bool:
    """Whether values of this type are a copy and not a view of the bytes."""
    return tensor_type in (TensorType.STRING, TensorType.BOOL) or DTYPES[tensor_type] in BITS


Problem = tuple[str, str]  # the rule, and the actual value


def why_not_stored(tensor_type: TensorType, count: int, stored: np.ndarray) -> Problem | None:
    """Why `stored`, uint8 [n], cannot be `count` values of this type; None: it can.

    It may have more bytes than needed: stock LiteRT reads the first ones.
    """
    if tensor_type is TensorType.STRING:
        return _why_not_strings(stored, count)
    needed = byte_count(tensor_type, count)
    if stored.size < needed:
        return f"{count} values of {tensor_type.name} need {needed} bytes", f"{stored.size}"
    return None


def constant(tensor_type: TensorType, shape: Shape, stored: np.ndarray) -> np.ndarray:
    """Values as by `decode`, but many packed integers stay packed: a view that acts as an array."""
    count, dtype = math.prod(shape), DTYPES[tensor_type]
    if dtype not in BITS or count < MANY:
        return decode(tensor_type, shape, stored)
    packed = stored[: byte_count(tensor_type, count)]
    packed.flags.writeable = False
    return cast("np.ndarray", PackedConstant(packed, shape, dtype))


def decode(tensor_type: TensorType, shape: Shape, stored: np.ndarray) -> np.ndarray:
    """Read-only values: a view, or a copy for packed integers, strings (bytes) and booleans.

    `stored` is uint8 [n], for which `why_not_stored` returns None.
    """
    count = math.prod(shape)
    if tensor_type is TensorType.STRING:
        values = _strings(stored, count).reshape(shape)
    elif DTYPES[tensor_type] in BITS:
        packed = stored[: byte_count(tensor_type, count)]
        values = unpack(packed, count, DTYPES[tensor_type]).reshape(shape)
    elif tensor_type is TensorType.BOOL:
        # Files may have other values than 0 and 1.
        values = (stored[:count] != 0).reshape(shape)
    else:
        values = np.ndarray(shape, DTYPES[tensor_type], stored)
    values.flags.writeable = False
    return values


def _string_offsets(stored: np.ndarray, count: int) -> np.ndarray:
    """int32 [count + 1]: the start of each string, and the end of the last one."""
    return stored[4 : 4 * (count + 2)].view(np.int32)


def _why_not_strings(stored: np.ndarray, count: int) -> Problem | None:
    if stored.size == 0 and count == 0:
        return None
    if stored.size < 4:
        return "STRING data starts with 4 bytes, the number of strings", f"{stored.size} bytes"
    found = int(stored[:4].view(np.int32)[0])
    if found != count:
        return f"a tensor of this shape has {count} strings", f"{found}"
    header = 4 * (count + 2)
    if stored.size < header:
        return f"{count} strings need {header} bytes before their characters", f"{stored.size}"
    ends = [header, *_string_offsets(stored, count).tolist(), stored.size]
    wrong = next((end for start, end in itertools.pairwise(ends) if start > end), None)
    rule = f"string offsets must ascend from {header} to {stored.size}"
    return None if wrong is None else (rule, f"{wrong}")


def _strings(stored: np.ndarray, count: int) -> np.ndarray:
    values = np.empty(count, object)
    if count:
        offsets, characters = _string_offsets(stored, count).tolist(), stored.data
        for i, (start, end) in enumerate(itertools.pairwise(offsets)):
            values[i] = bytes(characters[start:end])
    return values
