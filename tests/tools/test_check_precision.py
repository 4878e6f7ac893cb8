from pathlib import Path

import numpy as np
import pytest

from jaxdelegate.op_lowering.options import AddOptions
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.tools.main import main


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """x + x + x, with the first sum stored between two operators."""
    builder = ModelBuilder()
    x = builder.input((1, 4), np.float32, "x")
    y, z = builder.tensor((1, 4), name="double"), builder.tensor((1, 4))
    builder.operator("ADD", [x, x], [y], AddOptions())
    builder.operator("ADD", [y, x], [z], AddOptions())
    builder.outputs(z)
    path = tmp_path / "model.tflite"
    path.write_bytes(builder.build())
    return path


def test_a_safe_model(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check_precision", f"--graph={graph}", "--jax_compute_dtype=bfloat16"]) == 0
    assert capsys.readouterr().out.startswith(
        "bfloat16: all operators within tolerance (error bound 0.01)"
    )


def test_inputs_that_overflow(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(graph.parent / "x.npy", np.full((1, 4), 5e4, np.float32))
    code = main(
        [
            "check_precision",
            f"--graph={graph}",
            f"--input_layer_value_files=x:{graph.parent / 'x.npy'}",
        ]
    )
    out = capsys.readouterr().out
    assert code == 2
    assert "#0 ADD is the first operator out of tolerance" in out
    assert "(--jax_compute_dtype=float16 --jax_float32_operators=0)" in " ".join(out.split())


def test_errors_are_one_line(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["check_precision", f"--graph={graph}", f"--input_layer_value_files=x:{graph}"]) == 1
    )
    assert "is not a .npy file" in capsys.readouterr().err
    assert main(["check_precision", "--graph=absent.tflite"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
