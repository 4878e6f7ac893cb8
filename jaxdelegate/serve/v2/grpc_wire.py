"""Checks the bytes of a ModelInferRequest before protobuf creates objects from them.

An empty submessage of two bytes becomes a whole object; a number of one byte becomes eight. The
field numbers are those of `grpc_service.proto`.
"""

import dataclasses
from collections.abc import Iterator, Mapping

from jaxdelegate.serve.records import RequestError
from jaxdelegate.wire import LENGTH, fields

MAX_FIELDS = 1 << 14  # in a message, nested fields included
MAX_PACKED_BYTES = 1 << 24  # integers in `contents`, and of shapes


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
    try:
        is_large = _is_large(memoryview(message))
    except ValueError as error:
        raise RequestError(f"the message is not a ModelInferRequest: {error}") from None
    if is_large:
        raise RequestError(
            f"the message: expected at most {MAX_FIELDS} fields, including elements of "
            f"bytes_contents, and {MAX_PACKED_BYTES} bytes of integers, got more; send "
            "raw_input_contents"
        )


def _is_large(message: memoryview) -> bool:
    packed = 0
    for count, size in enumerate(_packed_sizes(message, _REQUEST), start=1):
        packed += size
        if count > MAX_FIELDS or packed > MAX_PACKED_BYTES:
            return True
    return False


def _packed_sizes(message: memoryview, kind: _Kind) -> Iterator[int]:
    """For each field, the bytes of packed integers in it."""
    for number, wire_type, value in fields(message):
        content = value if isinstance(value, memoryview) and wire_type == LENGTH else b""
        yield len(content) if number in kind.integers else 0
        if content and number in kind.messages:
            yield from _packed_sizes(memoryview(content), kind.messages[number])
