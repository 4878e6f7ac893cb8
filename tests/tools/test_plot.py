"""`jaxdelegate plot` on the command line."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jaxdelegate.testing import ModelBuilder
from jaxdelegate.tools.main import main

pytestmark = pytest.mark.usefixtures("compiled_once")
ROOFLINE = {"operators": [{"name": "ADD", "flops": 1e6, "bytes": 1e7, "seconds": 1e-3}]}


def one_operator() -> bytes:
    builder = ModelBuilder()
    x = builder.input((1, 64), np.float32, "x")
    w = builder.constant(np.full((32, 64), 0.1, np.float32))
    y = builder.tensor((1, 32), name="y")
    builder.operator("FULLY_CONNECTED", [x, w, None], [y])
    builder.outputs(y)
    return builder.build()


def test_layers_of_inference_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, result = tmp_path / "m.tflite", tmp_path / "r.json"
    model.write_bytes(one_operator())
    flags = [f"--graph={model}", "--num_runs=1", "--per_layer", f"--result_json={result}"]
    assert main(["inference_diff", *flags]) == 0
    figure = tmp_path / "layers.png"
    assert main(["plot", "--kind=layers", f"--input={result}", f"--output={figure}"]) == 0
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert f"layers plot of {result} written to {figure}" in capsys.readouterr().out


def test_results_of_the_benchmark(tmp_path: Path) -> None:
    model, result = tmp_path / "m.tflite", tmp_path / "r.json"
    model.write_bytes(one_operator())
    runs = ["--num_runs=3", "--min_secs=0", "--warmup_min_secs=0", "--profile_runs=2"]
    flags = [f"--graph={model}", *runs, "--enable_op_profiling", f"--result_json={result}"]
    assert main(["benchmark_model", *flags]) == 0
    peaks = ["--peak_flops=1e11", "--peak_bandwidth=1e10"]
    for kind in ("latency", "batch", "roofline"):
        figure = tmp_path / f"{kind}.svg"
        more = peaks if kind == "roofline" else []
        assert (
            main(["plot", f"--kind={kind}", f"--input={result}", f"--output={figure}", *more]) == 0
        )
        assert "<svg" in figure.read_text()


def test_a_roofline_with_peaks_from_the_command_line(tmp_path: Path) -> None:
    result, figure = tmp_path / "r.json", tmp_path / "r.svg"
    result.write_text(json.dumps(ROOFLINE))
    flags = ["--kind=roofline", f"--input={result}", f"--output={figure}"]
    assert main(["plot", *flags, "--peak_flops=1e12", "--peak_bandwidth=1e11"]) == 0
    assert "ADD" in figure.read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--kind is required"),
        (["--kind=pie"], "kind"),
        (["--kind=latency"], "--input is required"),
        (["--kind=latency", "--input={result}"], "--output is required"),
        (["--kind=latency", "--input={result}", "--output=x.txt"], "must end in .png, .svg"),
        (["--kind=latency", "--input={result}.absent", "--output=x.png"], "No such file"),
        (["--kind=latency", "--input={result}", "--output=x.png"], "not a result for a latency"),
        (
            ["--kind=roofline", "--input={result}", "--output=x.png"],
            "the device's peaks are not known",
        ),
        (
            ["--kind=roofline", "--input={result}", "--output=x.png", "--peak_flops=1"],
            "give both or neither",
        ),
        (["--kind=latency", "--input={result}", "--output={here}/x.png"], "x.png: no such folder"),
        (["--kind=layers", "--input={here}", "--output=x.png"], "not a JSON file"),
    ],
)
def test_mistakes_are_one_line(
    flags: list[str], message: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    result = tmp_path / "r.json"
    result.write_text(json.dumps(ROOFLINE))
    given = (flag.format(result=result, here=__file__) for flag in flags)
    assert message in refused("plot", *given)
