"""`jaxdelegate inference_diff` on the command line."""

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate.testing import ModelBuilder
from jaxdelegate.tools.main import main
from jaxdelegate.version import __version__
from tests.support.language_models import language_bundle, language_model

pytestmark = pytest.mark.usefixtures("compiled_once")
DEEPLAB = Path(__file__).parents[3] / "shared/models/networks/image_segmenter__deeplabv3.tflite"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    builder = ModelBuilder()
    x = builder.input((1, 4), np.float32, "x")
    y, z = builder.tensor((1, 4), name="y"), builder.tensor((1, 4), name="z")
    builder.operator("EXP", [x], [y])
    builder.operator("NEG", [y], [z])
    builder.outputs(z)
    path = tmp_path_factory.mktemp("models") / "small.tflite"
    path.write_bytes(builder.build())
    return str(path)


Printed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tool(run_tool: Printed) -> Printed:
    return functools.partial(run_tool, "inference_diff")


@pytest.mark.parametrize("tool_name", ["inference_diff", "benchmark_model"])
def test_sizes_that_count_as_1_are_said(run_tool: Printed, tool_name: str, tmp_path: Path) -> None:
    builder = ModelBuilder()
    x = builder.input((1, 1, 3), np.float32, "words", shape_signature=(1, -1, 3))
    y = builder.tensor((1, 1, 3), name="y", shape_signature=(1, -1, 3))
    builder.operator("EXP", [x], [y])
    builder.outputs(y)
    (tmp_path / "free.tflite").write_bytes(builder.build())
    said = "input 'words' is [1, -1, 3]: free dimensions count as 1; --input_layer and"
    flags = [f"--graph={tmp_path / 'free.tflite'}", "--num_runs=1"]
    flags += ["--max_secs=0.1"] if tool_name == "benchmark_model" else []
    assert said in run_tool(tool_name, *flags)[1]
    sized = ["--input_layer=words", "--input_layer_shape=1,8,3"]
    assert "count as 1" not in run_tool(tool_name, *flags, *sized)[1]


