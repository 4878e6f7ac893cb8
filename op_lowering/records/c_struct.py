"""Operator parameters in stock interpreters' memory: the structs of builtin_op_data.h as data.

A struct is a list of its members in C's order: the name of a field of our options class, and a kind
that says which C members hold it and how to read them. Structs only grow at their end; the oldest
interpreter that the bridge accepts has every member that a record names.
"""

import ctypes
import dataclasses
import enum
import typing
from collections.abc import Callable, Mapping
from typing import Any

from jaxdelegate.op_lowering.records.enums import MirrorPadMode, Padding, RngAlgorithm, TensorType
from jaxdelegate.op_lowering.records.record import Options

# TfLiteType, from 1 -> TensorType. It is 0, kTfLiteNoType, if the file has no options table.
_TENSOR_TYPES = (
    *("FLOAT32", "INT32", "UINT8", "INT64", "STRING", "BOOL", "INT16", "COMPLEX64", "INT8"),
    *("FLOAT16", "FLOAT64", "COMPLEX128", "UINT64", "RESOURCE", "VARIANT", "UINT32", "UINT16"),
    *("INT4", "BFLOAT16", "INT2", "UINT4", "FLOAT8_E4M3FN", "FLOAT8_E5M2"),
)
TENSOR_TYPES = {number: TensorType[name] for number, name in enumerate(_TENSOR_TYPES, 1)}


@dataclasses.dataclass(frozen=True)
class Kind:
    """How a parameter is stored.

    `ctypes` are the types of the consecutive C members that hold it. `read` takes their values
    and the rank of the operator's first input, and returns the parameter, or None if it was not
    set.
    """

    ctypes: tuple[Any, ...]
    read: Callable[[list[Any], int], Any]


def _plain(ctype: Any) -> Kind:
    return Kind((ctype,), lambda values, _rank: values[0])


def enumeration(table: Mapping[int, enum.IntEnum]) -> Kind:
    """C's numbers -> ours; a 0 that the table lacks means not set."""
    absent = {} if 0 in table else {0: None}
    known = {**table, **absent}
    return Kind((ctypes.c_int,), lambda values, _rank: known[values[0]])


def same(names: type[enum.IntEnum]) -> Kind:
    """An enumeration with the schema's numbers."""
    return enumeration({int(name): name for name in names})


def after_unknown(names: type[enum.IntEnum]) -> Kind:
    """An enumeration that starts with an additional "unknown"."""
    return enumeration({name + 1: name for name in names})


def counted(ctype: Any, most: int) -> Kind:
    """An array of fixed size, then the number of elements in use."""
    return Kind((ctype * most, ctypes.c_int), lambda values, _rank: tuple(values[0][: values[1]]))


def by_rank(most: int, each: int = 1) -> Kind:
    """An int64 array of fixed size, of which `each` elements per dimension are in use."""
    return Kind((ctypes.c_int64 * most,), lambda values, rank: tuple(values[0][: each * rank]))


def _floats(values: list[Any], _rank: int) -> tuple[float, ...]:
    return tuple(values[1][: values[0]])


def _text(values: list[Any], _rank: int) -> str:
    return (values[0] or b"").decode(errors="replace")


def _bytes(values: list[Any], _rank: int) -> bytes:
    return ctypes.string_at(*values) if values[0] else b""


INT, FLOAT, BOOL = _plain(ctypes.c_int), _plain(ctypes.c_float), _plain(ctypes.c_bool)
INT64 = _plain(ctypes.c_int64)
TEXT = Kind((ctypes.c_char_p,), _text)
TYPE = enumeration(TENSOR_TYPES)
INDICES = counted(ctypes.c_int64, 8)
INT32 = ctypes.c_int32
FLOATS = Kind((ctypes.c_int, ctypes.POINTER(ctypes.c_float)), _floats)
BYTES = Kind((ctypes.c_void_p, ctypes.c_size_t), _bytes)

Layout = dict[str, Kind]

# Stock interpreters do not pass these parameters to delegates.
HIDDEN: Layout = {}
_BY_TYPE: dict[Any, Kind] = {
    int: INT,
    float: FLOAT,
    bool: BOOL,
    str: TEXT,
    bytes: BYTES,
    TensorType: TYPE,
    **{names: after_unknown(names) for names in (MirrorPadMode, Padding, RngAlgorithm)},
}


def members(options: type[Options], *names: str, lists: Kind | None = None) -> Layout:
    """These fields of options, or all, each as C stores its type; `lists` is the kind of tuples."""
    types: dict[str, Any] = {field.name: field.type for field in dataclasses.fields(options)}
    return {name: _kind_of(types[name], lists) for name in names or types}


def _kind_of(hint: Any, lists: Kind | None) -> Kind:
    if lists is not None and typing.get_origin(hint) is tuple:
        return lists
    return _BY_TYPE.get(hint) or same(hint)
