"""Reads an operator's code and options from its tables."""

import dataclasses
import struct
from collections.abc import Collection, Hashable
from typing import Any, NoReturn

from ai_edge_litert import schema_py_generated as schema

from jaxdelegate.model.flatbuffer import INT8, UINT8, UINT64, Flatbuffer, Table
from jaxdelegate.op_lowering.options import (
    AddOptions,
    Options,
    SubOptions,
    custom_options,
    decode,
    default_options,
    options_class,
    widest_scalar,
)
from jaxdelegate.text import printable


def _names(enumeration: type) -> dict[int, str]:
    return {v: k for k, v in vars(enumeration).items() if isinstance(v, int) and k[0] != "_"}


_OPERATORS = _names(schema.BuiltinOperator)
UNIONS = {  # the tables of options by number
    "builtin_options": _names(schema.BuiltinOptions),
    "builtin_options_2": _names(schema.BuiltinOptions2),
}
_SUBGRAPH_FIELDS = ("subgraph", "subgraph_index", "subgraph_indices")  # suffixes of their names

# Errors of the generated accessors, and of constructors of options, for invalid bytes.
_ERRORS = (struct.error, TypeError, ValueError, LookupError, OverflowError)


@dataclasses.dataclass(frozen=True)
class OperatorCode:
    name: str  # a custom operator has its custom code here
    builtin_code: int
    version: int
    custom: bool


def read_operator_code(table: Table) -> OperatorCode:
    """Codes above 126 are in a second, wider field; source: converter/schema/schema_utils.cc."""
    code = max(table.scalar("deprecated_builtin_code", INT8), table.scalar("builtin_code"))
    name = _OPERATORS.get(code)
    if name is None:
        rule = f"must be an operator of the schema, at most {max(_OPERATORS)}"
        table.fail("builtin_code", rule, code)
    version = table.scalar("version", default=1)
    if code != schema.BuiltinOperator.CUSTOM:
        return OperatorCode(name, code, version, custom=False)
    custom_code = table.string("custom_code")
    if not custom_code:
        table.fail("custom_code", "a custom operator must have a name", repr(custom_code))
    return OperatorCode(custom_code, code, version, custom=True)


class OptionsReader:
    """Equal bytes are decoded once: operators share one copy of the same custom options."""

    def __init__(self, file: Flatbuffer) -> None:
        self._file = file
        self._decoded: dict[Hashable, Options] = {}
        self._custom: dict[Hashable, tuple[Options, bytes]] = {}

    def read(self, table: Table, code: OperatorCode) -> tuple[Options, bytes]:
        """An operator's options, and the custom options' bytes of a custom operator."""
        if code.custom:
            return self._read_custom(table, code)
        union, kind = _options_table(table)
        accessor = None if kind is None else table.accessor(union, getattr(schema, kind))
        if kind is None or accessor is None:
            return _without_table(default_options(code.name)), b""
        try:
            options = self._decode(kind, accessor, table, union)
        except _ERRORS as error:
            self._fail(table, code, kind, error)
        _charge(table, "builtin_options", vars(options).values())
        # LiteRT ignores the options of another operator.
        fits = isinstance(options, options_class(code.name))
        return options if fits else default_options(code.name), b""

    def _read_custom(self, table: Table, code: OperatorCode) -> tuple[Options, bytes]:
        field, start, size = _custom_span(self._file, table)
        key = code.name, start, size
        if key not in self._custom:
            table.charge(field, size)
            data = bytes(self._file.data[start : start + size])
            try:
                options = custom_options(code.name, data)
            except _ERRORS as error:
                self._fail(table, code, f"custom options of {printable(code.name)}", error)
            _charge(table, field, [v for name, v in vars(options).items() if name != "data"])
            self._custom[key] = options, data
        return self._custom[key]

    def _fail(self, table: Table, code: OperatorCode, what: str, error: Exception) -> NoReturn:
        self._file.fail(
            what, f"{table.path} ({printable(code.name)})", "must be readable", f"{error}"
        )

    def _decode(self, kind: str, accessor: Any, table: Table, union: str) -> Options:
        width = widest_scalar(kind)
        if width is None:
            return decode(kind, accessor)
        key = kind, table.inline(union, width)
        if key not in self._decoded:
            self._decoded[key] = decode(kind, accessor)
        return self._decoded[key]


def _without_table(options: Options) -> Options:
    """Options without a table: interpreters clear those of ADD and SUB (ParseAdd, ParseSub)."""
    if isinstance(options, AddOptions | SubOptions):
        return dataclasses.replace(options, pot_scale_int16=False)
    return options


def _options_table(table: Table) -> tuple[str, str | None]:
    for union, names in UNIONS.items():
        kind = table.scalar(f"{union}_type", UINT8)
        if kind not in names:
            rule = f"must be an options table of the schema, at most {max(names)}"
            table.fail(f"{union}_type", rule, kind)
        if kind != 0:
            return union, names[kind]
    return "", None


def _custom_span(file: Flatbuffer, table: Table) -> tuple[str, int, int]:
    """The field, position and size of the bytes of custom options.

    They are a vector, or in a large file outside the flatbuffer.
    """
    span = table.span("custom_options")
    if span is not None:
        return "custom_options", *span
    offset = table.scalar("large_custom_options_offset", UINT64)
    if offset <= 1:  # 0: absent; 1: a placeholder that writers use
        return "custom_options", 0, 0
    size = table.scalar("large_custom_options_size", UINT64)
    if offset + size > len(file.data):
        table.fail_beyond("large_custom_options_size", offset + size)
    return "large_custom_options_size", offset, size


def _charge(table: Table, field: str, values: Collection[object]) -> None:
    numbers = sum(len(v) for v in values if isinstance(v, tuple))
    table.charge(field, 4 * numbers + sum(len(v) for v in values if isinstance(v, str | bytes)))


def called_subgraphs(options: Options) -> list[tuple[str, int]]:
    """The (option, index) pairs of the subgraphs that an operator calls."""
    calls = []
    for name, value in vars(options).items():
        if name.endswith(_SUBGRAPH_FIELDS):
            calls += [(name, index) for index in (value if isinstance(value, tuple) else (value,))]
    return calls
