"""`jaxdelegate lm`, and other tools with models in bundles."""

import json
import os
from pathlib import Path

import pytest
from litert_lm_builder.runtime.proto import llm_metadata_pb2

from jaxdelegate.tools.main import main
from tests.support.bundles import (
    TYPES,
    gestures,
    litertlm,
    llm_task,
    model_part,
    multiplier,
    parts,
    zipped,
)

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def bundle(tmp_path: Path) -> str:
    sections = [*parts(), model_part("tf_lite_vision_encoder"), model_part("tf_lite_mtp_drafter")]
    path = tmp_path / "gemma.litertlm"
    path.write_bytes(litertlm(sections, properties={"Authors": "tests\n"}))
    return os.fspath(path)


def test_describe(bundle: str, capsys: Capture) -> None:
    assert main(["lm", "describe", bundle]) == 0
    printed = capsys.readouterr().out
    for line in (
        f"{bundle}: LiteRT-LM 1.7.0 bundle, ",
        r"  Authors:  tests\n",
        "  model type:            gemma3",
        "  tokens at most:        64",
        "  start token:           1",
        "  stop tokens:           '<eos>', 3 4",
        "  sampler:               TOP_P, k 5, p 0.5, temperature 0.25, seed None",
        "  padding token:         not declared",
        "  speculative decoding:  yes",
        "  {% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}",
        "  Hugging Face, 17 tokens",
        "Model prefill_decode",
        "      kv_cache_k_0  FLOAT32 [4]",
        "      logits        FLOAT32 [4]",
        "  vision_encoder: vision input is not supported; the model alone runs as '!vision_enc",
    ):
        assert line in printed
    assert max(map(len, printed.splitlines())) <= 100


def test_describe_archives(tmp_path: Path, capsys: Capture) -> None:
    vision = zipped({"vision.tflite": multiplier()})
    for name, content in (
        ("hands.task", gestures()),
        ("lm.task", llm_task()),
        ("vision.zip", vision),
    ):
        (tmp_path / name).write_bytes(content)
        assert main(["lm", "describe", f"--graph={tmp_path / name}"]) == 0
    printed = capsys.readouterr().out
    assert "Model hands.task!hand_detector.tflite" in printed
    assert "  SentencePiece, " in printed
    assert "Properties" not in printed
    assert "Not used for text generation" not in printed


def test_mistakes(bundle: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "m.tflite").write_bytes(multiplier())
    for arguments, says in (
        (["lm", f"--graph={bundle}"], "lm: expected one of describe, got none"),
        (["lm", "describe"], "--graph is required"),
        (["lm", "describe", f"{tmp_path}/m.tflite"], "expected a bundle"),
        (["lm", "describe", f"{bundle}!embedder"], "remove '!embedder'"),
        (["analyze", bundle], "a bundle of 3 models: name one"),
    ):
        assert main(arguments) == 1
        assert says in capsys.readouterr().err


def test_analyze_prints_the_sections_first(bundle: str, capsys: Capture) -> None:
    assert main(["analyze", f"{bundle}!mtp_drafter"]) == 0
    sections, _, report = capsys.readouterr().out.partition("\n\n")
    assert "  vision_encoder     TFLiteModel" in sections
    assert "mtp_drafter ===" in report.splitlines()[0]
    assert "Op#0 MUL(" in report


@pytest.mark.parametrize("interpreter", ["jaxdelegate", "litert"])
def test_tools_open_models_in_bundles(
    interpreter: str, bundle: str, tmp_path: Path, capsys: Capture
) -> None:
    model = f"{bundle}!vision_encoder"
    flags = ["--signature_to_run_for=decode", "--num_runs=1", "--min_secs=0", "--warmup_runs=0"]
    assert main(["benchmark_model", model, f"--interpreter={interpreter}", *flags]) == 0
    result = tmp_path / "diff.json"
    reference = {"jaxdelegate": "numpy", "litert": "litert_builtin"}[interpreter]
    assert (
        main(["inference_diff", model, f"--result_json={result}", f"--reference={reference}"]) == 0
    )
    assert json.loads(result.read_text())["model"] == model
    capsys.readouterr()


def test_long_texts_are_shortened(tmp_path: Path, capsys: Capture) -> None:
    long = llm_metadata_pb2.LlmMetadata(jinja_prompt_template="a " * 100_000 + "\n" * 1000)
    long.start_token.token_str = "\x1b" * 100_000
    for i in range(1000):
        long.stop_tokens.add().token_str = f"<{i}>"
    sections = [(TYPES.LlmMetadataProto, {"k" * 999: "v" * 999}, long.SerializeToString())]
    path = tmp_path / "b.litertlm"
    path.write_bytes(litertlm([*sections, model_part("m" * 999)], properties={"p" * 999: "x"}))
    assert main(["lm", "describe", os.fspath(path)]) == 0
    printed = capsys.readouterr().out
    assert len(printed) < 10_000
    assert "'<59>', ..." in printed
    assert "\x1b" not in printed
