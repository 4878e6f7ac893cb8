"""A builtin operator's parameters out of a stock interpreter's memory."""

import ctypes
import dataclasses
import functools
from typing import Any

from jaxdelegate.op_lowering.options import OPERATORS, Options, options_class
from jaxdelegate.op_lowering.records.c_struct import Kind

# What schema.fbs has and the structs lack: these fields keep their defaults.
LOST: dict[str, tuple[str, ...]] = {
    "FULLY_CONNECTED": ("quant_spec",),
    "STABLEHLO_COMPOSITE": ("composite_attributes_format",),
}


def decode(operator: str, address: int | None, rank: int = 0) -> Options:
    """A builtin operator's options out of `node->builtin_data`; nothing keeps pointing there.

    Args:
        operator: the BuiltinOperator's name.
        address: of the struct; None: the interpreter has none.
        rank: of the first input, for lists whose length is not stored.

    Raises:
        ValueError: the interpreter does not keep these options, or a number means nothing to us.
    """
    cls = options_class(operator)
    if not address or not (operator in OPERATORS and OPERATORS[operator].struct):
        if dataclasses.fields(cls):
            raise ValueError(f"stock interpreters do not hand out the options of {operator}")
        return cls()
    fields = {}
    members = _members(operator)
    struct = members.struct.from_address(address)
    for name, kind, at in members.fields:
        values = [getattr(struct, f"m{i}") for i in at]
        try:
            value = kind.read(values, rank)
        except KeyError:
            raise ValueError(f"{operator}.{name}: {values[0]} means nothing known") from None
        if value is not None:
            fields[name] = value
    return cls(**fields)


@dataclasses.dataclass(frozen=True)
class _Members:
    """A struct, and for each field its kind and the numbers of its members, m0, m1..."""

    struct: type[ctypes.Structure]
    fields: tuple[tuple[str, Kind, range], ...]


@functools.cache
def _members(operator: str) -> _Members:
    layout = OPERATORS[operator].struct or {}
    members: list[Any] = []
    fields = []
    for name, kind in layout.items():
        fields.append((name, kind, range(len(members), len(members) + len(kind.ctypes))))
        members += kind.ctypes
    names = {"_fields_": [(f"m{i}", ctype) for i, ctype in enumerate(members)]}
    return _Members(type(operator, (ctypes.Structure,), names), tuple(fields))
