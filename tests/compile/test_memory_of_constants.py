"""Weights on devices do not depend on the memory of the constants that they are copies of."""

import gc
import os
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as StockInterpreter

import jaxdelegate as jd
from jaxdelegate.model import files
from jaxdelegate.op_lowering.options import GatherOptions
from jaxdelegate.testing import ModelBuilder

TABLE = np.random.default_rng(0).normal(size=(1024, 64)).astype(np.float32)
ROWS = np.arange(0, 1024, 128, dtype=np.int32)


def lookup() -> bytes:
    """A lookup in a table at a multiple of 64 bytes, which XLA:CPU could use where it is."""
    for padding in range(64):
        model = ModelBuilder()
        rows, y = model.input(ROWS.shape, np.int32, "rows" * padding), model.tensor((8, 64))
        table = model.constant(TABLE, "table")
        model.operator("GATHER", [table, rows], [y], GatherOptions(axis=0))
        model.outputs(y)
        content = model.build(outside=True)
        if content.index(TABLE.tobytes()) % 64 == 0:
            return content
    raise AssertionError("no padding moves the table to a multiple of 64")


def opened(
    source: Path | memoryview, kind: type = jd.Interpreter, **options: str
) -> jd.Interpreter:
    delegate = jd.JaxDelegate(platform="cpu", min_gain=0, **options)
    argument = (
        {"model_path": str(source)} if isinstance(source, Path) else {"model_content": source}
    )
    interpreter: jd.Interpreter = kind(**argument, experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    return interpreter


def looked_up(interpreter: jd.Interpreter) -> np.ndarray:
    interpreter.set_tensor(0, ROWS)
    interpreter.invoke()
    result: np.ndarray = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    return result


def in_aligned_memory(content: bytes) -> np.ndarray:
    memory = np.empty(len(content) + 64, np.uint8)
    start = -memory.ctypes.data % 64
    found = memory[start : start + len(content)]
    found[:] = np.frombuffer(content, np.uint8)
    return found


def test_content_that_its_owner_changes_is_not_shared() -> None:
    memory = in_aligned_memory(lookup())
    first = opened(memory.data)
    np.testing.assert_array_equal(looked_up(first), TABLE[ROWS])
    second = opened(memoryview(lookup()))
    memory[:] = 0
    np.testing.assert_array_equal(looked_up(second), TABLE[ROWS])


def test_a_file_that_changes_in_place_does_not_change_its_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "READ_BYTES", 0)  # all files are mapped
    first, copy = tmp_path / "first.tflite", tmp_path / "copy.tflite"
    for path in (first, copy):
        path.write_bytes(lookup())
    changed = opened(first)
    np.testing.assert_array_equal(looked_up(changed), TABLE[ROWS])
    with first.open("r+b") as file:
        file.write(bytes(first.stat().st_size))
    with pytest.raises(jd.ModelError, match="changed in place"):
        changed.invoke()
    np.testing.assert_array_equal(looked_up(opened(copy)), TABLE[ROWS])


@pytest.mark.parametrize("is_stored", [False, True])
def test_weights_outlive_the_stock_interpreter_that_had_the_constants(
    tmp_path: Path, *, is_stored: bool
) -> None:
    first, copy = tmp_path / "first.tflite", tmp_path / "copy.tflite"
    for path in (first, copy):
        path.write_bytes(lookup())
    options = {}
    if is_stored:
        options["serialization_dir"] = str(tmp_path / "programs")
        np.testing.assert_array_equal(
            looked_up(opened(first, StockInterpreter, **options)), TABLE[ROWS]
        )
        gc.collect()
    interpreters = [opened(path, StockInterpreter, **options) for path in (first, copy)]
    os.truncate(first, 0)  # the constants of the first are gone: reading them would be fatal
    del interpreters[0]
    gc.collect()
    np.testing.assert_array_equal(looked_up(interpreters[0]), TABLE[ROWS])
