"""A model of more than 2 GiB: its buffers are after the flatbuffer, and are not copied."""

import os
from pathlib import Path

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import GatherOptions
from jaxdelegate.testing.builder import ModelBuilder

ROWS, COLUMNS = 6 << 20, 128  # float32: 3 GiB
PLACE = 1 << 20
ASKED = np.array([0, ROWS - 1], np.int32)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A lookup in a table of zeros whose last row is ones, in a sparse file."""
    m = ModelBuilder()
    rows, y = m.input((2,), np.int32), m.tensor((2, COLUMNS))
    table = m.constant(np.zeros((1, COLUMNS), np.float32), "table")
    m.operator("GATHER", [table, rows], [y], GatherOptions(axis=0))
    m.outputs(y)

    def edit(model: object) -> None:
        tensor = model.subgraphs[0].tensors[table]  # type: ignore[attr-defined]
        buffer = model.buffers[tensor.buffer]  # type: ignore[attr-defined]
        tensor.shape = [ROWS, COLUMNS]
        buffer.data, buffer.offset, buffer.size = None, PLACE, ROWS * COLUMNS * 4

    path = tmp_path / "large.tflite"
    path.write_bytes(m.build(edit=edit))
    os.truncate(path, PLACE + ROWS * COLUMNS * 4)
    with path.open("r+b") as file:
        file.seek(-COLUMNS * 4, os.SEEK_END)
        file.write(np.ones(COLUMNS, np.float32).tobytes())
    return path


def looked_up(interpreter: jd.Interpreter) -> np.ndarray:
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, ASKED)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def test_it_is_mapped_and_not_copied(large: Path) -> None:
    interpreter = jd.Interpreter(large, max_tensor_bytes=1 << 20, max_host_memory=1 << 20)
    y = looked_up(interpreter)
    assert (y[0] == 0).all()
    assert (y[1] == 1).all()
    (table,) = (d for d in interpreter.get_tensor_details() if d["name"] == "table")
    assert tuple(table["shape"]) == (ROWS, COLUMNS)
    assert not interpreter._runner(0).array(table["index"]).flags.owndata


@pytest.mark.exhaustive
def test_xla_reads_rows_of_it(large: Path) -> None:
    np.testing.assert_array_equal(
        looked_up(jd.Interpreter(large, experimental_delegates=[jd.JaxDelegate()])),
        looked_up(jd.Interpreter(large)),
    )


def test_a_truncated_one_is_refused(large: Path) -> None:
    os.truncate(large, PLACE + 100)
    with pytest.raises(jd.ModelError, match=r"large\.tflite"):
        jd.Interpreter(large)
