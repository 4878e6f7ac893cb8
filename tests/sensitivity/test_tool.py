"""`jaxdelegate sensitivity` and its Python function, and their errors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import AddOptions, FullyConnectedOptions
from jaxdelegate.sensitivity import samples
from jaxdelegate.sensitivity.records import SensitivityReport
from jaxdelegate.sensitivity.schemes import SCHEMES, recipe
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.tools.main import main


def network(*, rows: int = 64, inputs: int = 1) -> bytes:
    """FULLY_CONNECTED [1, rows] -> [1, 4], between ABS, which no scheme quantizes, and ADD."""
    rng = np.random.default_rng(0)
    builder = ModelBuilder()
    xs = [builder.input((1, rows), np.float32, f"x{i}") for i in range(inputs)]
    names = ("abs", "a.b+", "sum")
    a, y, z = (builder.tensor((1, n), name=m) for n, m in zip((rows, 4, 4), names, strict=True))
    weights = builder.constant(rng.normal(size=(4, rows)).astype(np.float32), "w")
    builder.operator("ABS", [xs[0]], [a])
    builder.operator("FULLY_CONNECTED", [a, weights], [y], FullyConnectedOptions())
    builder.operator("ADD", [y, y], [z], AddOptions())
    builder.outputs(z)
    return builder.build()


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sensitivity") / "model.tflite"
    path.write_bytes(network())
    return path


@pytest.fixture(scope="module")
def report(graph: Path) -> SensitivityReport:
    return jd.quantization_sensitivity(graph.as_posix(), num_samples=2)


def test_the_report(report: SensitivityReport) -> None:
    rows = {o.op: o for o in report.operators}
    assert set(rows) == {"FULLY_CONNECTED", "ADD"}
    assert set(rows["FULLY_CONNECTED"].errors) == set(SCHEMES)
    assert set(rows["ADD"].errors) == {"int8", "int16x8"}
    assert rows["FULLY_CONNECTED"].bytes_saved == {
        "int8": 3 * 256 - 16,
        "int16x8": 3 * 256 - 16,
        "dynamic": 3 * 256 - 16,
        "int4": 1024 - 128 - 16,
    }
    assert [(o.index, o.op) for o in report.left] == [(0, "ABS")]
    for o in report.operators:
        assert all(0 < e.error < 0.2 and e.top1_changes is not None for e in o.errors.values())
    error = rows["ADD"].errors["int8"]
    assert error.sqnr == pytest.approx(-20 * np.log10(error.error))
    text = str(report)
    assert "note: random inputs" in text
    assert "no row: 1 ABS: litert-quantizer leaves this operator in float" in text


def test_the_whole_network_has_about_the_total_error(report: SensitivityReport) -> None:
    for scheme in report.schemes:
        assert report.whole[scheme].error == pytest.approx(report.total(scheme), rel=0.5)


def test_recipe_scopes_are_escaped(report: SensitivityReport) -> None:
    rules = report.recipe("int8", [1, 2])
    assert rules[0]["regex"] == ".*"
    assert rules[0]["op_config"] == SCHEMES["int8"].config
    assert [(r["regex"], r["operation"], r["algorithm_key"]) for r in rules[1:]] == [
        (r"^a\.b\+;$", "FULLY_CONNECTED", "no_quantize"),
        (r"^sum;$", "ADD", "no_quantize"),
        (r"^sum;$", "OUTPUT", "no_quantize"),
    ]
    assert (
        len(report.recipe("dynamic", [1])) == 2
    )  # inputs and outputs always stay float in this scheme


def test_recipes_leave_out_rows_that_are_not_multiples_of_a_block() -> None:
    """The quantizer would fail."""
    found = jd.quantization_sensitivity(network(rows=40), None, "dynamic,int4", num_samples=1)
    assert "int4" not in found.operators[0].errors
    (_, rule) = found.recipe("int4", [])
    assert (rule["regex"], rule["algorithm_key"]) == (r"^a\.b\+;$", "no_quantize")


def test_the_quantizer_has_another_name_for_transposed_convolutions() -> None:
    named = ("TRANSPOSE_CONV", ("y",))
    rules = recipe(SCHEMES["int8"], [named], ("x",), ())
    assert [r["operation"] for r in rules] == ["*", "CONV_2D_TRANSPOSE", "INPUT"]


def test_the_tool(graph: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.normal(size=(3, 64)).astype(np.float32))
    written, result = tmp_path / "recipe.json", tmp_path / "result.json"
    flags = ["--schemes=dynamic", f"--inputs={tmp_path}", f"--recipe={written}", "--max_error=0"]
    assert main(["sensitivity", str(graph), *flags, f"--result_json={result}"]) == 0
    out = capsys.readouterr().out
    assert "model.tflite: each operator quantized alone, ranked by dynamic; 3 samples" in out
    assert f"Wrote {written}: dynamic; in float: #1 FULLY_CONNECTED;" in out
    rules = json.loads(written.read_text())
    assert [rule["algorithm_key"] for rule in rules] == ["min_max_uniform_quantize", "no_quantize"]
    found = json.loads(result.read_text())
    assert found["operators"][0]["errors"]["dynamic"]["sqnr"] > 20


WRONG_FLAGS = [
    (["--schemes=int7"], "schemes: expected some of int8,int16x8,dynamic,int4, got 'int7'"),
    (["--max_error=0.1"], "--max_error and --max_total need --recipe"),
    (["--recipe=absent/recipe.json"], "recipe: absent/recipe.json: no such folder"),
    (["--inputs=absent.npy"], "absent.npy"),
]


@pytest.mark.parametrize(("flags", "message"), WRONG_FLAGS)
def test_wrong_flags(
    graph: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sensitivity", str(graph), *flags]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


X = np.zeros((1, 64), np.float32)
WRONG_SAMPLES: list[tuple[Any, str]] = [
    ([], "at least one sample"),
    ([{"y": X}], "sample 0 has ['y'], the model's inputs are ['x0']"),
    ([[X, X]], "sample 0 has 2 arrays, the model has 1 inputs: x0"),
    ([X.astype(np.float64)], "'x0' must be float32 [1, 64], got float64 [1, 64]"),
    ([X, np.zeros((2, 64), np.float32)], "sample 1: 'x0' is [2, 64], but [1, 64] in sample 0"),
    ([X * np.nan], "infinite or NaN"),
]


@pytest.mark.parametrize(("inputs", "message"), WRONG_SAMPLES)
def test_wrong_samples(graph: Path, inputs: Any, message: str) -> None:
    with pytest.raises(jd.TensorError) as caught:
        jd.quantization_sensitivity(str(graph), inputs, "dynamic")
    assert message in str(caught.value)


WRONG: list[tuple[Callable[[SensitivityReport], Any], str]] = [
    (lambda r: r.float_operators("int8"), "expected max_error, max_total or both"),
    (lambda r: r.ranked("int2"), "scheme: expected one of int8"),
    (lambda r: r.recipe("int4", [2]), "int4 quantizes no operator #2"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_wrong_calls(
    report: SensitivityReport, call: Callable[[SensitivityReport], Any], message: str
) -> None:
    with pytest.raises(jd.OptionError) as caught:
        call(report)
    assert message in str(caught.value)


def test_nothing_to_quantize() -> None:
    builder = ModelBuilder()
    x, y = builder.input((1, 4), np.float32, "x"), builder.tensor((1, 4))
    builder.operator("ABS", [x], [y])
    builder.outputs(y)
    with pytest.raises(jd.ModelError, match="no operator can be quantized: litert-quantizer"):
        jd.quantization_sensitivity(builder.build())


class TestFiles:
    """Samples from .npy and .npz files."""

    def inputs(self, count: int = 1) -> Any:
        model = jd.load(network(inputs=count)).graph.subgraphs[0]
        return [model.tensors[i] for i in model.inputs]

    def test_one_or_several_in_a_file(self, tmp_path: Path) -> None:
        for name, shape in (("a", (1, 64)), ("b", (3, 64)), ("c", (2, 1, 64))):
            np.save(tmp_path / f"{name}.npy", np.zeros(shape, np.float32))
        found = samples.read(f"{tmp_path},{tmp_path / 'a.npy'}", self.inputs())
        assert [x.shape for x in found] == [(1, 64)] * 7

    def test_several_inputs(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "s.npz", x0=X, x1=X + 1)
        (found,) = samples.checked(self.inputs(2), samples.read(str(tmp_path), self.inputs(2)))
        assert [x.max() for x in found.values()] == [0, 1]

    def test_wrong_files(self, tmp_path: Path) -> None:
        with pytest.raises(jd.OptionError, match=r"expected \.npy or \.npz files"):
            samples.read(str(tmp_path), self.inputs())
        (tmp_path / "x.npy").write_bytes(b"nothing")
        with pytest.raises(jd.OptionError, match=r"is not a \.npy or \.npz file"):
            samples.read(str(tmp_path), self.inputs())
        np.save(tmp_path / "x.npy", X)
        with pytest.raises(jd.OptionError, match=r"the model has 2 inputs; use a \.npz file"):
            samples.read(str(tmp_path), self.inputs(2))
