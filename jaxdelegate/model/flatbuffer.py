"""Reads flatbuffers that may be damaged or hostile: all reads are within the file and a budget.

The generated accessors check nothing, and `struct.unpack_from` accepts negative positions.
Format: a table starts with the signed distance back to its vtable. A vtable has uint16s: its own
size, the table's size, then the offset of each field in the table (0: absent). Vectors and strings
start with a uint32 length.
"""

import struct
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from jaxdelegate.errors import ModelError
from jaxdelegate.text import printable

INT8, UINT8, INT32, UINT32, UINT64 = (struct.Struct(f"<{code}") for code in "bBiIQ")
_UINT16 = struct.Struct("<H")

# A file without shared data has, for each table, 4 bytes of the table and 4 of the offset to it, so
# its tables cost at most four times its size. Only offsets with the same target cost more.
_TABLE_COST = 32
_BUDGET_PER_BYTE = 4
_BUDGET_FLOOR = 1 << 16
_MAX_TABLES = 1_000_000  # the limit of flatbuffers' verifier, which stock LiteRT runs first

_TRUNCATED = "the file is truncated (download or copy it again) or damaged"

Layout = Mapping[str, Mapping[str, int]]  # table name -> field name -> position in the vtable


def layout(tables: Mapping[str, str]) -> Layout:
    """Field positions from each table's field names in schema order, separated by blanks."""
    return {
        table: {name: i for i, name in enumerate(names.split())} for table, names in tables.items()
    }