@pytest.mark.parametrize(
    ("model", "count"),
    [("network_path", 5), pytest.param("mobilenet_path", 31, marks=pytest.mark.slow)],
)
def test_everything_at_once(
    tool: Printed, model: str, count: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    code, out, _ = tool(
        f"--graph={request.getfixturevalue(model)}",
        "--num_runs=2",
        "--invocations_per_run=2",
        "--per_layer",
        "--top=3",
        "--reference=litert_ref",
        f"--result_json={tmp_path / 'r.json'}",
        f"--result_html={tmp_path / 'r.html'}",
        f"--output_file_path={tmp_path / 'r.pb'}",
    )
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "All outputs agree with litert_ref."
    assert lines[1] == "Num evaluation runs: 2"
    assert lines[2].startswith("Reference run latency: avg=")
    assert lines[3].startswith("Test run latency: avg=")
    assert lines[4].startswith("OutputDiff[0]: avg_error=")
    assert f"All {count} operations will run on XLA:CPU, in 1 partition." in lines
    assert "No layer is out of bounds." in lines
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["agrees"] is True
    assert record["test_latency"]["count"] == 4
    assert len(record["layers"]["layers"]) == count
    assert f"avg_error={record['outputs'][0]['mean_abs']:g}," in lines[4]
    assert 0 < record["outputs"][0]["max_abs"] < 1e-6
    assert "Inference diff" in (tmp_path / "r.html").read_text()
    assert (tmp_path / "r.pb").read_bytes()[:2] == b"\x08\x02"  # num_runs: 2


def test_a_difference_is_exit_code_2(tool: Printed, small: str) -> None:
    code, out, _ = tool(f"--model_file={small}", "--num_runs=1", "--max_abs_error=0")
    assert (code, "1 of 1 output differs from numpy: 'z'" in out) in ((2, True), (0, False))
    files = "--input_layer_value_files=x:" + str(Path(small).parent / "x.npy")
    np.save(Path(small).parent / "x.npy", np.full((1, 4), np.float32(0.3)))
    code, out, _ = tool(f"--graph={small}", "--num_runs=1", files, "--tolerance=0.5")
    assert code == 0


def test_a_wrong_rule_is_exit_code_2(
    tool: Printed, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dataclasses

    from jaxdelegate.op_lowering.registry import RULES

    rule = RULES["EXP"]

    def lower(*arguments: Any) -> Any:
        right = rule.lower(*arguments)
        return lambda *arrays: tuple(y * 1.001 for y in right(*arrays))

    monkeypatch.setitem(RULES, "EXP", dataclasses.replace(rule, lower=lower))
    code, out, _ = tool(f"--graph={small}", "--num_runs=1", "--per_layer")
    assert code == 2
    assert "First divergence: #0 EXP 'y': wrong on the reference's inputs" in out
    verdict = (
        "1 of 1 output differs from numpy: 'z'. Given numpy's inputs, 1 of 2 operators is wrong"
    )
    assert verdict in " ".join(out.split())
    code, _, _ = tool(f"--graph={small}", "--num_runs=1", "--tolerance=0.01")
    assert code == 0


def test_other_delegates_and_hosts(
    tool: Printed, small: str, caplog: pytest.LogCaptureFixture
) -> None:
    code, out, _ = tool(f"--graph={small}", "--num_runs=1", "--delegate=xnnpack", "--per_layer")
    assert code == 0
    assert "No operations were delegated" not in out
    code, out, _ = tool(
        f"--graph={small}", "--num_runs=1", "--interpreter=litert", "--num_interpreter_threads=1"
    )
    assert code == 0
    assert "All 2 operations will run on XLA:CPU" in out
    code, out, _ = tool(f"--graph={small}", "--num_runs=1", "--last_delegate_node_index=0")
    assert "1 operation will run on XLA:CPU, and the remaining 1 operation will" in out
    assert "`jaxdelegate analyze`, with the same" in caplog.text
    assert "delegate.report()" not in caplog.text  # the user of a tool has no delegate
    assert code == 0


def test_another_file(tool: Printed, tmp_path: Path) -> None:
    def doubled(factor: float) -> bytes:
        builder = ModelBuilder()
        x, y = builder.input((1, 4), np.float32, "x"), builder.tensor((1, 4), name="y")
        builder.operator("MUL", [x, builder.constant(np.float32(factor))], [y])
        builder.outputs(y)
        return builder.build()

    for name, factor in (("a", 2), ("b", 2.0001), ("c", 2.1)):
        (tmp_path / f"{name}.tflite").write_bytes(doubled(factor))
    flags = ["--num_runs=2", "--tolerance=0", f"--result_html={tmp_path / 'r.html'}"]
    json_flag = f"--result_json={tmp_path / 'r.json'}"
    code, out, _ = tool(str(tmp_path / "a.tflite"), f"--against={tmp_path}/b.tflite", *flags)
    assert code == 0
    start = "1 of 1 output differs from b.tflite (numpy) by rounding: 'y'. Right as a whole: "
    assert f"{start}relative RMS error of 'y': " in " ".join(out.split())
    assert "b.tflite (numpy)" in (tmp_path / "r.html").read_text()
    code, out, _ = tool(str(tmp_path / "a.tflite"), f"--against={tmp_path}/c.tflite", json_flag)
    assert code == 2
    assert "Wrong as a whole: relative RMS error of 'y': " in " ".join(out.split())
    record = json.loads((tmp_path / "r.json").read_text())
    assert (record["against"], record["is_healthy"]) == (f"{tmp_path}/c.tflite", False)
    assert record["likenesses"][0]["limit"] == 1e-3


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("bundles") / "model.litertlm"
    path.write_bytes(language_bundle())
    return str(path)


def test_a_language_model(tool: Printed, bundle: str, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("Hello\n\nA\n")
    flags = ["--max_output_tokens=6", "--jax_serialization_dir=:nocache"]
    prompts, written = f"--prompt_file={tmp_path}/prompts.txt", f"--result_json={tmp_path}/r.json"
    code, out, _ = tool(bundle, "--reference=numpy", prompts, written, *flags)
    assert code == 0
    lines = out.splitlines()
    assert [line for line in lines if line.startswith("prompt")] == ["prompt 'Hello'", "prompt 'A'"]
    assert "After the same tokens the most likely one is equal in 12 of 12 steps (100.0%)." in lines
    assert lines[0] == "All answers agree with numpy."
    record = json.loads((tmp_path / "r.json").read_text())
    assert (record["tool"], record["version"]) == ("inference_diff", __version__)
    assert (record["is_healthy"], record["top_1"]) == (True, 1.0)
    assert [len(answer["tokens"]) for answer in record["answers"]] == [6, 6]
    other = tmp_path / "other.litertlm"
    other.write_bytes(language_bundle(model=language_model(seed=3)))
    against = f"--against={other}"
    code, out, _ = tool(bundle, "--reference=litert_ref", against, "--prompt=A", *flags)
    assert code == 2
    assert out.startswith("1 of 1 answer differs from other.litertlm (litert_ref).\n")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--graph={bundle}", "--num_runs=2"],
            "--num_runs does not apply to the language model of a bundle; it does to a model, "
            "--graph={bundle}!prefill_decode",
        ),
        (["--graph={bundle}", "--use_xnnpack"], "--use_xnnpack does not apply to the language"),
        (["--graph={bundle}", "--prompt=a", "--prompt_file=b"], "prompt_file: give one, got 2"),
        (["--graph={bundle}", "--prompt_file=/dev/null"], "expected a prompt, got none"),
        (
            ["--graph={small}", "--prompt=a"],
            "--prompt: expected a bundle with a language model, got {small}",
        ),
        (["--graph={small}", "--reference=litert_lm"], "--reference=litert_lm: expected a bundle"),
        (["--graph={bundle}!decoder"], "does not have a model 'decoder'"),
    ],
)
def test_mistakes_with_language_models(
    refused: Callable[..., str], small: str, bundle: str, flags: list[str], message: str
) -> None:
    given = (flag.format(small=small, bundle=bundle) for flag in flags)
    assert message.format(small=small, bundle=bundle) in refused("inference_diff", *given)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--graph is required"),
        (["--graph={small}", "--model_file={small}"], "give one .tflite file, got 2"),
        (["--graph={here}.tflite"], "Could not open"),
        (["--graph={here}"], "bytes 4 to 8 of a TFLite model are b'TFL3'"),
        (["--graph={small}", "--num_runs=0"], "num_runs"),
        (["--graph={small}", "--num_run=1"], "Unknown command line flag 'num_run'"),
        (["--graph={small}", "--reference=tf"], "reference"),
        (["--graph={small}", "--delegate=coreml"], "'coreml' is not available here"),
        (["--graph={small}", "--tolerance=-1"], "tolerance"),
        (["--graph={small}", "--input_layer_value_files=q:f"], "the model has no such input"),
        (["--graph={small}", "--input_layer_value_files=x:{here}.npy"], "No such file"),
        (
            ["--graph={small}", "--result_json={here}/r.json"],
            "result_json: {here}/r.json: no such",
        ),
        (
            ["--graph={small}", "--result_html={here}/r"],
            "result_html: {here}/r: no",
        ),
        (["--graph={small}", "--against={small}", "--per_layer"], "leave out --per_layer"),
        (["--graph={small}", "--against={here}.tflite"], "Could not open"),
        (["--graph={small}", "--use_xnnpack", "--interpreter=jaxdelegate"], "use_xnnpack"),
        (
            ["--graph={small}", "--num_threads=2", "--num_interpreter_threads=1"],
            "--num_interpreter_threads=1 and --num_threads=2 contradict each other",
        ),
        (
            ["--graph={small}", "--delegate=gpu", "--nouse_gpu"],
            "--delegate=gpu and --use_gpu=False contradict each other",
        ),
    ],
)
def test_mistakes_are_one_line(
    refused: Callable[..., str], small: str, flags: list[str], message: str
) -> None:
    given = (flag.format(small=small, here=__file__) for flag in flags)
    assert message.format(here=__file__) in refused("inference_diff", *given)


