"""Equal files that are open in a process are one Model, and no others are."""

import gc
import os
import weakref
from pathlib import Path

import numpy as np
import pytest

from jaxdelegate.model import files, open_models
from jaxdelegate.model.open_models import open_model
from jaxdelegate.testing import ModelBuilder


def model(factor: float = 1.0) -> bytes:
    builder = ModelBuilder()
    x, y = builder.input((64,)), builder.tensor((64,))
    builder.operator("MUL", [x, builder.constant(np.full(64, factor, np.float32))], [y])
    builder.outputs(y)
    return builder.build()


@pytest.fixture(params=["read", "mapped"])
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is read or mapped."""
    if request.param == "mapped":
        for module in (files, open_models):
            monkeypatch.setattr(module, "READ_BYTES", 0)
    path = tmp_path / "model.tflite"
    path.write_bytes(model())
    return path


def test_an_unchanged_file_is_one_model_as_long_as_it_is_open(path: Path) -> None:
    first = open_model(path)
    assert open_model(path) is first
    gone = weakref.ref(first)
    del first
    gc.collect()
    assert gone() is None


def test_a_file_that_was_replaced_is_another_model(path: Path) -> None:
    first, state = open_model(path), path.stat()
    new = path.with_suffix(".new")
    new.write_bytes(model(2.0))
    os.utime(new, ns=(state.st_atime_ns, state.st_mtime_ns))
    new.replace(path)
    assert open_model(path) is not first
    assert first.content == model()


def test_a_file_that_was_changed_in_place_is_another_model_whatever_its_times(path: Path) -> None:
    first, state = open_model(path), path.stat()
    with path.open("r+b") as file:
        file.write(model(2.0))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert path.stat().st_size == state.st_size
    assert open_model(path) is not first


def test_bytes_are_one_model_and_memory_that_can_change_is_not() -> None:
    first = open_model(model())
    assert open_model(model()) is first
    assert open_model(model(2.0)) is not first
    memory = bytearray(model())
    assert open_model(memory) is not first
    assert open_model(memory) is not open_model(memory)
