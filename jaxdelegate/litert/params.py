"""Reads a builtin operator's parameters from a stock interpreter's memory."""

import ctypes
import dataclasses
import functools
from typing import Any

from jaxdelegate.op_lowering.options import OPERATORS, Options, options_class
from jaxdelegate.op_lowering.records.c_struct import Kind


def decode(operator: str, address: int | None, rank: int = 0) -> Options:
    """A builtin operator's options, copied from `node->builtin_data` at `address`.

    The address is None if the interpreter has no struct. A field that the struct does not have
    keeps its default. `rank` is that of the first input, for lists whose length is not stored. A
    ValueError if the interpreter does not expose these options, or a number is unknown.
    """
    cls = options_class(operator)
    if not dataclasses.fields(cls):
        return cls()
    members = _members(operator)
    if not address or not members.fields:
        raise ValueError(f"stock interpreters do not expose the options of {operator}")
    fields = {}
    struct = members.struct.from_address(address)
    for name, kind, at in members.fields:
        values = [getattr(struct, f"m{i}") for i in at]
        try:
            value = kind.read(values, rank)
        except KeyError:
            raise ValueError(f"{operator}.{name}: unknown value {values[0]}") from None
        if value is not None:
            fields[name] = value
    return cls(**fields)


@dataclasses.dataclass(frozen=True)
class _Members:
    """A struct, and for each field its kind and the indices of its members m0, m1, ..."""

    struct: type[ctypes.Structure]
    fields: tuple[tuple[str, Kind, range], ...]


@functools.cache
def _members(operator: str) -> _Members:
    members: list[Any] = []
    fields = []
    for name, kind in OPERATORS[operator].members.items():
        fields.append((name, kind, range(len(members), len(members) + len(kind.ctypes))))
        members += kind.ctypes
    names = {"_fields_": [(f"m{i}", ctype) for i, ctype in enumerate(members)]}
    return _Members(type(operator, (ctypes.Structure,), names), tuple(fields))
