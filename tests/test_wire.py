"""Messages of protocol buffers: fields of every wire type, damaged bytes, numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jaxdelegate.wire import Message
from tests.support.node_defs import message as encoded
from tests.support.node_defs import varint


def fields(*pairs: tuple[int, int | bytes]) -> bytes:
    return b"".join(
        varint(number << 3) + varint(value) if isinstance(value, int) else encoded(number, value)
        for number, value in pairs
    )


def test_fields() -> None:
    inner = fields((1, 300), (1, b"\x01\x80\x01"), (2, b"text"))
    message = Message(fields((3, inner), (3, b""), (4, 1 << 63)) + b"\x2d\x00\x00\x80\x3f")
    first, second = message.messages(3)
    assert (first.integers(1), first.text(2), second.integers(1)) == ([300, 1, 128], "text", [])
    assert (message.integer(4), message.integer(9), bytes(message.data(9))) == (1 << 63, 0, b"")
    assert np.frombuffer(message.data(5), np.float32) == [1]


WRONG = {
    b"\x0a\x05abc": "ends within a field",
    b"\x0d\x00": "ends within a field",
    b"\x80": "ends within a number",
    b"\x0a": "ends within a number",
    b"\x08": "ends within a number",
    b"\x08\x80": "ends within a number",
    b"\x08" + b"\x80" * 10 + b"\x01": "more than 10 bytes",
    b"\x0b": "wire type 3",
    b"\x0f": "wire type 7",
}


@pytest.mark.parametrize("wrong", WRONG, ids=bytes.hex)
def test_no_message(wrong: bytes) -> None:
    with pytest.raises(ValueError, match=WRONG[wrong]):
        Message(wrong)


@pytest.mark.parametrize("read", [Message.data, Message.message, Message.all_data])
def test_a_field_of_another_type(read: Callable[[Message, int], Any]) -> None:
    with pytest.raises(ValueError, match="field 1 is a number"):
        read(Message(fields((1, 5))), 1)
    with pytest.raises(ValueError, match="field 1 is not a number"):
        Message(fields((1, b"5"))).integer(1)


def test_packed_numbers() -> None:
    values = [0, 127, 128, 300, 1 << 35, -5, 7]
    message = Message(fields((1, b"".join(varint(v % 2**64) for v in values))))
    assert message.packed(1).tolist() == message.integers(1) == values
    unpacked = Message(fields(*((1, v % 2**64) for v in values)))
    assert unpacked.integers(1) == values


@pytest.mark.parametrize("damaged", [b"", b"\x80", b"\x01\x80", b"\x80" * 10 + b"\x01"])
def test_packed_numbers_that_are_damaged(damaged: bytes) -> None:
    with pytest.raises(ValueError, match="field 1 is not a list of numbers"):
        Message(fields((1, damaged))).packed(1)
