"""Protocol buffers without their schema: fields by number (protobuf.dev, "Encoding")."""

import numpy as np

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_SIZES = {_VARINT: -1, _EIGHT_BYTES: 8, _LENGTH: -1, _FOUR_BYTES: 4}  # -1: it begins with a number


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """The unsigned number at an offset, and the offset after it; an IndexError after the end."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number of more than 64 bits")


class Message:
    """A message's fields. A ValueError or IndexError if it is not a message."""

    def __init__(self, data: memoryview) -> None:
        self._fields: dict[int, list[int | memoryview]] = {}
        at, end = 0, len(data)
        while at < end:
            tag = data[at]
            at += 1
            if tag > 127:
                tag, at = varint(data, at - 1)
            kind = tag & 7
            if kind not in _SIZES:
                raise ValueError(f"an unknown wire type {kind}")
            size = _SIZES[kind]
            if size < 0:
                size = data[at]
                at += 1
                if size > 127:  # most numbers have one byte
                    size, at = varint(data, at - 1)
            value: int | memoryview = size
            if kind != _VARINT:
                value = data[at : (at := at + size)]
            self._fields.setdefault(tag >> 3, []).append(value)
        if at > end:
            raise ValueError("a field ends after its message")

    def integer(self, number: int) -> int:
        """A number; 0 where it is missing, as in proto3."""
        value = self._fields.get(number, [0])[-1]
        if not isinstance(value, int):
            raise ValueError(f"field {number} is not a number")
        return value

    def data(self, number: int) -> memoryview:
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
        """Many repeated numbers in one field, as uint64."""
        data = np.frombuffer(self.data(number), np.uint8)
        ends = np.flatnonzero(data < 128)
        starts = np.concatenate([[0], ends[:-1] + 1])
        if len(ends) == 0 or ends[-1] != len(data) - 1 or (ends - starts).max() > 9:
            raise ValueError(f"field {number} is not a list of numbers")
        shifts = 7 * (np.arange(len(data)) - np.repeat(starts, ends - starts + 1))
        parts = (data & 127).astype(np.uint64) << shifts.astype(np.uint64)
        return np.add.reduceat(parts, starts)

    def integers(self, number: int) -> list[int]:
        """Repeated numbers, packed or not."""
        found = []
        for value in self._fields.get(number, []):
            if isinstance(value, int):
                found.append(value)
                continue
            at = 0
            while at < len(value):
                one, at = varint(value, at)
                found.append(one)
        return found
