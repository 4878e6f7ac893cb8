"""`jaxdelegate analyze` on the command line."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.testing.builder import ModelBuilder
from jaxdelegate.tools.main import main


@pytest.fixture
def split(tmp_path: Path) -> Path:
    builder = ModelBuilder()
    x, y, z = builder.input((4,), name="x"), builder.tensor((4,)), builder.tensor((4,))
    builder.operator("Mystery", [x], [y])
    builder.operator("RELU", [y], [z])
    builder.outputs(z)
    path = tmp_path / "split.tflite"
    path.write_bytes(builder.build())
    return path


def test_mobilenet(mobilenet_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", f"--graph={mobilenet_path}"]) == 0
    printed, errors = capsys.readouterr()
    assert printed.startswith(f"=== {mobilenet_path} ===\n")
    assert "  Op#30 SOFTMAX(T#86) -> [T#88]\n" in printed
    assert "All 31 operations will run on XLA:CPU, in 1 partition." in printed
    assert "[tensor_core_channels] 2 products (#0, #28)" in printed
    assert "Traceback" not in errors


def test_files_are_written(mobilenet_path: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    profile = tmp_path / "latency.json"
    profile.write_text('{"#0": 0.5}')
    arguments = [
        f"--result_json={out}.json",
        f"--result_html={out}.html",
        f"--model_explorer_dir={out}",
    ]
    assert (
        main(["analyze", f"--graph={mobilenet_path}", f"--op_profile={profile}", *arguments]) == 0
    )
    record = json.loads(Path(f"{out}.json").read_text())
    assert record["subgraphs"][0]["operators"][0]["latency_ms"] == 0.5
    assert Path(f"{out}.html").read_text().endswith("</html>\n")
    assert sorted(p.name for p in out.iterdir()) == [
        f"mobilenet.{name}.json" for name in ("bytes", "flops", "latency", "partition")
    ]


@pytest.mark.usefixtures("compiled_once")
def test_what_the_other_tools_measured(network_path: str, tmp_path: Path) -> None:
    times, errors, out = (str(tmp_path / name) for name in ("times", "errors", "out"))
    graph = f"--graph={network_path}"
    runs = ["--num_runs=2", "--min_secs=0", "--warmup_min_secs=0", "--profile_runs=2"]
    more = ["--enable_op_profiling", f"--result_json={times}"]
    assert main(["benchmark_model", graph, *runs, *more]) == 0
    flags = ["--num_runs=1", "--per_layer", f"--result_json={errors}"]
    assert main(["inference_diff", graph, *flags]) == 0
    flags = [f"--op_profile={times}", f"--layer_errors={errors}", f"--result_json={out}"]
    assert main(["analyze", graph, *flags]) == 0
    operators = json.loads(Path(out).read_text())["subgraphs"][0]["operators"]
    assert all(0 < op["latency_ms"] < 1000 for op in operators)
    assert [0 <= op["error"] < 1e-5 for op in operators] == [True] * 5


def test_operators_that_stay_on_the_host(split: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", f"--graph={split}", "--gpu_compatibility"]) == 0
    printed = capsys.readouterr().out
    assert "has GPU delegate compatibility issues at nodes 0 " in printed
    assert "custom operator without an XLA lowering" in printed


def test_full_delegation_as_an_exit_code(
    split: Path, mobilenet_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", f"--graph={split}", "--require_full_delegation"]) == 1
    assert "custom operator without an XLA lowering" in capsys.readouterr().out
    assert main(["analyze", f"--graph={mobilenet_path}", "--require_full_delegation"]) == 0


def test_without_the_delegate(split: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", f"--graph={split}", "--use_jax=false"]) == 0
    assert "there is no delegate" in capsys.readouterr().out


Make = Callable[[Path], list[str]]


def damaged(folder: Path) -> list[str]:
    content = bytearray(mobilenet_v1(size=32, width=0.25))
    content[8:40] = b"\xff" * 32
    (folder / "damaged.tflite").write_bytes(content)
    return [f"--graph={folder / 'damaged.tflite'}"]


def text_file(folder: Path) -> list[str]:
    (folder / "notes.txt").write_text("these are notes, no model")
    return [f"--graph={folder / 'notes.txt'}"]


def no_folder(folder: Path) -> list[str]:
    (folder / "m.tflite").write_bytes(mobilenet_v1(size=32, width=0.25))
    return [f"--graph={folder / 'm.tflite'}", f"--result_json={folder}/nowhere/a.json"]


def bad_profile(folder: Path) -> list[str]:
    (folder / "m.tflite").write_bytes(mobilenet_v1(size=32, width=0.25))
    return [f"--graph={folder / 'm.tflite'}", f"--op_profile={folder / 'm.tflite'}"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda _: [], "--graph is required"),
        (lambda f: [f"--graph={f}/none.tflite"], "none.tflite"),
        (lambda f: [f"--graph={f}"], "it is a folder; name the .tflite file"),
        (damaged, "damaged.tflite: "),
        (text_file, "bytes 4 to 8 of a TFLite model are b'TFL3', got b'e ar'"),
        (no_folder, "nowhere/a.json: no such folder"),
        (bad_profile, "not a JSON file"),
        (lambda f: [f"--graph={f}", "--htlm=a"], "Unknown command line flag 'htlm'"),
        (lambda f: [f"--graph={f}", "--jax_platform=npu"], "npu"),
    ],
    ids=["no graph", "no file", "folder", "damaged", "text", "no folder", "profile", "flag", "npu"],
)
def test_mistakes_are_one_line(
    make: Make, message: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    assert message in refused("analyze", *make(tmp_path))
