"""XLA's steps as words for jaxdelegate/kernels/direct.cc, which describes them."""

import enum
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.thunks.compiled import Compiled, Slice, UnknownError
from jaxdelegate.wire import Message

_MOST_BUFFERS, _MOST_ATTRIBUTES, _MOST_DIMENSIONS = 256, 8, 8

# XLA's element types (xla_data.proto) as those of its foreign function interface are the same
# numbers (xla/ffi/api/c_api.h).
_ATTRIBUTE_TYPES = {"f32": np.float32, "f64": np.float64, "i32": np.int32, "i64": np.int64}
_ELEMENT_TYPES = {"f32": 11, "f64": 12, "i32": 4, "i64": 5}
_ATTRIBUTES = re.compile(r"\{(.*)\}", re.DOTALL)
_ATTRIBUTE = re.compile(r"\s*(\w+) = dense<([^>]*)> : tensor<(\d+)x(\w+)>\s*(?:,|$)")


class _Step(enum.IntEnum):
    KERNEL, COPY, TRANSPOSE, REPEAT, LOOP, BRANCH, CALL = range(7)


class Assembler:
    """Translates a program; `words` are its steps."""

    def __init__(
        self, compiled: Compiled, kernels: Mapping[str, int], handlers: Mapping[str, int]
    ) -> None:
        """Translate it with addresses of its kernels, and of FFI functions by their targets.

        An UnknownError for a step that only XLA's runtime can run, a ValueError for a slice outside
        of its allocation, a LookupError for a missing kernel.
        """
        self._allocations, self._kernels, self._handlers = compiled.allocations, kernels, handlers
        self.words: Sequence[int] = self._sequence(compiled.steps)

    def _sequence(self, message: Message) -> list[int]:
        words: list[int] = []
        for step in message.messages(1):
            kind = step.text(1)
            if kind == "call":
                words += self._sequence(step.message(3).message(1))
                continue
            translate = self._BY_KIND.get(kind)
            if translate is None:
                raise UnknownError(f"a step of the kind {kind}")
            number, field = translate
            code, rest = getattr(self, field)(step.message(number))
            words += [code, len(rest), *rest]
        return words

    _BY_KIND = {  # noqa: RUF012 (never changed)
        "kernel": (11, "_kernel"),
        "copy": (12, "_copy"),
        "while": (10, "_loop"),
        "conditional": (4, "_branch"),
        "custom-call": (16, "_call"),
    }

    def _kernel(self, message: Message) -> tuple[_Step, list[int]]:
        groups = [message.message(2).integer(i) for i in (1, 2, 3)]
        buffers = [one.message(1) for i in (5, 6) for one in message.messages(i)]
        if len(buffers) > _MOST_BUFFERS:
            raise UnknownError("a kernel of many arguments")
        slices = [self._slice(one) for one in buffers]
        address = self._kernels[message.text(1)]
        return _Step.KERNEL, [address, *groups, *(word for one in slices for word in one)]

    def _copy(self, message: Message) -> tuple[_Step, list[int]]:
        source, target = message.message(1), message.message(2)
        slices = [*self._slice(target.message(2)), *self._slice(source.message(2))]
        shapes = source.message(1), target.message(1)
        (element, extents, order), (other, same, target_order) = map(_memory, shapes)
        if (element, extents) != (other, same) or slices[2] != slices[5]:
            raise UnknownError("a copy into another shape")
        if order == target_order:
            return _Step.COPY, slices
        count = math.prod(extents)
        if len(extents) > _MOST_DIMENSIONS or count == 0 or slices[2] % count or not slices[2]:
            raise UnknownError("a copy of many dimensions, or of parts of bytes")
        size = stride = slices[2] // count
        strides = {}
        for dimension in order:
            strides[dimension] = stride
            stride *= extents[dimension]
        pairs = [(extents[d], strides[d]) for d in reversed(target_order)]
        return _Step.TRANSPOSE, [*slices, size, *(word for pair in pairs for word in pair)]

    def _loop(self, message: Message) -> tuple[_Step, list[int]]:
        body, count = self._sequence(message.message(2)), message.message(3)
        if count.integer(2):
            return _Step.REPEAT, [count.integer(1), *body]
        condition = self._sequence(message.message(1))
        return _Step.LOOP, [
            *self._slice(message.message(4)),
            len(condition),
            *condition,
            *body,
        ]

    def _branch(self, message: Message) -> tuple[_Step, list[int]]:
        index = self._slice(message.message(2))
        if index[2] not in (1, 4):
            raise UnknownError("an index of another type")
        branches = [self._sequence(one) for one in message.messages(1)]
        return _Step.BRANCH, [*index, *(word for b in branches for word in (len(b), *b))]

    def _call(self, message: Message) -> tuple[_Step, list[int]]:
        name = message.text(2)
        if name not in self._handlers or message.integer(1) != _TYPED_FFI:
            raise UnknownError(f"a call of {name}")
        buffers = message.message(4)
        arguments, results = buffers.messages(1), buffers.messages(2)
        if len(arguments) + len(results) > _MOST_BUFFERS:
            raise UnknownError("a call with many arguments")
        words = [self._handlers[name], len(arguments), len(results)]
        for one in (*arguments, *results):
            shape = one.message(1)
            dimensions = shape.integers(3)
            layout = shape.message(5).integers(1)
            if layout != sorted(layout, reverse=True):
                raise UnknownError("a call with another layout")
            words += [
                *self._slice(one.message(2)),
                shape.integer(2),
                len(dimensions),
                *dimensions,
            ]
        return _Step.CALL, words + _attributes(message.text(3))

    def _slice(self, message: Message) -> Slice:
        offset, size, index = (message.integer(i) for i in (1, 2, 3))
        if offset + size > self._allocations[index].size:
            raise ValueError("a slice outside of its allocation")
        return index, offset, size


