"""A language model over prompts: two actors of Ray Data, one of which dies, against one process.

    python bench/ray_texts.py --bundle=model.litertlm [--prompts=2000] [--tokens=16] [--batch=64]
        [--folder=/tmp/ray_texts] [--out=bench/results/ray_texts.jsonl]

Prompts have 1 to 24 words. One process answers all of them in its order; then two actors with one
thread each do, once undisturbed and once with an actor that is killed when it meets a prompt in the
middle. Each run must answer every prompt once. The line has how many answers have the same tokens
and log probabilities as those of the one process, by how much the latter differ, and the seconds of
all runs, with their start. Tokens are drawn, each prompt has random numbers of its own.
"""

import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray.data
from absl import app, flags
from harness import append

from jaxdelegate.lm import SamplerConfig
from jaxdelegate.ray import TextPredictor

FLAGS = flags.FLAGS
flags.DEFINE_string("bundle", None, "A .litertlm or .task file.", required=True)
flags.DEFINE_integer("prompts", 2000, "How many.", 100)
flags.DEFINE_integer("tokens", 16, "Of an answer, at most.", 1)
flags.DEFINE_integer("batch", 64, "Prompts of a batch.", 1)
flags.DEFINE_string("folder", None, "The folder of programs; unset: a temporary one.")
flags.DEFINE_string("out", None, "A file to append the JSON lines to.")

ACTORS, BLOCKS = 2, 20
WORDS = (
    "the",
    "sea",
    "is",
    "blue",
    "and",
    "what",
    "do",
    "you",
    "know",
    "a",
    "house",
    "in",
    "France",
)

Columns = dict[str, np.ndarray]


class Step:
    """A TextPredictor whose process is killed at a row, once."""

    def __init__(self, died: str, row: int | None, **arguments: Any) -> None:
        self._predictor, self._died, self._row = TextPredictor(**arguments), died, row

    def __call__(self, batch: Columns) -> Columns:
        if self._row in batch["id"] and not os.path.exists(self._died):
            Path(self._died).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        found = self._predictor(batch)
        return found | {"process": np.full(len(found["id"]), os.getpid())}


def prompts(count: int) -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, rng.integers(1, 25))) for _ in range(count)]


def on_ray(texts: list[str], died: str, row: int | None, arguments: dict[str, Any]) -> Columns:
    """The answers of two actors, by prompt."""
    rows = [{"id": i, "prompt": text} for i, text in enumerate(texts)]
    result = ray.data.from_items(rows, override_num_blocks=BLOCKS).map_batches(
        Step,
        fn_constructor_kwargs={"died": died, "row": row, **arguments},
        batch_size=FLAGS.batch,
        compute=ray.data.ActorPoolStrategy(size=ACTORS),
        num_cpus=1,
    )
    parts = list(result.iter_batches(batch_size=None, batch_format="numpy"))
    found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(found["id"])
    if not np.array_equal(found["id"][order], np.arange(len(texts))):
        raise SystemExit("a prompt is missing or duplicated")
    return {name: column[order] for name, column in found.items()}


def one_process(texts: list[str], arguments: dict[str, Any]) -> Columns:
    predictor = TextPredictor(**arguments, num_threads=1)
    column = np.array(texts, object)
    batches = [column[i : i + FLAGS.batch] for i in range(0, len(texts), FLAGS.batch)]
    parts = [predictor({"prompt": batch}) for batch in batches]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def equal(name: str, a: Columns, b: Columns) -> int:
    """In how many rows a column is the same."""
    return sum([*x] == [*y] for x, y in zip(a[name], b[name], strict=True))


def largest_difference(a: Columns, b: Columns) -> float:
    """How far log probabilities are apart, in rows that have as many."""
    pairs = zip(a["log_probabilities"], b["log_probabilities"], strict=True)
    return max(float(np.abs(np.subtract(x, y)).max()) for x, y in pairs if 0 < len(x) == len(y))


def main(_argv: list[str]) -> None:
    folder = Path(FLAGS.folder or tempfile.mkdtemp())
    texts = prompts(FLAGS.prompts)
    arguments: dict[str, Any] = {
        "model": os.path.abspath(FLAGS.bundle),
        "outputs": ["generated_text", "generated_tokens", "log_probabilities"],
        "sampler_config": SamplerConfig(top_k=16, top_p=1.0, temperature=1.0, seed=1),
        "max_output_tokens": FLAGS.tokens,
        "options": {"serialization_dir": str(folder / "programs"), "platform": "cpu"},
    }
    began = time.perf_counter()
    want = one_process(texts, arguments)
    seconds = {"one process": time.perf_counter() - began}
    ray.init(num_cpus=ACTORS + 1, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    same: dict[str, Any] = {}
    died = folder / "died"
    died.unlink(missing_ok=True)
    for name, row in (("two actors", None), ("one killed", len(texts) // 2)):
        began = time.perf_counter()
        found = on_ray(texts, str(died), row, arguments)
        seconds[name] = time.perf_counter() - began
        same[name] = {
            "processes": len(np.unique(found["process"])),
            **{column: equal(column, found, want) for column in arguments["outputs"]},
            "largest_difference": largest_difference(found, want),
        }
    result = {
        "bench": "ray_texts",
        "bundle": Path(FLAGS.bundle).name,
        "prompts": FLAGS.prompts,
        "different_prompts": len(set(texts)),
        "different_answers": len({*want["generated_text"]}),
        "tokens": FLAGS.tokens,
        "batch": FLAGS.batch,
        "ray": ray.__version__,
        "died": died.exists(),
        "same": same,
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
    }
    append(result, FLAGS.out)
    ray.shutdown()


if __name__ == "__main__":
    app.run(main)
