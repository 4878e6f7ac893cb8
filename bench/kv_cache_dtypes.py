"""How much answers change where KV caches have another type: `kv_cache_dtype` of `lm.Engine`.

    python bench/kv_cache_dtypes.py model.litertlm ... [--dtypes=int8_per_token_head]
        [--rows=rows.jsonl] [--count=24] [--tokens=64] [--out=results.jsonl]

Prompts are the contexts of --rows, as make_language_models.py writes them, else some English ones.
Answers are greedy. `equal` counts those with the tokens of float32 caches; `mean` and `most` are
differences of logarithms of probabilities up to the first token that differs. On a CPU.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags
from harness import append

from jaxdelegate import lm

FLAGS = flags.FLAGS
ENGLISH = (
    *("the quick brown fox", "What is the capital of France?", "the lazy dog runs into wood where"),
    *("Once upon a time", "brown dog and quick fox jumps over", "user model assistant"),
)


def answers(path: str, prompts: Sequence[str], kind: str) -> tuple[list[lm.Completion], int]:
    """The answers, and the bytes of the caches of a sequence."""
    options: dict[str, Any] = {"max_batch": len(prompts), "cache_dir": ":nocache"}
    with lm.Engine(path, lm.Backend.CPU(), kv_cache_dtype=kind, **options) as engine:
        found = engine.generate(prompts, max_output_tokens=FLAGS.tokens, log_probabilities=True)
        return found, engine.cache_bytes


def changed(a: lm.Completion, b: lm.Completion) -> np.ndarray:
    """Differences of logarithms of probabilities before the first token that differs."""
    pairs = enumerate(zip(a.token_ids, b.token_ids, strict=False))
    shorter = min(len(a.token_ids), len(b.token_ids))
    same = next((i for i, (x, y) in pairs if x != y), shorter)
    return np.subtract(a.log_probabilities[:same], b.log_probabilities[:same])


def main(arguments: list[str]) -> None:
    prompts: Sequence[str] = ENGLISH
    if FLAGS.rows:
        lines = Path(FLAGS.rows).read_text(encoding="utf-8").splitlines()[: FLAGS.count]
        prompts = [json.loads(line)["context"] for line in lines]
    for path in arguments[1:]:
        wanted, _ = answers(path, prompts, "float32")
        for kind in FLAGS.dtypes:
            found, size = answers(path, prompts, kind)
            pairs = [*zip(found, wanted, strict=True)]
            changes = np.concatenate([changed(*pair) for pair in pairs])
            equal = sum(a.token_ids == b.token_ids for a, b in pairs)
            head = {"bench": "kv_cache_dtypes", "bundle": Path(path).name, "kv_cache_dtype": kind}
            sizes = {"mean": float(np.abs(changes).mean()), "most": float(np.abs(changes).max())}
            counts = {"prompts": len(prompts), "tokens": FLAGS.tokens, "equal": equal}
            append({**head, **counts, **sizes, "cache_bytes": size}, FLAGS.out)


if __name__ == "__main__":
    flags.DEFINE_list("dtypes", ["int8_per_token_head"], "What is compared with float32.")
    flags.DEFINE_string("rows", None, "A file of prompts.")
    flags.DEFINE_integer("count", 24, "How many of them.", 1)
    flags.DEFINE_integer("tokens", 64, "Of an answer.", 1)
    flags.DEFINE_string("out", None, "A file to append JSON lines to.")
    app.run(main)
