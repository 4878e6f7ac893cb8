"""What the tools print fits 100 columns, whatever the model's names."""

from pathlib import Path

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import AddOptions
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.text import WIDTH
from tests.tools.conftest import Run

SCOPE = "/".join(["model_of_a_converter", "encoder_layer_with_a_long_name"] * 4)
ALIKE = ("check_precision", "bisect --use_jax", "inference_diff --use_jax --per_layer --num_runs=1")
# TFLite's lines, which scripts look for.
TFLITE = ("\t", "INFO: Explicitly applied", "INFO: Running benchmark", "INFO: Inference timings")
TFLITE += ("INFO: count=", "INFO: Note: as the benchmark", "Timings (microseconds)")


def long_names(count: int, custom: str = "") -> bytes:
    """A chain of operators with long names, the first of them a custom one if it is named."""
    builder = ModelBuilder()
    x = builder.input((1, 4), name=f"{SCOPE}/x")
    ones = builder.constant(np.full((1, 4), 1 / 3, np.float32), f"{SCOPE}/ones")
    for i in range(count):
        y = builder.tensor((1, 4), name=f"{SCOPE}/y{i}")
        if custom and i == 0:
            builder.operator(custom, [x], [y])
        else:
            builder.operator("ADD", [x, ones], [y], AddOptions())
        x = y
    builder.outputs(x)
    return builder.build()


def too_long(text: str) -> list[str]:
    return [line for line in text.splitlines() if len(line) > WIDTH]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (folder / "long.tflite").write_bytes(long_names(3))
    (folder / "many.tflite").write_bytes(long_names(40))
    (folder / "custom.tflite").write_bytes(long_names(40, f"{SCOPE}/Crop".replace("/", "_")))
    return folder


@pytest.mark.parametrize("tool", ALIKE)
def test_lines_of_tools_fit(path: Path, run_tool: Run, tool: str) -> None:
    name, *flags = tool.split()
    printed = run_tool(name, f"--graph={path / 'long.tflite'}", *flags)
    assert printed.code == 0
    assert "y2" in printed.out or name != "inference_diff"
    assert too_long(printed.out) == []


@pytest.mark.parametrize("model", ["many", "custom"])
def test_lines_of_an_analysis_fit(path: Path, run_tool: Run, model: str) -> None:
    flags = ("--use_jax", "--gpu_compatibility")
    printed = run_tool("analyze", f"--graph={path / model}.tflite", *flags)
    assert "Op#39 ADD" in printed.out
    assert too_long(printed.out) == []


def test_lines_of_a_benchmark_fit(path: Path, run_tool: Run) -> None:
    flags = ("--use_jax", "--num_runs=1", "--min_secs=0", "--warmup_min_secs=0")
    more = ("--enable_op_profiling", "--print_preinvoke_state")
    printed = run_tool("benchmark_model", f"--graph={path / 'long.tflite'}", *flags, *more)
    assert "[Name]" in printed.out
    assert [line for line in too_long(printed.out) if not line.startswith(TFLITE)] == []


def test_lines_of_a_report_fit(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = (path / "custom.tflite").read_bytes()
    delegate = jd.JaxDelegate(platform="cpu", min_gain=0)
    jd.Interpreter(model_content=content, experimental_delegates=[delegate])
    assert too_long(str(delegate.report())) == []
    assert too_long("\n".join(record.getMessage() for record in caplog.records)) == []


def test_json_has_the_whole_names(path: Path, run_tool: Run, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    run_tool("analyze", f"--graph={path / 'long.tflite'}", f"--result_json={result}")
    assert f"{SCOPE}/y2" in result.read_text()
