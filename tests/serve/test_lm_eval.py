"""lm-evaluation-harness over HTTP: its numbers are those of a session, and of the engine."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from jaxdelegate.serve.limits import Limits
from tests.serve.test_openai import Served, rendered
from tests.serve.test_openai_fields import serving
from tests.support.language_models import CHATML, language_bundle

pytest.importorskip("lm_eval", reason="pip install 'lm_eval[api]': 700 MB, no extra has it")

ROWS = [
    {"question": "The sky is", "choices": ["blue", "made of soup", "é"], "answer": 0},
    {"question": "What is 2 + 3?", "choices": ["4", "5"], "answer": 1},
]
TASKS = {
    "choices": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc"}],
    },
    "rolling": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{question}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    },
    "answers": {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "5",
        "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 8},
        "metric_list": [{"metric": "exact_match"}],
    },
}


def without_start(metadata: Any) -> None:
    """A session begins with a bundle's start token, and a list of token ids does not."""
    metadata.ClearField("start_token")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("lm_eval") / "tiny.litertlm"
    path.write_bytes(language_bundle(CHATML, edit=without_start))
    with serving(path, Limits()) as server:
        yield server


def evaluated(
    served: Served, folder: Path, model: str, path: str, task: str, *flags: str, **options: Any
) -> list[tuple[Mapping[str, str], Any]]:
    """The arguments of each request, and what came back, by the tool as users run it."""
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(rows)}}}
    # JSON is YAML.
    (folder / "task.yaml").write_text(
        json.dumps({"task": task, "test_split": "test", **data, **TASKS[task]})
    )
    arguments = {
        "model": "tiny",
        "base_url": f"http://127.0.0.1:{served.port}{path}",
        "max_length": 127,
        "max_retries": 1,
        **options,
    }
    command = [sys.executable, "-m", "lm_eval", "--model", model, "--tasks", task]
    command += ["--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())]
    command += ["--include_path", str(folder), "--output_path", str(folder / "out")]
    offline = {"HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    found = subprocess.run(
        [*command, "--log_samples", *flags],
        env={**os.environ, **offline},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-4000:]
    (samples,) = (folder / "out").glob(f"*/samples_{task}_*.jsonl")
    pairs = []
    for line in samples.read_text().splitlines():
        row = json.loads(line)
        for arguments, (answer,) in zip(row["arguments"].values(), row["resps"], strict=True):
            pairs.append((arguments, answer))
    return pairs


def scored(served: Served, before: str, text: str) -> float:
    with served.engine.create_session(apply_prompt_template=False) as session:
        session.run_prefill([before])
        return session.run_text_scoring([text]).scores[0]


TOKEN_IDS = {"tokenizer_backend": "remote"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [TOKEN_IDS, {**TOKEN_IDS, "batch_size": 3}, {**TOKEN_IDS, "tokenized_requests": False}],
)
def test_choices_are_scored_as_by_a_session(
    served: Served, tmp_path: Path, options: dict[str, Any]
) -> None:
    flags = [f"--batch_size={options['batch_size']}"] if "batch_size" in options else []
    options = {name: value for name, value in options.items() if name != "batch_size"}
    found = evaluated(
        served, tmp_path, "local-completions", "/v1/completions", "choices", *flags, **options
    )
    assert len(found) == 5
    for arguments, (score, is_greedy) in found:
        expected = scored(served, arguments["arg_0"], arguments["arg_1"])
        assert float(score) == pytest.approx(expected, abs=1e-4)
        (answer,) = served.engine.generate([arguments["arg_0"]], max_output_tokens=1)
        begins = answer.token_ids == served.engine.tokenize(arguments["arg_1"])[:1]
        assert (is_greedy == "True") <= begins


@pytest.mark.slow
def test_texts_are_scored_as_by_a_session(served: Served, tmp_path: Path) -> None:
    found = evaluated(
        served, tmp_path, "local-completions", "/v1/completions", "rolling", **TOKEN_IDS
    )
    assert len(found) == len(ROWS)
    for arguments, score in found:
        expected = scored(served, "<eos>", arguments["arg_0"])  # its first token's context
        assert float(score if isinstance(score, str) else score[0]) == pytest.approx(
            expected, abs=1e-4
        )


@pytest.mark.slow
@pytest.mark.parametrize("is_chat", [False, True])
def test_answers_are_those_of_the_engine(served: Served, tmp_path: Path, is_chat: bool) -> None:
    if is_chat:
        model, path, flags = (
            "local-chat-completions",
            "/v1/chat/completions",
            ["--apply_chat_template"],
        )
        found = evaluated(served, tmp_path, model, path, "answers", *flags)
    else:
        found = evaluated(
            served, tmp_path, "local-completions", "/v1/completions", "answers", **TOKEN_IDS
        )
    assert len(found) == len(ROWS)
    for row, (_, answer) in zip(ROWS, found, strict=True):
        text = str(row["question"])
        prompt = rendered([{"role": "user", "content": text}]) if is_chat else text
        (expected,) = served.engine.generate([prompt], max_output_tokens=8)
        assert answer == expected.text.partition("<eos>")[0].partition("\n\n")[0]
