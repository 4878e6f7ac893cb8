"""The options of TensorFlow's operators: a NodeDef (node_def.proto, attr_value.proto).

tensorflow/lite/delegates/flex/kernel.cc reads them from a flexbuffer vector of the operator's name
and the encoded NodeDef.
"""

import struct
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

import ml_dtypes
import numpy as np
from flatbuffers import flexbuffers

from jaxdelegate.op_lowering.records.custom import MALFORMED, MAX_FLEXBUFFER, CustomOptions
from jaxdelegate.op_lowering.records.record import Record
from jaxdelegate.wire import Message

_Value = TypeVar("_Value")

FLEX = "Flex"  # what such a custom operator's name begins with
_OP, _ATTRIBUTES = 2, 5  # fields of NodeDef
_KEY, _VALUE = 1, 2  # fields of an entry of its map
# Fields of AttrValue: `list` and the types of one value. Those of ListValue have the same numbers.
_LIST, _BYTES, _INTEGER, _FLOAT, _BOOL, _TYPE, _SHAPE = range(1, 8)
# types.proto; dtypes of tensors of such a type as in dtypes.py
DATA_TYPES: dict[int, Any] = {
    1: np.float32,
    2: np.float64,
    3: np.int32,
    4: np.uint8,
    5: np.int16,
    6: np.int8,
    7: object,
    8: np.complex64,
    9: np.int64,
    10: np.bool_,
    14: ml_dtypes.bfloat16,
    17: np.uint16,
    18: np.complex128,
    19: np.float16,
    20: "V4",  # RESOURCE
    21: "V8",  # VARIANT
    22: np.uint32,
    23: np.uint64,
}


class FlexOptions(Record, CustomOptions, frozen=True):
    """A TensorFlow operator's attributes, which are the fields of its subclass (`attributes`)."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    @classmethod
    def attributes(cls, name: str, **defaults: Any) -> "type[FlexOptions]":
        """A subclass of this name, with attributes.

        A default shows the attribute's type: a tuple is a list of integers, bytes are an encoded
        shape.
        """
        hints = {
            attribute: tuple[int, ...] if isinstance(default, tuple) else type(default)
            for attribute, default in defaults.items()
        }
        body = {**defaults, "__annotations__": hints, "__module__": __name__}
        return types.new_class(name, (cls,), {"frozen": True}, lambda scope: scope.update(body))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """An attribute that is absent keeps the field's default, as in a new version of its op."""
        if not data:
            return cls()
        try:
            attributes = _attributes(_node_def(data))
            values = {
                name: _READ[type(default)](attributes[name])
                for name, default in cls._defaults.items()
                if name in attributes and name != "data"
            }
        except (ValueError, LookupError) as error:
            raise ValueError(f"custom options: expected a NodeDef: {error}") from error
        return cls(data, **values)


def _node_def(data: bytes) -> Message:
    if len(data) > MAX_FLEXBUFFER:
        raise ValueError(f"at most {MAX_FLEXBUFFER} bytes, got {len(data)}")
    try:
        vector = flexbuffers.GetRoot(data).AsVector
        name, encoded = (bytes(vector[i].AsStringBytes) for i in range(2))
    except MALFORMED as error:
        raise ValueError(f"in a vector of two strings: {error!r}") from error
    node_def = Message(encoded)
    if name not in node_def.all_data(_OP):
        raise ValueError(f"of {name!r}, which it does not name")
    return node_def


def _attributes(node_def: Message) -> Mapping[str, Message]:
    """The AttrValue of each name; of equal ones the last counts."""
    entries = node_def.messages(_ATTRIBUTES)
    return {_text(entry.data(_KEY)): entry.message(_VALUE) for entry in entries}


def _integer(value: Message, number: int = _INTEGER) -> int:
    return _last(value.integers(number), number)


def _data(value: Message, number: int) -> memoryview:
    return _last(value.all_data(number), number)


def _last(values: Sequence[_Value], number: int) -> _Value:
    if not values:
        kinds = "list", "string", "integer", "float", "bool", "type", "shape"
        raise ValueError(f"an attribute is not of the type {kinds[number - 1]}")
    return values[-1]


def _float(value: Message) -> float:
    content = _data(value, _FLOAT)
    if len(content) != 4:
        raise ValueError(f"a float has {len(content)} bytes")
    return float(struct.unpack("<f", content)[0])


def _dtype(value: Message) -> np.dtype:
    number = _integer(value, _TYPE)
    if number not in DATA_TYPES:
        raise ValueError(f"DataType {number}, which no tensor has")
    dtype: np.dtype = np.dtype(DATA_TYPES[number])
    return dtype


def _listed(value: Message) -> tuple[int | str, ...]:
    """Integers, packed or one to a field, or strings."""
    values = Message(_data(value, _LIST))
    return *values.integers(_INTEGER), *map(_text, values.all_data(_BYTES))


def _text(content: memoryview) -> str:
    return bytes(content).decode(errors="replace")


_READ: dict[type, Callable[[Message], Any]] = {
    bool: lambda value: _integer(value, _BOOL) != 0,
    int: _integer,
    float: _float,
    str: lambda value: _text(_data(value, _BYTES)),
    tuple: _listed,
    bytes: lambda value: bytes(_data(value, _SHAPE)),
    type(np.dtype(np.float32)): _dtype,
}
