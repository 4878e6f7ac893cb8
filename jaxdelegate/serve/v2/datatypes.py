"""The protocol's datatypes as numpy dtypes, and the elements of BYTES."""

import struct

import ml_dtypes
import numpy as np

from jaxdelegate.serve.clients import RequestError

BYTES = "BYTES"
MAX_TEXTS = 1 << 20  # elements of BYTES in a tensor: each takes some 60 bytes more than its text
_LENGTH = struct.Struct("<I")  # before each element of BYTES

_DTYPES = {
    "BOOL": np.dtype(bool),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    BYTES: np.dtype(object),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def name_of(dtype: np.dtype) -> str:
    """A RequestError if the protocol has none, for instance for complex numbers."""
    if dtype.kind in "SU":
        return BYTES
    if dtype not in _NAMES:
        raise RequestError(f"the protocol has no datatype for {dtype}", 501)
    return _NAMES[dtype]


def dtype_of(name: object) -> np.dtype | None:
    """The dtype of a datatype's name; None: an unknown datatype."""
    return _DTYPES.get(name) if isinstance(name, str) else None


def known() -> str:
    return ", ".join(_DTYPES)


def split_bytes(data: memoryview, what: str, most: int = MAX_TEXTS) -> list[bytes]:
    """Each element of BYTES follows its length, 4 bytes, little-endian.

    `what` is the tensor, for messages.
    """
    found: list[bytes] = []
    start = 0
    while start < len(data):
        if len(found) == most:
            raise RequestError(f"{what}: expected {most} elements of BYTES, got more")
        if len(data) - start < _LENGTH.size:
            raise RequestError(
                f"{what}: the length of element {len(found)} of BYTES takes 4 bytes, but "
                f"{len(data) - start} are left"
            )
        (length,) = _LENGTH.unpack_from(data, start)
        start += _LENGTH.size
        if length > len(data) - start:
            raise RequestError(
                f"{what}: element {len(found)} of BYTES has the length {length}, but "
                f"{len(data) - start} bytes are left"
            )
        found.append(bytes(data[start : start + length]))
        start += length
    return found


def elements(array: np.ndarray) -> list[bytes]:
    """The elements of an array of str or bytes, row-major, strings in UTF-8."""
    return [e.encode() if isinstance(e, str) else bytes(e) for e in array.ravel().tolist()]


def joined_bytes(array: np.ndarray) -> bytes:
    found = elements(array)
    return b"".join(part for e in found for part in (_LENGTH.pack(len(e)), e))
