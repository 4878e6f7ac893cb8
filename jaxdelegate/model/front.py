"""Adds buffers at the front of a file without changing the rest.

Offsets in a flatbuffer are distances to later positions. New tables before the content may
therefore refer to all of it, and the content stays valid, including unknown fields. Only absolute
positions, those of data outside the flatbuffer, must be updated.
"""

import struct
from collections.abc import Sequence

import numpy as np

from jaxdelegate.model.flatbuffer import INT32, UINT32, UINT64, Table
from jaxdelegate.model.layout import LAYOUT

_UINT16 = struct.Struct("<H")
_ALIGNMENT = 64  # at least the alignment of any buffer of the content
_DATA_ALIGNMENT = 16  # force_align of Buffer.data
_FIELDS = list(LAYOUT["Model"])
_MAX_BYTES = 2**31 - 1  # of a flatbuffer


def with_buffers(
    content: bytes,
    root: Table,
    buffers: Sequence[Table],
    subgraphs: Sequence[Table],
    added: Sequence[np.ndarray],
) -> bytes:
    """The content with buffers of the data in `added` at the end of Model.buffers."""
    if has_unknown_fields(content, root.at, len(_FIELDS)):
        rule = "to separate tensors that share a buffer, all fields of Model must be known"
        root.fail("buffers", rule, "one of a newer schema: set all of them to the same values")
    front = _Front(content[4:8], root, len(buffers) + len(added))
    for data in added:
        front.add(data)
    moved = front.finish([table.at for table in buffers])
    if len(moved) + len(content) > _MAX_BYTES:
        root.fail(
            "buffers", f"a file must not exceed {_MAX_BYTES} bytes", "more, including new buffers"
        )
    return bytes(moved) + _with_moved_offsets(content, buffers, subgraphs, len(moved))


def has_unknown_fields(content: bytes | memoryview, at: int, count: int) -> bool:
    """Whether the table at `at` has more fields than the `count` of the schema."""
    vtable = at - INT32.unpack_from(content, at)[0]
    size = _UINT16.unpack_from(content, vtable)[0]
    return any(content[vtable + 4 + 2 * count : vtable + size])


class _Front:
    """Builds a Model table, its vector of buffers, and Buffer tables with data, front to back."""

    def __init__(self, identifier: bytes, root: Table, count: int) -> None:
        self._root = root
        self._fields = [name for name in _FIELDS if root.place(name)]
        vtable_size = 4 + 2 * len(_FIELDS)
        self._table = 8 + vtable_size + -vtable_size % 4
        self._bytes = bytearray(self._table + 4 + 4 * len(self._fields))
        self._entries = len(self._bytes) + 4
        self._bytes += bytes(4 + 4 * count)
        UINT32.pack_into(self._bytes, 0, self._table)
        self._bytes[4:8] = identifier
        _UINT16.pack_into(self._bytes, 8, vtable_size)
        _UINT16.pack_into(self._bytes, 10, 4 + 4 * len(self._fields))
        for i, name in enumerate(self._fields):
            _UINT16.pack_into(self._bytes, 12 + 2 * _FIELDS.index(name), 4 + 4 * i)
        INT32.pack_into(self._bytes, self._table, self._table - 8)
        UINT32.pack_into(self._bytes, self._entries - 4, count)
        self._vtable = len(self._bytes)  # of the new Buffer tables, which only have data
        self._bytes += struct.pack("<HHHH", 6, 8, 4, 0)
        self._added: list[int] = []

    def add(self, data: np.ndarray) -> None:
        at = len(self._bytes)
        self._added.append(at)
        self._bytes += INT32.pack(at - self._vtable) + UINT32.pack(0)
        self._bytes += bytes(-(len(self._bytes) + 4) % _DATA_ALIGNMENT)
        UINT32.pack_into(self._bytes, at + 4, len(self._bytes) - (at + 4))
        self._bytes += UINT32.pack(data.size) + data.tobytes()
        self._bytes += bytes(-len(self._bytes) % 4)

    def finish(self, buffers: Sequence[int]) -> bytearray:
        self._bytes += bytes(-len(self._bytes) % _ALIGNMENT)
        size = len(self._bytes)
        for i, at in enumerate([*(size + b for b in buffers), *self._added]):
            place = self._entries + 4 * i
            UINT32.pack_into(self._bytes, place, at - place)
        for i, name in enumerate(self._fields):
            place = self._table + 4 + 4 * i
            UINT32.pack_into(self._bytes, place, self._value(name, place, size))
        return self._bytes

    def _value(self, name: str, place: int, size: int) -> int:
        if name == "version":
            return self._root.scalar(name, UINT32)
        target = self._entries - 4 if name == "buffers" else size + self._root.target(name)
        return target - place


def _with_moved_offsets(
    content: bytes, buffers: Sequence[Table], subgraphs: Sequence[Table], distance: int
) -> bytes:
    """The content with `distance` added to absolute positions."""
    moved = bytearray(content)
    operators = [o for subgraph in subgraphs for o in subgraph.tables("operators", "Operator")]
    fields = [*((b, "offset") for b in buffers)]
    fields += [(o, "large_custom_options_offset") for o in operators]
    for place in {table.place(field) for table, field in fields} - {0}:
        offset = UINT64.unpack_from(moved, place)[0]
        if offset > 1:  # 0 and 1 are placeholders
            UINT64.pack_into(moved, place, offset + distance)
    return bytes(moved)
