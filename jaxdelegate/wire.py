"""Protobuf's wire format without a schema: fields by number (protobuf.dev, "Encoding")."""

from collections.abc import Iterator

import numpy as np

_VARINT, LENGTH = 0, 2  # wire types
_FIXED_SIZES = {1: 8, 5: 4}
_MAX_VARINT = 10  # bytes


def varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The unsigned number of 64 bits at an offset, and the offset after it.

    Raises:
        ValueError: the data end within the number, or it has more than 10 bytes.
    """
    value = 0
    for i in range(_MAX_VARINT):
        if at + i >= len(data):
            raise ValueError("a message ends within a number")
        value |= (data[at + i] & 0x7F) << 7 * i
        if data[at + i] < 0x80:
            return value % 2**64, at + i + 1
    raise ValueError(f"a message holds a number of more than {_MAX_VARINT} bytes")


def fields(message: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """The number, wire type, and value of each field: an unsigned number, or bytes.

    Raises:
        ValueError: it is not a message.
    """
    at, end = 0, len(message)
    while at < end:
        tag, at = message[at], at + 1
        if tag > 127:  # most numbers have one byte
            tag, at = varint(message, at - 1)
        kind = tag & 7
        if kind in _FIXED_SIZES:
            size = _FIXED_SIZES[kind]
        elif kind not in (_VARINT, LENGTH):
            raise ValueError(f"a message holds a field of wire type {kind}")
        elif at < end and message[at] < 128:
            size, at = message[at], at + 1
        else:
            size, at = varint(message, at)
        if kind == _VARINT:
            yield tag >> 3, kind, size
        elif size > end - at:
            raise ValueError("a message ends within a field")
        else:
            yield tag >> 3, kind, message[at : (at := at + size)]


class Message:
    """A message's fields. A ValueError if it is not a message."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._fields: dict[int, list[int | memoryview]] = {}
        for number, _, value in fields(memoryview(data)):
            self._fields.setdefault(number, []).append(value)

    def integer(self, number: int) -> int:
        """An unsigned number; 0 where it is missing, as in proto3."""
        value = self._fields.get(number, [0])[-1]
        if not isinstance(value, int):
            raise ValueError(f"field {number} is not a number")
        return value

    def data(self, number: int) -> memoryview:
        """Bytes; none where it is missing."""
        value = self._fields.get(number, [memoryview(b"")])[-1]
        if isinstance(value, int):
            raise ValueError(f"field {number} is a number")
        return value

    def text(self, number: int) -> str:
        return bytes(self.data(number)).decode()

    def message(self, number: int) -> "Message":
        """A message; an empty one where it is missing."""
        return Message(self.data(number))

    def messages(self, number: int) -> "list[Message]":
        return [Message(value) for value in self.all_data(number)]

    def all_data(self, number: int) -> list[memoryview]:
        values = self._fields.get(number, [])
        if any(isinstance(value, int) for value in values):
            raise ValueError(f"field {number} is a number")
        return values  # type: ignore[return-value]

    def packed(self, number: int) -> np.ndarray:
        """Many repeated numbers in one field, as int64."""
        data = np.frombuffer(self.data(number), np.uint8)
        ends = np.flatnonzero(data < 128)
        starts = np.concatenate([[0], ends[:-1] + 1])
        if len(ends) == 0 or ends[-1] != len(data) - 1 or (ends - starts).max() > 9:
            raise ValueError(f"field {number} is not a list of numbers")
        shifts = 7 * (np.arange(len(data)) - np.repeat(starts, ends - starts + 1))
        parts = (data & 127).astype(np.uint64) << shifts.astype(np.uint64)
        return np.add.reduceat(parts, starts).view(np.int64)

    def integers(self, number: int) -> list[int]:
        """Repeated numbers, packed or not, each two's complement in 64 bits."""
        values: list[int] = []
        for value in self._fields.get(number, []):
            values += [value] if isinstance(value, int) else _varints(value)
        return [value - (value >> 63 << 64) for value in values]


def _varints(data: memoryview) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = varint(data, at)
        yield value
