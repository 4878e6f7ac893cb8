"""What XLA:CPU has compiled: its memory, constants, steps and object files.

Read from the bytes of a serialized executable: a header of IFRT, then PJRT's ExecutableAndOptions
with XLA's CompilationResultProto (xla/service/cpu/executable.proto). The numbers of fields are
those of xla/service/hlo.proto, buffer_assignment.proto, xla_data.proto and
xla/backends/cpu/runtime/thunk.proto.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from jaxdelegate.wire import Message, varint

Slice = tuple[int, int, int]  # allocation, offset, bytes

_TUPLE_SHAPE = 13
_LOOP = b"\x12\x05while"  # an instruction's operation: field 2, 5 bytes
_RAW = {  # by element type: dtype and the field of a literal, in the order of memory
    10: (np.uint16, 11),
    11: (np.float32, 8),
    12: (np.float64, 9),
    16: (np.uint16, 13),
    2: (np.int8, 15),
    3: (np.int16, 17),
    6: (np.uint8, 3),
    7: (np.uint16, 16),
}
_NUMBERS = {  # likewise, as varints
    1: (np.bool_, 2),
    4: (np.int32, 4),
    5: (np.int64, 5),
    8: (np.uint32, 6),
    9: (np.uint64, 7),
}


class UnknownError(ValueError):
    """A program with something that only XLA's runtime can run."""


@dataclasses.dataclass(frozen=True)
class Allocation:
    """A block of memory for a parameter, a constant, results or intermediate values."""

    size: int
    parameter: int | None = None
    constant: np.ndarray | None = None


class Compiled:
    """A serialized executable of XLA:CPU. Reading raises a ValueError or LookupError."""

    def __init__(self, serialized: bytes | memoryview) -> None:
        data = memoryview(serialized)
        size, at = varint(data, 0)
        result = Message(data[at + size :]).message(1)
        self._module = result.message(1).message(1)
        self._assignment = result.message(2)
        self.steps = result.message(6)
        self._objects = result.messages(8)
        if len(self._module.data(8)) > 0:
            raise UnknownError("a result takes the memory of an argument")

    @property
    def object_files(self) -> list[memoryview]:
        return [file.data(1) for file in self._objects]

    @functools.cached_property
    def allocations(self) -> Sequence[Allocation]:
        """By their index; thread-local allocations have the size 0."""
        messages = self._assignment.messages(3)
        if [one.integer(1) for one in messages] != list(range(len(messages))):
            raise UnknownError("allocations in another order")
        return [self._allocation(one) for one in messages]

    def _allocation(self, message: Message) -> Allocation:
        size = message.integer(2)
        if message.integer(3):
            return Allocation(0)
        if message.integer(5):
            if message.integer(7):
                raise UnknownError("a result takes the memory of an argument")
            if message.integers(10):
                raise UnknownError("an argument is a tuple")
            return Allocation(size, parameter=message.integer(6))
        if message.integer(12):
            (buffer,) = message.messages(9)
            place = self._buffers_by_number[buffer.integer(1)]
            constant = _literal(self._instruction(place[0]).message(8))
            if constant.nbytes != size or buffer.integer(2):
                raise UnknownError("a constant of another size")
            return Allocation(size, constant=constant)
        return Allocation(size)

    @property
    def is_bounded(self) -> bool:
        """Whether no loop's end depends on data; XLA compiles small loops into kernels."""
        return all(
            b'"known_trip_count"' in bytes(one.data(43))
            for data in self._module.all_data(3)
            if _LOOP in bytes(data)
            for one in Message(data).messages(2)
            if one.text(2) == "while"
        )

    # ---- where values are

    @functools.cached_property
    def _buffers_by_number(self) -> Mapping[int, tuple[int, tuple[int, ...]]]:
        """The instruction, and the index in its result, that defines each buffer."""
        places = {}
        for buffer in self._assignment.messages(1):
            place = buffer.message(3)
            places[buffer.integer(1)] = (place.integer(4), tuple(place.integers(3)))
        return places

    @functools.cached_property
    def _slices(self) -> Mapping[tuple[int, tuple[int, ...]], Slice]:
        slices = {}
        for allocation in self._assignment.messages(3):
            for part in allocation.messages(9):
                place = self._buffers_by_number[part.integer(1)]
                slices[place] = (allocation.integer(1), part.integer(2), part.integer(3))
        return slices

    @functools.cached_property
    def results(self) -> Sequence[Slice]:
        """Where the program leaves its results."""
        entry = self._scope(self._module.integer(6))
        shape = entry.root.message(3)
        if shape.integer(2) != _TUPLE_SHAPE:
            return [self._slice(entry, entry.root, ())]
        return [self._slice(entry, entry.root, (i,)) for i in range(len(shape.all_data(4)))]

    def _slice(self, scope: "_Scope", instruction: Message, index: tuple[int, ...]) -> Slice:
        """Where part of an instruction's result is, which may be that of an operand."""
        place = instruction.integer(35), index
        if place in self._slices:
            return self._slices[place]
        operation = instruction.text(2)
        operands = [scope.instructions[number] for number in instruction.integers(36)]
        if operation == "tuple":
            return self._slice(scope, operands[index[0]], index[1:])
        if operation == "get-tuple-element":
            return self._slice(scope, operands[0], (instruction.integer(13), *index))
        if operation in ("bitcast", "opt-barrier", "while"):  # a loop updates its operand in place
            return self._slice(scope, operands[0], index)
        if operation == "call":
            called = self._scope(instruction.integers(38)[0], scope, operands)
            return self._slice(called, called.root, index)
        if operation == "parameter" and scope.caller is not None:
            return self._slice(scope.caller, scope.arguments[instruction.integer(9)], index)
        raise UnknownError(f"a result of the operation {operation}")

    def _scope(
        self, number: int, caller: "_Scope | None" = None, arguments: Sequence[Message] = ()
    ) -> "_Scope":
        instructions = self._computations[number]
        root = instructions[_computation(self._module, number).integer(6)]
        return _Scope(instructions, root, caller, arguments)

    # ---- HLO

    @functools.cached_property
    def _computations(self) -> "_Computations":
        return _Computations(self._module)

    def _instruction(self, number: int) -> Message:
        return self._computations[number >> 32][number]


@dataclasses.dataclass(frozen=True)
class _Scope:
    """A computation, and the call that it runs for."""

    instructions: Mapping[int, Message]
    root: Message
    caller: "_Scope | None"
    arguments: Sequence[Message]  # the call's, in the caller


class _Computations(dict[int, Mapping[int, Message]]):
    """The instructions of computations by their numbers, read when they are needed."""

    def __init__(self, module: Message) -> None:
        super().__init__()
        self._module = module

    def __missing__(self, number: int) -> Mapping[int, Message]:
        instructions = _computation(self._module, number).messages(2)
        self[number] = by_number = {one.integer(35): one for one in instructions}
        return by_number


def _computation(module: Message, number: int) -> Message:
    for data in module.all_data(3):
        message = Message(data)
        if message.integer(5) == number:
            return message
    raise LookupError(f"no computation {number}")


def _literal(message: Message) -> np.ndarray:
    element = message.message(1).integer(2)
    if element in _RAW:
        raw, field = _RAW[element]
        return np.frombuffer(message.data(field), raw)
    if element in _NUMBERS:
        number, field = _NUMBERS[element]
        return message.packed(field).astype(number)
    raise UnknownError(f"a constant of element type {element}")
