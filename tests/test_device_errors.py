"""Errors of XLA, jax and numpy become this package's: out of memory, or what the caller names."""

import numpy as np
import pytest

from jaxdelegate.device_errors import device_error, is_out_of_memory
from jaxdelegate.errors import DeviceMemoryError, InterpreterError, LoweringError

SHORT = RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 12 bytes")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (SHORT, True),
        (MemoryError(), True),
        (RuntimeError("INTERNAL: no"), False),
        (ValueError("RESOURCE_EXHAUSTED"), False),  # a user's text
    ],
    ids=repr,
)
def test_out_of_memory(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) == expected


def test_an_allocation_that_numpy_cannot_make() -> None:
    with pytest.raises(MemoryError) as caught:
        np.empty(1 << 62, np.uint8)
    assert is_out_of_memory(caught.value)


def test_the_class_that_is_raised() -> None:
    other = RuntimeError("INTERNAL: no")
    assert type(device_error(SHORT, "nodes 1 to 2")) is DeviceMemoryError
    assert type(device_error(SHORT, "nodes 1 to 2", LoweringError)) is DeviceMemoryError
    assert type(device_error(other, "nodes 1 to 2")) is InterpreterError
    assert type(device_error(other, "nodes 1 to 2", LoweringError)) is LoweringError
    assert str(device_error(other, "nodes 1 to 2")) == "nodes 1 to 2"