def test_the_manual_names_flags_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs/inference_diff.md").read_text()
    manual = page.partition("## Plots")[0]
    known = ""
    for name in ("inference_diff", "bisect", "benchmark_performance_options"):
        assert main([name, "--helpfull"]) == 0
        known += capsys.readouterr().out
    flags = set(re.findall(r"--([a-z_]+[a-z])\b", manual))
    assert len(flags) > 20
    assert [flag for flag in sorted(flags) if f"--{flag}" not in known.replace("[no]", "")] == []


@pytest.mark.exhaustive  # slow: the same in tests/comparison/test_layers.py
@pytest.mark.skipif(not DEEPLAB.exists(), reason="the real models are not here")
def test_a_real_network(tool: Printed, tmp_path: Path) -> None:
    code, out, _ = tool(
        f"--graph={DEEPLAB}", "--num_runs=1", "--per_layer", f"--result_json={tmp_path / 'r.json'}"
    )
    assert code == 0
    record = json.loads((tmp_path / "r.json").read_text())
    assert len(record["layers"]["layers"]) == 70
    assert record["outputs"][0]["shape"] == [1, 257, 257, 21]
    assert record["outputs"][0]["relative_to_largest"] < 1e-5
    assert out.startswith("All outputs agree with numpy.\n")
