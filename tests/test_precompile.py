"""Filling a cache ahead of time, from Python and from the command line."""

from pathlib import Path

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.precompile import precompile
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.tools.main import main


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """A model with two inputs and two signatures, each with its own subgraph."""
    builder = ModelBuilder()
    a, b = (builder.input((1, 3), np.float32, name) for name in ("a", "b"))
    y = builder.tensor((1, 3))
    builder.operator("ADD", [a, b], [y])
    builder.outputs(y)
    builder.signature("add", {"a": a, "b": b}, {"y": y})
    other = builder.subgraph("other")
    x = other.input((4,), np.float32, "x")
    z = other.tensor((4,))
    other.operator("MUL", [x, x], [z])
    other.outputs(z)
    builder.signature("square", {"x": x}, {"z": z}, subgraph=1)
    path = tmp_path / "model.tflite"
    path.write_bytes(builder.build())
    return path


def delegate(directory: Path) -> jd.JaxDelegate:
    return jd.JaxDelegate(serialization_dir=str(directory))


def test_what_was_precompiled_is_loaded(graph: Path, tmp_path: Path) -> None:
    done = precompile(graph, delegate(tmp_path / "p"), {"a": (5, 3), "b": (5, 3)})
    assert (done.stored, done.found) == (2, 0)
    again = precompile(str(graph), delegate(tmp_path / "p"), [(5, 3), (5, 3)])
    assert (again.stored, again.found) == (0, 2)
    own = delegate(tmp_path / "p")
    interpreter = jd.Interpreter(graph, experimental_delegates=[own])
    for i in (0, 1):
        interpreter.resize_tensor_input(i, (5, 3))
    interpreter.allocate_tensors()
    assert (own.programs.statistics.loaded, own.programs.statistics.stored) == (1, 0)
    square = interpreter.get_signature_runner("square")
    np.testing.assert_array_equal(square(x=np.full(4, 3, np.float32))["z"], np.full(4, 9))
    assert (own.programs.statistics.loaded, own.programs.statistics.stored) == (2, 0)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"c": (1, 3)}, r"'c' is not among the inputs \['a', 'b'\]"),
        ({"a": (1, 3, 1)}, "input 'a' has 2 dimensions, got"),
        ([(1, 3)], "the model has 2 inputs, got 1"),
    ],
)
def test_shapes_that_fit_no_input(graph: Path, tmp_path: Path, shapes, message: str) -> None:
    with pytest.raises(jd.OptionError, match=message):
        precompile(graph, delegate(tmp_path / "p"), shapes)


def test_a_delegate_of_a_wrong_type(graph: Path) -> None:
    with pytest.raises(jd.OptionError, match="expected a JaxDelegate, got str"):
        precompile(graph, "xnnpack")


def test_without_a_directory(graph: Path) -> None:
    with pytest.raises(jd.OptionError, match="serialization_dir is required: the directory"):
        precompile(graph, jd.JaxDelegate())


def test_a_directory_that_cannot_be_used(graph: Path, tmp_path: Path) -> None:
    (tmp_path / "p").write_text("a file")
    with pytest.warns(jd.CacheWarning, match="compiled programs are not stored"):
        done = precompile(graph, delegate(tmp_path / "p"))
    assert (done.stored, done.found) == (0, 0)


def test_the_tool(graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "compile",
        f"--graph={graph}",
        f"--jax_serialization_dir={tmp_path / 'p'}",
        "--jax_model_token=mine",
        "--input_layer=b,a",
        "--input_layer_shape=2,3:2,3",
    ]
    assert main(arguments) == 0
    assert "2 programs compiled and stored in" in capsys.readouterr().out
    assert main(arguments) == 0
    assert "0 programs compiled and stored" in capsys.readouterr().out
    own = jd.JaxDelegate(serialization_dir=str(tmp_path / "p"), model_token="mine")
    assert precompile(graph, own, [(2, 3), (2, 3)]).found == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--graph is required"),
        (["--graph=x"], "jax_serialization_dir is required: the directory"),
        (["--graph=/nowhere", "--jax_serialization_dir={}"], "Could not open '/nowhere'"),
        (["--graph=x", "--jax_serialization_dir={}", "--input_layer=a"], "input_layer_shape"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", *(a.format(tmp_path / "p") for a in arguments)]) == 1
    printed = capsys.readouterr().err
    assert message in printed
    assert len(printed.splitlines()) == 1
