"""Base classes for the options of custom operators."""

import dataclasses
import struct
from collections.abc import Callable
from typing import Any, Self

from flatbuffers import flexbuffers

from jaxdelegate.op_lowering.records.enums import Padding
from jaxdelegate.op_lowering.records.record import Options

MAX_FLEXBUFFER = 1 << 16  # a map of scalars and short vectors takes a few hundred bytes
# What flatbuffers' reader raises at bytes that are no flexbuffer.
MALFORMED = (struct.error, ValueError, LookupError, TypeError, ArithmeticError, AssertionError)


@dataclasses.dataclass(frozen=True)
class CustomOptions(Options):
    """For unknown operators, this class holds the bytes."""

    data: bytes = b""

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        return cls(data)


def _own_fields(cls: type[CustomOptions]) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(cls) if field.name != "data"]


@dataclasses.dataclass(frozen=True)
class StructOptions(CustomOptions):
    """Parameters in a C struct of int32 in the fields' order; enumerations have C's numbers."""

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """A ValueError if the data are shorter, or an enumeration lacks the number."""
        fields = _own_fields(cls)
        size = 4 * len(fields)
        if len(data) < size:
            raise ValueError(f"custom options: expected {size} bytes, got {len(data)}")
        values = struct.unpack_from(f"<{len(fields)}i", data)
        kinds: Any = (field.type for field in fields)
        # TfLitePadding begins with "unknown".
        read = (k(v - 1 if k is Padding else v) for k, v in zip(kinds, values, strict=True))
        return cls(data, *read)


@dataclasses.dataclass(frozen=True)
class FlexbufferOptions(CustomOptions):
    """Parameters in a flexbuffer map; the dataclass's field names are the map's keys."""

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """A key that is absent keeps the field's default; `tuple[int, ...]` truncates floats."""
        if not data:
            return cls(data)
        fields = _own_fields(cls)
        values = _entries(data, {field.name: type(field.default) for field in fields})
        whole = {f.name for f in fields if f.type == tuple[int, ...]} & values.keys()
        return cls(data, **values | {name: tuple(map(int, values[name])) for name in whole})


def _entries(data: bytes, kinds: dict[str, type]) -> dict[str, Any]:
    """The entries that `kinds` names: numbers, strings, tuples of numbers.

    Nothing else in the map is read: nested vectors of a hostile one expand endlessly.
    """
    if len(data) > MAX_FLEXBUFFER:
        raise ValueError(
            f"custom options: expected at most {MAX_FLEXBUFFER} bytes, got {len(data)}"
        )
    try:
        entries = flexbuffers.GetRoot(data).AsMap
        present = {name: _find(entries, name) for name in kinds}
        return {
            name: kinds[name](_READ.get(kinds[name], _number)(entry))
            for name, entry in present.items()
            if entry is not None
        }
    except MALFORMED as error:
        raise ValueError(
            f"custom options: expected a readable flexbuffer map: {error!r}"
        ) from error


def _find(entries: Any, name: str) -> Any | None:
    try:
        return entries[name]
    except KeyError as error:
        if error.args == (name,):
            return None
        raise


def _number(entry: Any) -> Any:
    if not (entry.IsNumeric or entry.IsBool):
        raise TypeError("an entry is not a number")
    return entry.AsFloat if entry.IsFloat else entry.AsInt


def _string(entry: Any) -> Any:
    if not entry.IsString:
        raise TypeError("an entry is not a string")
    return entry.AsString


def _numbers(entry: Any) -> list[Any]:
    if entry.IsTypedVector:
        vector = entry.AsTypedVector
    else:
        vector = entry.AsFixedTypedVector if entry.IsFixedTypedVector else entry.AsVector
    if len(vector) > MAX_FLEXBUFFER:
        raise ValueError(f"a vector has {len(vector)} elements")
    return [_number(vector[i]) for i in range(len(vector))]


_READ: dict[type, Callable[[Any], Any]] = {str: _string, tuple: _numbers}