class Flatbuffer:
    """A file's bytes, the layout of its tables, and the rest of the budget for reads."""

    def __init__(self, data: memoryview, source: str, tables: Layout) -> None:
        self.data, self.source, self.layout = data, source, tables
        self.size = len(data)
        self._budget = _BUDGET_FLOOR + _BUDGET_PER_BYTE * len(data)
        self._tables_left = _MAX_TABLES
        self._vtables: dict[int, tuple[int, ...]] = {}
        self._max_fields = max(len(fields) for fields in tables.values())

    def root(self, kind: str) -> "Table":
        """The root table, whose position is in the first four bytes of the file."""
        self.charge_tables(1, kind, "")
        return Table(self, UINT32.unpack_from(self.data)[0], kind, "")

    def fail(self, field: str, path: str, rule: str, got: object) -> NoReturn:
        """`field` is `Table.field`, and `path` the path of the table."""
        where = f" at {path}" if path else ""
        raise ModelError(f"{printable(self.source)}: {field}{where}: {rule}, got {got}")

    def charge(self, amount: int, field: str, path: str) -> None:
        """Subtract bytes from the budget."""
        self._budget -= amount
        if self._budget < 0:
            rule = (
                f"the data that a file refers to must not exceed {_BUDGET_PER_BYTE} times its size"
            )
            self.fail(field, path, rule, f"{-self._budget} bytes more, by offsets to shared data")

    def charge_tables(self, count: int, field: str, path: str) -> None:
        """Subtract tables from the budget before any of them is read."""
        self._tables_left -= count
        if self._tables_left < 0:
            rule = f"a file must not have more than {_MAX_TABLES} tables"
            self.fail(field, path, rule, f"{-self._tables_left} more")
        self.charge(_TABLE_COST * count, field, path)

    def fields(self, at: int, kind: str, path: str) -> tuple[int, ...]:
        """Offsets in the table at `at`, in schema order; 0: absent."""
        if at > self.size - 4:
            rule = f"must start within the file's {self.size} bytes"
            self.fail(kind, path, rule, f"{at}: {_TRUNCATED}")
        vtable = at - INT32.unpack_from(self.data, at)[0]
        known = self._vtables.get(vtable)
        if known is None:
            known = self._vtables[vtable] = self._read_vtable(vtable, kind, path)
        return known

    def _read_vtable(self, at: int, kind: str, path: str) -> tuple[int, ...]:
        if not 0 <= at <= self.size - 4:
            self.fail(kind, path, "its vtable must start within the file", at)
        size = _UINT16.unpack_from(self.data, at)[0]
        if size < 4 or size % 2 or at + size > self.size:
            rule = "its vtable's size must be even, at least 4 and within the file"
            self.fail(kind, path, rule, size)
        count = min((size - 4) // 2, self._max_fields)  # further fields are of a newer schema
        fields = struct.unpack_from(f"<{count}H", self.data, at + 4)
        return (*fields, *[0] * (self._max_fields - count))


class Table:
    """One table, whose fields are read by name; each read is checked.

    `kind` is its name in the schema, `path` its path in the file, for example
    `subgraphs[0].tensors[5]`.
    """

    __slots__ = ("_at", "_fields", "_file", "_positions", "kind", "path")

    def __init__(self, file: Flatbuffer, at: int, kind: str, path: str) -> None:
        """Check the vtable of the table at `at`; the caller has charged the budget."""
        self.kind, self.path = kind, path
        self._file, self._at = file, at
        self._positions = file.layout[kind]
        self._fields = file.fields(at, kind, path)

    @property
    def is_empty(self) -> bool:
        return not any(self._fields)

    def fail(self, field: str, rule: str, got: object) -> NoReturn:
        """Raise ModelError about one of this table's fields."""
        self._file.fail(f"{self.kind}.{field}", self.path, rule, got)

    def charge(self, field: str, amount: int) -> None:
        """Subtract bytes from the file's budget that were read for this field elsewhere."""
        self._file.charge(amount, f"{self.kind}.{field}", self.path)

    def place(self, field: str) -> int:
        """The position in the file of a field's scalar or offset; 0: absent."""
        offset = self._fields[self._positions[field]]
        return self._at + offset if offset else 0

    @property
    def at(self) -> int:
        return self._at

    def scalar(self, field: str, number: struct.Struct = INT32, default: int = 0) -> int:
        """An integer; `default` if it is absent."""
        offset = self._fields[self._positions[field]]
        if not offset:
            return default
        try:
            value: int = number.unpack_from(self._file.data, self._at + offset)[0]
        except struct.error:
            self.fail_beyond(field, self._at + offset + number.size)
        return value

    def index(self, field: str, size: int, number: struct.Struct = UINT32) -> int:
        """An index into something with `size` entries."""
        value = self.scalar(field, number)
        if not 0 <= value < size:
            self.fail(field, f"must be at least 0 and below {size}", value)
        return value

    def string(self, field: str) -> str | None:
        """Bytes that are not UTF-8 become U+FFFD."""
        span = self.span(field)
        if span is None:
            return None
        start, size = span
        self._check_end(field, start + size + 1)
        if self._file.data[start + size]:
            self.fail(field, "must end with a zero byte", self._file.data[start + size])
        self.charge(field, size)
        return str(self._file.data[start : start + size], "utf-8", "replace")

    def vector(self, field: str, dtype: Any) -> np.ndarray | None:
        """Numbers of shape [length], a read-only view of the file."""
        if not self._fields[self._positions[field]]:  # the most frequent case
            return None
        dtype = np.dtype(dtype)
        span = self._numbers(field, dtype.itemsize)
        if span is None:
            return None
        start, length = span
        return (
            np.frombuffer(self._file.data, dtype, length, start) if length else np.empty(0, dtype)
        )

    def integers(self, field: str) -> tuple[int, ...]:
        """A vector of 32 bit integers; empty if it is absent."""
        span = self._numbers(field, INT32.size)
        if span is None:
            return ()
        start, length = span
        return struct.unpack_from(f"<{length}i", self._file.data, start)

    def indices(self, field: str, size: int, *, optional: bool = False) -> tuple[int, ...]:
        """Indices into something with `size` entries, and -1 if `optional`."""
        found = self.integers(field)
        if not found:
            return ()
        low, high = min(found), max(found)
        if low < -optional or high >= size:
            rule = f"must be at least {-optional} and below {size}"
            self.fail(field, rule, low if low < -optional else high)
        return found

    def table(self, field: str, kind: str) -> "Table | None":
        at = self.target(field)
        if at == 0:
            return None
        path = self._join(field)
        self._file.charge_tables(1, kind, path)
        return Table(self._file, at, kind, path)

    def tables(self, field: str, kind: str) -> "list[Table]":
        """A vector of tables; empty if it is absent."""
        span = self.span(field, 4)
        if span is None or span[1] == 0:
            return []
        start, length = span
        path = self._join(field)
        self._file.charge_tables(length, kind, path)
        offsets = struct.unpack_from(f"<{length}I", self._file.data, start)
        return [
            Table(self._file, start + 4 * i + offset, kind, f"{path}[{i}]")
            for i, offset in enumerate(offsets)
        ]

    def accessor(self, field: str, generated: Any) -> Any | None:
        """A generated accessor for the table that a field refers to, after a check of its vtable.

        Its reads then cannot start before the file, and those past the end raise `struct.error`.
        """
        at = self.target(field)
        if at == 0:
            return None
        name, path = generated.__name__, self._join(field)
        self._file.charge_tables(1, name, path)
        self._file.fields(at, name, path)
        table = generated()
        table.Init(self._file.data, at)
        return table

    def inline(self, field: str, width: int) -> tuple[tuple[int, ...], bytes] | None:
        """The offsets of the fields of the table that a field refers to, and their bytes.

        Tables of scalars that agree in both are equal. The table has a checked vtable; `width` is
        the bytes of the widest scalar.
        """
        at = self.target(field)
        if at == 0:
            return None
        fields = self._file.fields(at, field, self.path)
        return fields, bytes(self._file.data[at + UINT32.size : at + max(fields) + width])

    def target(self, field: str) -> int:
        """The position of the object that a field refers to; 0: the field is absent."""
        offset = self._fields[self._positions[field]]
        if not offset:
            return 0
        at = self._at + offset
        try:
            distance: int = UINT32.unpack_from(self._file.data, at)[0]
        except struct.error:
            self.fail_beyond(field, at + 4)
        return at + distance

    def span(self, field: str, itemsize: int = 1) -> tuple[int, int] | None:
        """The position of a vector's elements in the file, and their number; reads none of them."""
        at = self.target(field)
        if at == 0:
            return None
        try:
            length: int = UINT32.unpack_from(self._file.data, at)[0]
        except struct.error:
            self.fail_beyond(field, at + 4)
        self._check_end(field, at + 4 + length * itemsize)
        return at + 4, length

    def _numbers(self, field: str, itemsize: int) -> tuple[int, int] | None:
        span = self.span(field, itemsize)
        if span is not None:
            self.charge(field, span[1] * itemsize)
        return span

    def fail_beyond(self, field: str, end: int) -> NoReturn:
        """Raise ModelError for data that ends at `end`, beyond the file."""
        rule = f"must end within the file's {self._file.size} bytes"
        self.fail(field, rule, f"{end}: {_TRUNCATED}")

    def _check_end(self, field: str, end: int) -> None:
        if end > self._file.size:
            self.fail_beyond(field, end)

    def _join(self, field: str) -> str:
        return f"{self.path}.{field}" if self.path else field
