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


@pytest.mark.parametrize("more", [[], ["--per_layer"]])
def test_a_comparison_without_flags(
    more: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.tflite").write_bytes(one_operator())
    flags = ["--num_runs=1", "--result_json=diff.json", *more]
    assert main(["inference_diff", "m.tflite", *flags]) == 0
    assert main(["plot", "diff.json"]) == 0
    assert Path("diff.png").read_bytes().startswith(b"\x89PNG")
    assert "layers plot of diff.json written to diff.png" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("records", "kind"),
    [
        (
            [{"inference_ms": {"values": [1, 2], "avg": 1.5}, "batch": 1, "operators": []}],
            "latency",
        ),
        ([{"inference_ms": {"values": [1], "avg": 1}, "batch": n} for n in (1, 8)], "batch"),
        ([{**ROOFLINE, "peaks": {"flops_per_second": 1e12, "bytes_per_second": 1e11}}], "roofline"),
    ],
)
def test_the_kind_is_what_the_results_have(
    records: list[dict[str, object]],
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = [tmp_path / f"{n}.json" for n in range(len(records))]
    for file, record in zip(files, records, strict=True):
        file.write_text(json.dumps(record))
    assert main(["plot", *map(str, files), f"--output={tmp_path}/x.svg"]) == 0
    assert capsys.readouterr().out.startswith(f"{kind} plot of ")


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
        ([], "--input is required"),
        (["--kind=pie"], "kind"),
        (["--kind=latency"], "--input is required"),
        (["{here}"], "not a JSON file"),
        (["{other}"], "other.json: expected a result of inference_diff or benchmark_model"),
        (["{result}", "--input={result}"], "unexpected argument"),
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
    other = tmp_path / "other.json"
    other.write_text("{}")
    given = (flag.format(result=result, here=__file__, other=other) for flag in flags)
    assert message in refused("plot", *given)
