"""Protobuf's wire format: the fields of an encoded message (protobuf.dev, "Encoding")."""

from collections.abc import Iterator

_VARINT, _DELIMITED = 0, 2
_FIXED_SIZES = {1: 8, 5: 4}
_MAX_VARINT = 10  # bytes


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The number and the content of each field."""
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        end = at
        if tag % 8 == _VARINT:
            _, end = varint(message, at)
        elif tag % 8 == _DELIMITED:
            size, at = varint(message, at)
            end = at + size
        elif tag % 8 in _FIXED_SIZES:
            end = at + _FIXED_SIZES[tag % 8]
        else:
            raise ValueError(f"a message holds a field of wire type {tag % 8}")
        if end > len(message):
            raise ValueError("a message ends within a field")
        yield tag >> 3, message[at:end]
        at = end


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of 64 bits, seven of them in each byte, and where it ends."""
    value = 0
    for i in range(_MAX_VARINT):
        if at + i >= len(data):
            raise ValueError("a message ends within a number")
        value |= (data[at + i] & 0x7F) << 7 * i
        if data[at + i] < 0x80:
            return value % 2**64, at + i + 1
    raise ValueError(f"a message holds a number of more than {_MAX_VARINT} bytes")


def varints(data: bytes) -> list[int]:
    """Numbers one after the other, each two's complement in 64 bits."""
    at, values = 0, []
    while at < len(data):
        value, at = varint(data, at)
        values.append(value - (value >> 63 << 64))
    return values