_TYPED_FFI = 4


def _memory(shape: Message) -> tuple[int, list[int], list[int]]:
    """Element type, dimensions, and their order in memory, the fastest first."""
    return shape.integer(2), shape.integers(3), shape.message(5).integers(1)


def _attributes(text: str) -> list[int]:
    """Attributes in the order of their names, from MLIR's syntax."""
    if not text:
        return [0]
    braced = _ATTRIBUTES.fullmatch(text)
    rest = "" if braced is None else braced[1]
    values: dict[str, list[int]] = {}
    while match := _ATTRIBUTE.match(rest):
        name, elements, count, element = match.groups()
        values[name] = _attribute(elements, int(count), element)
        rest = rest[match.end() :]
    if braced is None or rest.strip() or len(values) > _MOST_ATTRIBUTES:
        raise UnknownError(f"the attributes {text}")
    return [len(values), *(word for name in sorted(values) for word in values[name])]


def _attribute(elements: str, count: int, element: str) -> list[int]:
    if element not in _ATTRIBUTE_TYPES or elements.startswith('"'):
        raise UnknownError(f"an attribute of the type {element}")
    dtype = np.dtype(_ATTRIBUTE_TYPES[element])
    numbers = [_number(one, dtype) for one in elements.strip("[]").split(",")]
    if len(numbers) not in (1, count):
        raise UnknownError(f"an attribute of {len(numbers)} of {count} elements")
    data = np.full(count, numbers, dtype).tobytes()
    padded = np.frombuffer(data + bytes(-len(data) % 8), np.int64)
    return [_ELEMENT_TYPES[element], count, len(padded), *map(int, padded)]


def _number(text: str, dtype: np.dtype) -> Any:
    """A number; infinities and NaN are written as the bits of a float."""
    text = text.strip()
    if not text.startswith("0x"):
        return dtype.type(text)
    return np.array(int(text, 16), f"u{dtype.itemsize}").view(dtype)[()]
