"""Tensors of requests: their datatypes and declarations, and their data from bytes or JSON."""

import dataclasses
import itertools
import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from jaxdelegate.serve.clients import RequestError, shown
from jaxdelegate.serve.json_objects import Constant
from jaxdelegate.serve.v2.json_text import MAX_TEXTS, ListText, NestingError
from jaxdelegate.serve.v2.requests import TensorMetadata

BYTES = "BYTES"
_LENGTH = struct.Struct("<I")  # before each element of BYTES

DTYPES: dict[str, np.dtype] = {
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
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

MAX_SIZE = 2**31 - 1  # the largest dimension: TFLite's shapes are int32
_PART = 1 << 16  # elements converted at once; other threads can run between two parts


@dataclasses.dataclass(frozen=True)
class Declared:
    """An input as a request declares it, checked against the model before memory is allocated."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"input {shown(self.name)}"


def declared(
    inputs: Mapping[str, TensorMetadata], name: object, datatype: object, shape: object
) -> Declared:
    if not isinstance(name, str):
        raise RequestError(f"an input's name: expected a string, got {shown(name)}")
    if name not in inputs:
        raise RequestError(
            f"input {shown(name)}: the model has no such input; it has "
            f"{', '.join(map(repr, inputs)) or 'none'}"
        )
    wanted = inputs[name]
    what = f"input {shown(name)}"
    dtype = DTYPES.get(datatype) if isinstance(datatype, str) else None
    if dtype is None:
        known = ", ".join(DTYPES)
        raise RequestError(f"{what}: datatype: expected one of {known}, got {shown(datatype)}")
    if dtype != wanted.dtype:
        raise RequestError(
            f"{what}: datatype: the model has {name_of(wanted.dtype)}, got {shown(datatype)}"
        )
    tensor = Declared(name, dtype, _checked_shape(what, wanted.shape, shape))
    if dtype.kind == "O" and tensor.count > MAX_TEXTS:
        raise RequestError(
            f"{what}: shape: expected at most {MAX_TEXTS} elements of BYTES, got {tensor.count}"
        )
    return tensor


def _checked_shape(what: str, wanted: tuple[int, ...], shape: object) -> tuple[int, ...]:
    if not isinstance(shape, list | tuple):
        raise RequestError(f"{what}: shape: expected a list of integers, got {shown(shape)}")
    if len(shape) != len(wanted):
        raise RequestError(
            f"{what}: shape: the model has {list(wanted)} (-1: any size), {len(wanted)} "
            f"dimensions, got {shown(list(shape))}, {len(shape)} dimensions"
        )
    for size in shape:
        if type(size) is not int or not 0 <= size <= MAX_SIZE:
            raise RequestError(
                f"{what}: shape: expected integers from 0 to {MAX_SIZE}, got {shown(size)}"
            )
    if any(w not in (-1, s) for w, s in zip(wanted, shape, strict=True)):
        raise RequestError(
            f"{what}: shape: the model has {list(wanted)} (-1: any size), got {shown(list(shape))}"
        )
    return tuple(shape)


def from_binary(tensor: Declared, data: memoryview) -> np.ndarray:
    """A read-only view of little-endian, row-major data, which may be unaligned.

    BYTES become an object array of bytes.
    """
    if tensor.dtype == object:
        return from_elements(tensor, split_bytes(data, str(tensor), tensor.count))
    wanted = tensor.count * tensor.dtype.itemsize
    if len(data) != wanted:
        raise RequestError(
            f"{tensor}: shape {list(tensor.shape)} of {name_of(tensor.dtype)} takes {wanted} "
            f"bytes, got {len(data)}"
        )
    if tensor.dtype == bool and wanted and np.frombuffer(data, np.uint8).max() > 1:
        raise RequestError(f"{tensor}: bytes of BOOL: expected 0 or 1, got others")
    return np.frombuffer(data, tensor.dtype).reshape(tensor.shape)


def from_json(tensor: Declared, data: object) -> np.ndarray:
    """The array of one flat list, row-major, or lists nested like the shape.

    NaN, Infinity and -Infinity are numbers of float types, as in Triton. Numbers are rounded to the
    datatype. `data` is a `ListText`, or a list from `json.loads` with constants as `Constant`.
    """
    if isinstance(data, ListText):
        try:
            if not data.has_strings:
                return _numbers(tensor, data)
            data = data.read()
        except RequestError:
            raise
        except (ValueError, RecursionError) as error:
            why = error.msg if isinstance(error, json.JSONDecodeError) else error
            raise RequestError(f"{tensor}: data: {why}") from None
    if not isinstance(data, list):
        raise RequestError(f"{tensor}: data: expected a list, got {shown(data)}")
    return from_elements(
        tensor, _unnested(tensor, data) if data and isinstance(data[0], list) else data
    )


def _numbers(tensor: Declared, data: ListText) -> np.ndarray:
    if not data.is_nested:
        _check_count(tensor, data.length)
        return _filled(tensor, data.flat())
    try:
        return _filled(tensor, data.nested(tensor.shape))
    except NestingError:
        raise RequestError(
            f"{tensor}: data: expected one flat list, or lists nested like the shape "
            f"{list(tensor.shape)}"
        ) from None


def _unnested(tensor: Declared, rows: list[Any]) -> list[Any]:
    """The elements of nested lists, whose lengths must match the shape."""
    for level, size in enumerate(tensor.shape):
        lists = [rows] if level == 0 else rows
        if set(map(type, lists)) - {list} or set(map(len, lists)) - {size}:
            raise RequestError(
                f"{tensor}: data: expected one flat list, or lists nested like the shape "
                f"{list(tensor.shape)}; at level {level} not all are lists of {size}"
            )
        rows = rows if level == 0 else list(itertools.chain.from_iterable(rows))
    return rows


_ELEMENTS: dict[str, tuple[frozenset[type], str]] = {
    "b": (frozenset([bool]), "true or false"),
    "i": (frozenset([int]), "integers"),
    "u": (frozenset([int]), "integers"),
    "f": (frozenset([int, float, Constant]), "numbers"),
    "V": (frozenset([int, float, Constant]), "numbers"),  # bfloat16
    "O": (frozenset([str, bytes]), "strings"),
}


def from_elements(tensor: Declared, data: Sequence[Any], *, are_exact: bool = False) -> np.ndarray:
    """The array of all elements, row-major: int, float, bool, str or bytes.

    `are_exact` floats already have the datatype's precision and may be infinite.
    """
    _check_count(tensor, len(data))
    if len(data) <= _PART and not are_exact:
        return _part(tensor, 0, data).reshape(tensor.shape)
    parts = (data[at : at + _PART] for at in range(0, len(data), _PART))
    return _filled(tensor, parts, are_exact=are_exact)


def _check_count(tensor: Declared, count: int) -> None:
    if count != tensor.count:
        raise RequestError(
            f"{tensor}: shape {list(tensor.shape)} has {tensor.count} elements, data has {count}"
        )


def _filled(
    tensor: Declared, parts: Iterable[Sequence[Any]], *, are_exact: bool = False
) -> np.ndarray:
    array, at = np.empty(tensor.count, tensor.dtype), 0
    for part in parts:
        is_ready = are_exact and tensor.dtype.kind == "f"
        array[at : at + len(part)] = part if is_ready else _part(tensor, at, part)
        at += len(part)
    if at != tensor.count:
        raise RequestError(f"{tensor}: data: an element is missing between two commas")
    return array.reshape(tensor.shape)


def _part(tensor: Declared, start: int, data: Sequence[Any]) -> np.ndarray:
    types, what = _ELEMENTS[tensor.dtype.kind]
    if not types.issuperset(map(type, data)):
        at, wrong = next((i, e) for i, e in enumerate(data, start) if type(e) not in types)
        raise RequestError(
            f"{tensor}: data: {name_of(tensor.dtype)} takes {what}, element {at} is {shown(wrong)}"
        )
    if tensor.dtype == object:
        array = np.empty(len(data), object)
        array[:] = [_encoded(tensor, i, e) for i, e in enumerate(data, start)]
        return array
    return (_floats if tensor.dtype.kind in "fV" else _integers)(tensor, start, data)


def _encoded(tensor: Declared, at: int, element: str | bytes) -> bytes:
    try:
        return element if isinstance(element, bytes) else element.encode()
    except UnicodeEncodeError:
        raise RequestError(
            f"{tensor}: data: element {at} contains half of a surrogate pair"
        ) from None


def _integers(tensor: Declared, start: int, data: Sequence[int]) -> np.ndarray:
    try:
        return np.array(data, tensor.dtype)
    except OverflowError:
        limits = np.iinfo(tensor.dtype)
        at = next(i for i, e in enumerate(data) if not limits.min <= e <= limits.max)
        raise RequestError(
            f"{tensor}: data: {name_of(tensor.dtype)} takes {limits.min} to {limits.max}, "
            f"element {start + at} is {shown(data[at])}"
        ) from None


def _floats(tensor: Declared, start: int, data: Sequence[float]) -> np.ndarray:
    try:
        wide = np.array(data, np.float64)
    except OverflowError:  # an integer beyond double
        wide = np.array([_double(e) for e in data])
    with np.errstate(over="ignore"):
        array = wide.astype(tensor.dtype)
    for at in np.flatnonzero(np.isinf(array)).tolist():
        if type(data[at]) is not Constant:
            raise RequestError(
                f"{tensor}: data: element {start + at} is beyond {name_of(tensor.dtype)}: "
                f"{shown(data[at])}; write Infinity for infinity"
            )
    return array


def _double(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def name_of(dtype: np.dtype) -> str:
    """A RequestError if the protocol has none, for instance for complex numbers."""
    if dtype.kind in "SU":
        return BYTES
    if dtype not in _NAMES:
        raise RequestError(f"the protocol has no datatype for {dtype}", 501)
    return _NAMES[dtype]


def split_bytes(data: memoryview, what: str, most: int = MAX_TEXTS) -> list[bytes]:
    """Each element of BYTES follows its length, 4 bytes, little-endian.

    `what` is the tensor, for messages.
    """
    texts: list[bytes] = []
    start = 0
    while start < len(data):
        if len(texts) == most:
            raise RequestError(f"{what}: expected {most} elements of BYTES, got more")
        if len(data) - start < _LENGTH.size:
            raise RequestError(
                f"{what}: the length of element {len(texts)} of BYTES takes 4 bytes, but "
                f"{len(data) - start} are left"
            )
        (length,) = _LENGTH.unpack_from(data, start)
        start += _LENGTH.size
        if length > len(data) - start:
            raise RequestError(
                f"{what}: element {len(texts)} of BYTES has the length {length}, but "
                f"{len(data) - start} bytes are left"
            )
        texts.append(bytes(data[start : start + length]))
        start += length
    return texts


def elements(array: np.ndarray) -> list[bytes]:
    """The elements of an array of str or bytes, row-major, strings in UTF-8."""
    return [e.encode() if isinstance(e, str) else bytes(e) for e in array.ravel().tolist()]


def joined_bytes(array: np.ndarray) -> bytes:
    texts = elements(array)
    return b"".join(part for e in texts for part in (_LENGTH.pack(len(e)), e))
