"""One decoder for every options table: the generated accessors of the official schema -> our dataclasses."""

import dataclasses
import enum
import typing
from typing import Any

from jaxdelegate.op_lowering.options import array, control, custom, math, neural, stablehlo
from jaxdelegate.op_lowering.options.base import CustomOptions, NoOptions, Options


def _classes(*modules: object) -> list[type[Options]]:
    members = [value for module in modules for value in vars(module).values()]
    return [c for c in members if isinstance(c, type) and issubclass(c, Options) and c.operators]


_TABLES = {c.__name__: c for c in _classes(array, control, math, neural, stablehlo)}
_BUILTIN = {name: c for c in _TABLES.values() for name in c.operators}
_CUSTOM = {
    name: c for c in _classes(custom) if issubclass(c, CustomOptions) for name in c.operators
}


def options_class(operator: str) -> type[Options]:
    """The options class of a builtin operator, by the operator's name; NoOptions where it has no table."""
    return _BUILTIN.get(operator, NoOptions)


def default_options(operator: str) -> Options:
    """What a file means that leaves the operator's table out: schema.fbs's default values."""
    return options_class(operator)()


def custom_options(operator: str, data: bytes) -> CustomOptions:
    """A custom operator's parameters, decoded where the name is known.

    Raises:
        ValueError: the bytes are not what the operator writes.
    """
    return _CUSTOM.get(operator, CustomOptions).from_bytes(data)


def decode(table_name: str, table: Any) -> Options:
    """Read a generated accessor (`schema_py_generated.Conv2DOptions()`, initialized).

    Raises:
        ValueError: an enumeration holds a number that schema.fbs does not name.
    """
    cls = _TABLES[table_name]
    return cls(**{name: _value(table, name, hint) for name, hint in _FIELDS[table_name]})


def _typed_fields(cls: type[Options]) -> tuple[tuple[str, Any], ...]:
    hints = typing.get_type_hints(cls)
    return tuple((f.name, hints[f.name]) for f in dataclasses.fields(cls))


_FIELDS = {name: _typed_fields(cls) for name, cls in _TABLES.items()}


def _value(table: Any, name: str, hint: Any) -> Any:
    camel = "".join(part.capitalize() for part in name.split("_"))
    if hint is bytes or typing.get_origin(hint) is tuple:
        return _vector(table, camel, hint)
    value = getattr(table, camel)()
    if hint is str:
        return (value or b"").decode()
    return hint(value) if issubclass(hint, enum.Enum | bool) else value


def _vector(table: Any, camel: str, hint: Any) -> Any:
    values = getattr(table, f"{camel}AsNumpy")()
    present = not isinstance(values, int)  # the generated accessor answers 0 for an absent vector
    if hint is bytes:
        return values.tobytes() if present else b""
    element = typing.get_args(hint)[0]
    return tuple(element(v) for v in values.tolist()) if present else ()
