"""Locates the bytes of tensors: in the flatbuffer, after it, or in a file next to the model."""

import dataclasses
import os

import numpy as np

from jaxdelegate.model.files import first_clash, why_not_below
from jaxdelegate.model.flatbuffer import UINT32, UINT64, Flatbuffer, Table
from jaxdelegate.model.source import Source


class Buffers:
    """The model's buffers, which are checked to be within the file, and not copied."""

    def __init__(self, file: Flatbuffer, tables: list[Table]) -> None:
        self._data = file.data
        self._spans = [_span(file, table) for table in tables]

    def stored(self, table: Table, field: str) -> np.ndarray | None:
        """The bytes of the buffer that a field refers to, uint8 [n], read-only; None: no data."""
        if not self._spans and table.scalar(field, UINT32) == 0:
            return None
        index = table.index(field, len(self._spans))
        span = self._spans[index] if index > 0 else None  # index 0 means no data
        return None if span is None else _view(self._data, *span)

    def span(self, index: int) -> tuple[int, int] | None:
        """Offset in the file and bytes of a buffer; None: no data."""
        return self._spans[index] if 0 < index < len(self._spans) else None


def _span(file: Flatbuffer, table: Table) -> tuple[int, int] | None:
    span = table.span("data")
    if span is not None:
        return span
    offset = table.scalar("offset", UINT64)
    if offset <= 1:  # 0: absent; 1: a placeholder that writers use
        return None
    size = table.scalar("size", UINT64)
    if offset + size > len(file.data):
        table.fail_beyond("size", offset + size)
    return offset, size


def _view(data: memoryview, start: int, size: int) -> np.ndarray:
    return np.frombuffer(data, np.uint8, size, start) if size else np.empty(0, np.uint8)


@dataclasses.dataclass(frozen=True)
class _Slice:
    """An ExternalBuffer table: a part of a group's file."""

    table: Table
    group: int
    offset: int
    length: int


class ExternalBuffers:
    """Tensors' bytes in files next to the model, which are opened when a tensor refers to them.

    `groups` are the names of all files that the model declares, `used` those that a tensor refers
    to.
    """

    def __init__(self, model: Table, source: Source) -> None:
        """Open none of the files."""
        self._folder = source.folder
        self.used: dict[str, None] = {}
        self._group_tables = model.tables("external_buffer_groups", "ExternalBufferGroup")
        self.groups = tuple(table.string("name") or "" for table in self._group_tables)
        self._check_names("" if source.folder is None else os.path.basename(source.name))
        self._slices: dict[int, _Slice] = {}
        for table in model.tables("external_buffers", "ExternalBuffer"):
            number = table.scalar("id", UINT32)
            if number in self._slices:
                table.fail("id", "must be unique", number)
            self._slices[number] = self._slice(table)

    def stored(self, tensor: Table) -> np.ndarray | None:
        """The bytes of a tensor's external buffer, uint8 [n], read-only; None: it has none."""
        number = tensor.scalar("external_buffer", UINT32)
        if number == 0:
            return None
        if number not in self._slices:
            tensor.fail("external_buffer", "must be the id of an external buffer", number)
        part = self._slices[number]
        name = self.groups[part.group]
        if self._folder is None:
            rule = "external buffers are in files next to the model, so read it from its path"
            self._group_tables[part.group].fail("name", rule, repr(name))
        data = self._folder.content(name)
        self.used[name] = None
        if part.offset + part.length > len(data):
            rule = f"must end within the {len(data)} bytes of {name!r}"
            part.table.fail("length", rule, part.offset + part.length)
        return _view(data, part.offset, part.length)

    def span(self, tensor: Table) -> tuple[str, int, int] | None:
        """The file, offset and length; None: the tensor has no external buffer."""
        part = self._slices.get(tensor.scalar("external_buffer", UINT32))
        return None if part is None else (self.groups[part.group], part.offset, part.length)

    def _slice(self, table: Table) -> _Slice:
        packing = table.string("packing")
        if packing not in (None, "", "unpacked"):
            table.fail("packing", "must be 'unpacked'", repr(packing))
        return _Slice(
            table,
            table.index("group", len(self.groups)),
            table.scalar("offset", UINT64),
            table.scalar("length", UINT64),
        )

    def _check_names(self, own: str) -> None:
        # Unused names, too: tools that copy the model may use them.
        for table, name in zip(self._group_tables, self.groups, strict=True):
            rule = why_not_below(name)
            if rule is not None:
                table.fail("name", rule, repr(name))
        clash = first_clash([*self.groups, own])
        if clash is not None:
            other = [*map(repr, self.groups), "the model's own file"][clash[1]]
            rule = f"must not be, or lead through, the same file as {other}"
            self._group_tables[clash[0]].fail("name", rule, repr(self.groups[clash[0]]))
