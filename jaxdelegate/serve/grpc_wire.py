"""Checks the bytes of a ModelInferRequest before protobuf creates objects from them.

An empty submessage of two bytes becomes a whole object; a number of one byte becomes eight. The
field numbers are those of `grpc_service.proto`.
"""

import dataclasses
from collections.abc import Iterator, Mapping

from jaxdelegate.serve.records import RequestError

MAX_FIELDS = 1 << 14  # of a message, nested fields included
MAX_PACKED_BYTES = 1 << 24  # of integers in `contents`, and of shapes


@dataclasses.dataclass(frozen=True)
class _Kind:
    """The fields of a message that are checked."""

    messages: Mapping[int, "_Kind"] = dataclasses.field(default_factory=dict)
    integers: frozenset[int] = frozenset()


_CONTENTS = _Kind(integers=frozenset({2, 3, 4, 5}))  # int, int64, uint, uint64
_INPUT = _Kind({4: _Kind(), 5: _CONTENTS}, frozenset({3}))  # parameters, contents; shape
_OUTPUT = _Kind({3: _Kind()})
_REQUEST = _Kind({4: _Kind(), 5: _INPUT, 6: _OUTPUT})


def check(message: bytes) -> None:
    """Refuse a message that is invalid, or whose objects would be far larger than its bytes."""
    packed = 0
    fields = _fields(message, 0, len(message), _REQUEST)
    for count, (size, is_packed) in enumerate(fields, start=1):
        packed += size if is_packed else 0
        if count > MAX_FIELDS or packed > MAX_PACKED_BYTES:
            raise RequestError(
                f"the message: expected at most {MAX_FIELDS} fields, including elements of "
                f"bytes_contents, and {MAX_PACKED_BYTES} bytes of integers, got more; send "
                "raw_input_contents"
            )


def _fields(message: bytes, at: int, end: int, kind: _Kind) -> Iterator[tuple[int, bool]]:
    """The size of each field in bytes, and whether it holds packed integers."""
    while at < end:
        tag, at = _varint(message, at, end)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            size, at = 0, _varint(message, at, end)[1]
        elif wire == 2:
            size, at = _varint(message, at, end)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise _broken()
        if size > end - at:
            raise _broken()
        yield size, wire == 2 and number in kind.integers
        if wire == 2 and number in kind.messages:
            yield from _fields(message, at, at + size, kind.messages[number])
        at += size


def _varint(message: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise _broken()


def _broken() -> RequestError:
    return RequestError("the message is not a ModelInferRequest")
