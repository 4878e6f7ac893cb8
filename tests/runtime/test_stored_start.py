"""A stored start runs a program that it is given; it needs neither a model nor a delegate."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from jaxdelegate.errors import DeviceMemoryError, InterpreterError
from jaxdelegate.pjrt.client import NeedsJaxError
from jaxdelegate.program import Program, StoredTensor
from jaxdelegate.runtime.stored_start import StoredStart

X = StoredTensor(3, "x", (2, 2), (-1, 2), "float32", (), (), 0)
Y = StoredTensor(5, "y", (2, 2), (-1, 2), "float32", (0.5,), (3,), 0)
VALUES = np.arange(4, dtype=np.float32).reshape(2, 2)


@dataclasses.dataclass
class Executable:
    """Doubles its input, or raises."""

    error: Exception | None = None

    def run(self, _constants: Sequence[Any], values: Sequence[Any]) -> Sequence[Any]:
        if self.error is not None:
            raise self.error
        return [2 * values[0]]

    def memory_analysis(self) -> None:
        return None


def program(error: Exception | None = None) -> Program:
    return Program(Executable(error), (), (X.index,), (Y.index,), {})  # type: ignore[arg-type]


def started(load: Callable[[], Program]) -> StoredStart:
    return StoredStart((X,), (Y,), load, "cpu", "XLA:CPU", lambda: None)


def test_inputs_are_zeros_and_outputs_follow_from_them() -> None:
    start = started(program)
    assert not start.is_allocated
    assert start.allocate()
    np.testing.assert_array_equal(start.values[X.index], np.zeros((2, 2)))
    assert Y.index not in start.values
    np.copyto(start.values[X.index], VALUES)
    assert start.invoke()
    np.testing.assert_array_equal(start.values[Y.index], 2 * VALUES)


def test_a_program_is_loaded_once() -> None:
    loads = []

    def load() -> Program:
        loads.append(None)
        return program()

    start = started(load)
    assert start.allocate()
    np.copyto(start.values[X.index], VALUES)
    assert start.allocate()
    np.testing.assert_array_equal(start.values[X.index], VALUES)  # as in every interpreter
    assert len(loads) == 1


def test_a_program_that_cannot_be_loaded_is_not_used() -> None:
    def load() -> Program:
        raise LookupError("programs are not stored")

    start = started(load)
    assert not start.allocate()
    with pytest.raises(RuntimeError, match="before allocate"):
        start.invoke()


def test_a_program_that_needs_jax_is_not_used() -> None:
    start = started(lambda: program(NeedsJaxError("no buffers")))
    assert start.allocate()
    assert not start.invoke()


@pytest.mark.parametrize(
    ("error", "kind"),
    [(RuntimeError("INTERNAL: lost"), InterpreterError), (MemoryError("full"), DeviceMemoryError)],
)
def test_an_error_names_the_device(error: Exception, kind: type[Exception]) -> None:
    start = started(lambda: program(error))
    assert start.allocate()
    with pytest.raises(kind, match=f"program failed to invoke on XLA:CPU: {error}") as caught:
        start.invoke()
    assert type(caught.value) is kind


def test_it_knows_its_inputs() -> None:
    start = started(program)
    assert start.input(X.index) is X
    assert start.input(Y.index) is None
