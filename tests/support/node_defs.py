"""Writes the options of TensorFlow's operators: a NodeDef in a flexbuffer vector."""

import struct
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.options import DATA_TYPES


def flex_options(name: str, **attributes: Any) -> bytes:
    """The custom options of Flex<name>; a tuple is a list of integers or strings, a dtype a type.

    Bytes are an encoded shape.
    """
    return packed(name, node_def(name, **attributes))


def packed(name: str, encoded: bytes) -> bytes:
    """A flexbuffer vector of two strings (flatbuffers.dev, "FlexBuffers"), with sizes of 4 bytes.

    The package's own builder encodes text only.
    """
    data, starts = b"", []
    for string in (name.encode(), encoded):
        data += struct.pack("<I", len(string))
        starts.append(len(data))
        data += string + b"\0"
    data += struct.pack("<I", len(starts))
    for start in starts:
        data += struct.pack("<I", len(data) - start)
    string_type, vector_type = 5 << 2 | 2, 10 << 2 | 2
    return data + bytes([string_type, string_type, 10, vector_type, 1])


def node_def(name: str, **attributes: Any) -> bytes:
    """NodeDef: op is its field 2, the map of attributes 5."""
    entries = (
        message(5, message(1, key.encode()) + message(2, _value(attribute)))
        for key, attribute in attributes.items()
    )
    return message(2, name.encode()) + b"".join(entries)


def _value(attribute: Any) -> bytes:
    """AttrValue."""
    if isinstance(attribute, tuple):
        texts = [message(2, text.encode()) for text in attribute if isinstance(text, str)]
        numbers = b"".join(varint(n) for n in attribute if isinstance(n, int))
        return message(1, message(3, numbers) + b"".join(texts))
    if isinstance(attribute, str | bytes):
        return (
            message(2, attribute.encode()) if isinstance(attribute, str) else message(7, attribute)
        )
    if isinstance(attribute, bool):
        return b"\x28" + varint(attribute)
    if isinstance(attribute, int):
        return b"\x18" + varint(attribute)
    if isinstance(attribute, float):
        return b"\x25" + struct.pack("<f", attribute)
    number = next(n for n, dtype in DATA_TYPES.items() if np.dtype(dtype) == attribute)
    return b"\x30" + varint(number)


def message(number: int, content: bytes) -> bytes:
    """A field with a length."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(number: int) -> bytes:
    """Seven bits in each byte, two's complement in 64 bits."""
    number, encoded = number % 2**64, b""
    while number > 0x7F:
        encoded += bytes([number & 0x7F | 0x80])
        number >>= 7
    return encoded + bytes([number])
