# ruff: noqa: F403  (every table of every family; a list of 170 names would only repeat them)
"""The parameters of operators: the families' dataclasses, and one decoder for all of them.

It reads a table of options by the official schema's accessors.
"""

import dataclasses
import enum
import functools
import typing
from typing import Any

from jaxdelegate.op_lowering.activation.options import *
from jaxdelegate.op_lowering.cast.options import *
from jaxdelegate.op_lowering.comparison.options import *
from jaxdelegate.op_lowering.control_flow.options import *
from jaxdelegate.op_lowering.convolution.options import *
from jaxdelegate.op_lowering.custom.options import *
from jaxdelegate.op_lowering.detection.options import *
from jaxdelegate.op_lowering.elementwise.options import *
from jaxdelegate.op_lowering.families import option_modules
from jaxdelegate.op_lowering.flex.options import *
from jaxdelegate.op_lowering.fused.options import *
from jaxdelegate.op_lowering.fused.options import FusedOptions
from jaxdelegate.op_lowering.indexing.options import *
from jaxdelegate.op_lowering.layout.options import *
from jaxdelegate.op_lowering.lookup.options import *
from jaxdelegate.op_lowering.matmul.options import *
from jaxdelegate.op_lowering.normalization.options import *
from jaxdelegate.op_lowering.padding.options import *
from jaxdelegate.op_lowering.pooling.options import *
from jaxdelegate.op_lowering.random.options import *
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.custom import *
from jaxdelegate.op_lowering.records.custom import CustomOptions
from jaxdelegate.op_lowering.records.enums import *
from jaxdelegate.op_lowering.records.flex import *
from jaxdelegate.op_lowering.records.operator import OperatorRecord, Scaling
from jaxdelegate.op_lowering.records.operator import as_read as as_read
from jaxdelegate.op_lowering.records.operator import why_not_alike as why_not_alike
from jaxdelegate.op_lowering.records.operator import why_not_in_reals as why_not_in_reals
from jaxdelegate.op_lowering.records.record import *
from jaxdelegate.op_lowering.records.record import NoOptions, Options
from jaxdelegate.op_lowering.recurrent.options import *
from jaxdelegate.op_lowering.reduction.options import *
from jaxdelegate.op_lowering.resize.options import *
from jaxdelegate.op_lowering.resources.options import *
from jaxdelegate.op_lowering.segment.options import *
from jaxdelegate.op_lowering.shape.options import *
from jaxdelegate.op_lowering.signal.options import *
from jaxdelegate.op_lowering.slicing.options import *
from jaxdelegate.op_lowering.sorting.options import *
from jaxdelegate.op_lowering.sparse.options import *
from jaxdelegate.op_lowering.stablehlo.options import *
from jaxdelegate.op_lowering.text.options import *


def _records() -> dict[str, OperatorRecord]:
    operators: dict[str, OperatorRecord] = {}
    for module in option_modules():
        records = module.RECORDS
        if twice := sorted(operators.keys() & records.keys()):
            raise ValueError(f"two families have records of {twice}")
        operators |= records
    return operators


# Every operator that a file can hold and every fused one, by its name.
OPERATORS = _records()
_CUSTOM: dict[str, type[CustomOptions]] = {
    name: record.options
    for name, record in OPERATORS.items()
    if issubclass(record.options, CustomOptions)
}
_REGISTRATIONS: list[str] = []
_BUILTIN = {
    name: record
    for name, record in OPERATORS.items()
    if not issubclass(record.options, CustomOptions | FusedOptions)
}
# Tables without fields are not in it: their operators have NoOptions.
_TABLES = {r.options.__name__: r.options for r in _BUILTIN.values() if r.options is not NoOptions}


def record_of(operator: str) -> OperatorRecord:
    """The record of an operator; for an unknown one, the defaults."""
    return OPERATORS.get(operator) or OperatorRecord(
        operator, CustomOptions, cost=costs.unknown, scales=Scaling(ignored=frozenset())
    )


def options_class(operator: str) -> type[Options]:
    """NoOptions if the builtin operator has no table."""
    return _BUILTIN[operator].options if operator in _BUILTIN else NoOptions


def default_options(operator: str) -> Options:
    """The options of an operator whose table the file leaves out: schema.fbs's default values."""
    return options_class(operator)()


def custom_options(operator: str, data: bytes) -> CustomOptions:
    """A custom operator's parameters, decoded if the operator is known."""
    return _CUSTOM.get(operator, CustomOptions).from_bytes(data)


def register_custom_options(operator: str, options_type: type[CustomOptions]) -> None:
    """Decode a custom operator's options into this class from now on."""
    _CUSTOM[operator] = options_type
    _REGISTRATIONS.append(operator)


def custom_options_version() -> int:
    """Changes with every registration: a model that was read before decodes differently now."""
    return len(_REGISTRATIONS)


# Tables of scalars, some of which take 64 bits.
_WIDE = frozenset(
    name for name in _TABLES if name.startswith("Stablehlo") or name == "RandomOptions"
)


@functools.cache
def widest_scalar(table_name: str) -> int | None:
    """The most bytes that a field of a table takes; None: not all of them are scalars."""
    if any(hint is str or _is_vector(hint) for _, _, hint in _accessors(table_name)):
        return None
    return 8 if table_name in _WIDE else 4


def decode(table_name: str, table: Any) -> Options:
    """Read a generated accessor (`schema_py_generated.Conv2DOptions()`, initialized)."""
    values = {}
    for name, accessor, hint in _accessors(table_name):
        if hasattr(table, accessor):  # an older ai-edge-litert knows fewer fields
            values[name] = _value(table, accessor, hint)
    return _TABLES.get(table_name, NoOptions)(**values)


@functools.cache
def _accessors(table_name: str) -> tuple[tuple[str, str, Any], ...]:
    """Each field, its generated accessor, `stride_w` -> `StrideW`, and its type."""
    return tuple(
        (f.name, "".join(map(str.capitalize, f.name.split("_"))), f.type)
        for f in dataclasses.fields(_TABLES.get(table_name, NoOptions))
    )


def _is_vector(hint: Any) -> bool:
    return hint is bytes or typing.get_origin(hint) is tuple


def _value(table: Any, accessor: str, hint: Any) -> Any:
    if hint is int:
        return getattr(table, accessor)()
    if _is_vector(hint):
        return _vector(table, accessor, hint)
    value = getattr(table, accessor)()
    if hint is str:
        return (value or b"").decode(errors="replace")
    return hint(value) if issubclass(hint, enum.Enum | bool) else value


def _vector(table: Any, accessor: str, hint: Any) -> Any:
    values = getattr(table, f"{accessor}AsNumpy")()
    present = not isinstance(values, int)  # the generated accessor returns 0 for an absent vector
    if hint is bytes:
        return values.tobytes() if present else b""
    element = typing.get_args(hint)[0]
    return tuple(element(v) for v in values.tolist()) if present else ()
