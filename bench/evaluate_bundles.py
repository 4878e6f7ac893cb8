"""Which bundle of a model is good? lm-evaluation-harness over `jaxdelegate serve`, and litert_lm.

    python bench/evaluate_bundles.py --rows=bundles/rows.jsonl float32.litertlm int8.litertlm ...
        [--lm_eval=lm_eval] [--slots=64] [--platform=gpu] [--compute_dtype=float16] [--out=FILE]

`make_language_models.py --rows=200` writes the questions. The harness has two tasks of them:
`choices` (`acc`: how often the likeliest choice is the right one) and `texts` (`exact_match`: how
often the greedy continuation is). Its command may be in another environment. A bundle's server is
started once, and each task runs twice, first to compile: `seconds` are those of the second run, as
the harness counts them. litert_lm, where it is installed, scores and continues the same texts in a
process of its own, one after the other, without the harness.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags
from harness import append, last_line, threads
from server_process import ServerProcess

FLAGS = flags.FLAGS
flags.DEFINE_string("rows", None, "The questions.", required=True)
flags.DEFINE_string("lm_eval", "lm_eval", "The harness's command.")
flags.DEFINE_integer("slots", 64, "--max_batch_size, and how many requests come at once.", 1)
flags.DEFINE_string("platform", "cpu", "Where jaxdelegate runs: cpu, gpu or tpu.")
flags.DEFINE_string("compute_dtype", "float32", "JaxDelegate's option.")
flags.DEFINE_string("out", None, "A file to append the JSON lines to.")
flags.DEFINE_string("child", None, "For the script itself: the bundle that litert_lm reads.")

Row = Mapping[str, Any]
_METRICS = {"choices": "acc", "texts": "exact_match"}
_FILTERS = {"choices": "none", "texts": "stripped"}
_STRIPPED = [{"function": "remove_whitespace"}, {"function": "take_first"}]
_TASKS: dict[str, dict[str, Any]] = {
    "choices": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{context}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "answer",
    },
    "texts": {
        "output_type": "generate_until",
        "doc_to_text": "{{context}}",
        "doc_to_target": "{{text}}",
        "generation_kwargs": {"until": ["\n"]},
        "filter_list": [{"name": "stripped", "filter": _STRIPPED}],
    },
}


def rows() -> list[Row]:
    return [json.loads(line) for line in Path(FLAGS.rows).read_text("utf-8").splitlines()]


def words(text: str) -> int:
    """A word is a token in these bundles."""
    return len(text.split(" "))


def write_tasks(folder: Path, longest: int) -> None:
    data = {"dataset_path": "json", "test_split": "test"}
    data["dataset_kwargs"] = {"data_files": {"test": str(Path(FLAGS.rows).resolve())}}
    for name, task in _TASKS.items():
        own = {**task, "metric_list": [{"metric": _METRICS[name]}]}
        if "generation_kwargs" in own:
            own["generation_kwargs"] = {**own["generation_kwargs"], "max_gen_toks": longest}
        # JSON is YAML.
        text = json.dumps({"task": name, **data, **own})
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")


def evaluated(port: int, task: str, folder: Path) -> dict[str, float]:
    """The metric, and the harness's seconds."""
    arguments = {"model": "m", "base_url": f"http://127.0.0.1:{port}/v1/completions"}
    arguments |= {"tokenizer_backend": "remote", "num_concurrent": str(FLAGS.slots)}
    out = folder / f"{task}_{time.monotonic_ns()}"
    command = [FLAGS.lm_eval, "--model=local-completions", f"--tasks={task}"]
    command += ["--model_args=" + ",".join(f"{k}={v}" for k, v in arguments.items())]
    command += [f"--include_path={folder}", f"--output_path={out}"]
    offline = {"HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    ended = subprocess.run(
        command, env={**os.environ, **offline}, stderr=subprocess.PIPE, text=True, check=False
    )
    if ended.returncode:
        raise RuntimeError(ended.stderr[-2000:])
    (path,) = out.rglob("results_*.json")
    found = json.loads(path.read_text("utf-8"))
    metric = found["results"][task][f"{_METRICS[task]},{_FILTERS[task]}"]
    return {_METRICS[task]: metric, "seconds": float(found["total_evaluation_time_seconds"])}


def ours(path: Path) -> dict[str, dict[str, float]]:
    options = [f"--jax_platform={FLAGS.platform}", f"--jax_compute_dtype={FLAGS.compute_dtype}"]
    options += ["--name=m", f"--max_batch_size={FLAGS.slots}", "--warm=none"]
    with ServerProcess(str(path), *options) as server, tempfile.TemporaryDirectory() as folder:
        server.wait_until_ready()
        write_tasks(Path(folder), max(words(row["text"]) for row in rows()))
        return {
            task: [evaluated(server.port, task, Path(folder)) for _ in range(2)][-1]
            for task in _TASKS
        }


def by_litert_lm(path: str) -> dict[str, dict[str, float]]:
    import litert_lm  # noqa: PLC0415 (may be absent)

    litert_lm.set_min_log_severity(litert_lm.LogSeverity.ERROR)
    engine = litert_lm.Engine(path, litert_lm.Backend.CPU(thread_count=threads()))

    def opened(row: Row, count: int) -> Any:
        session = engine.create_session(
            apply_prompt_template=False,
            sampler_config=litert_lm.SamplerConfig(top_k=1),
            max_output_tokens=count,
        )
        session.run_prefill([row["context"]])
        return session

    def score(row: Row, choice: str) -> float:
        with opened(row, 1) as session:  # it scores one text
            (found,) = session.run_text_scoring([f" {choice}"]).scores
        return float(found)

    def chosen(row: Row) -> bool:
        scores = [score(row, choice) for choice in row["choices"]]
        return scores.index(max(scores)) == row["answer"]

    def continued(row: Row) -> bool:
        with opened(row, words(row["text"])) as session:
            return session.run_decode().texts[0].strip() == row["text"]

    found = {}
    for task, is_right in {"choices": chosen, "texts": continued}.items():
        right = [is_right(row) for row in rows()]  # the first run warms up
        began = time.perf_counter()
        right = [is_right(row) for row in rows()]
        seconds = time.perf_counter() - began
        found[task] = {_METRICS[task]: sum(right) / len(right), "seconds": seconds}
    return found


def theirs(path: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, f"--rows={FLAGS.rows}", f"--child={path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"refused": last_line(RuntimeError(done.stderr))}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(arguments: Sequence[str]) -> None:
    if FLAGS.child:
        print(json.dumps(by_litert_lm(FLAGS.child)))
        return
    for path in map(Path, arguments[1:]):
        head = {"bench": "evaluate_bundles", "bundle": path.name, "threads": threads()}
        head |= {"mb": path.stat().st_size / 1e6, "rows": len(rows()), "slots": FLAGS.slots}
        head |= {"platform": FLAGS.platform, "compute_dtype": FLAGS.compute_dtype}
        append({**head, "jaxdelegate": ours(path), "litert_lm": theirs(path)}, FLAGS.out)


if __name__ == "__main__":
    app.run(main)
