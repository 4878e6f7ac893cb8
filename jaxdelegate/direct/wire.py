"""Protocol buffers without their schema: fields by number (protobuf.dev, "Encoding")."""

from collections.abc import Sequence

import numpy as np

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5


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
        at = 0
        while at < len(data):
            tag, at = varint(data, at)
            kind = tag & 7
            value: int | memoryview
            if kind == _VARINT:
                value, at = varint(data, at)
            elif kind in (_LENGTH, _EIGHT_BYTES, _FOUR_BYTES):
                size = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(kind)
                if size is None:
                    size, at = varint(data, at)
                value = data[at : at + size]
                if len(value) < size:
                    raise ValueError("a field ends after its message")
                at += size
            else:
                raise ValueError(f"an unknown wire type {kind}")
            self._fields.setdefault(tag >> 3, []).append(value)

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


def signed(values: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Numbers of an integer type from their varints, which are those of 64 bits."""
    return np.array(values, np.uint64).astype(np.int64).astype(dtype)
