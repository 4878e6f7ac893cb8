"""The tokens of jaxdelegate.lm and of LiteRT-LM, for bundles of bench/make_language_models.py.

    python bench/compare_language_models.py bundles/*.litertlm --peer_python=PYTHON
        [--prompts=5] [--tokens=64] [--weights=random]
        [--out=bench/results/compare_language_models.jsonl]

PYTHON has litert-lm-api 0.18.1 installed. For each bundle, one line with the results of
`jaxdelegate.comparison.language_models`:

* `equal`: how many answers have the same tokens. `divergences`: the first token that differs in
  each of the others, with the margins: by how much each engine prefers its own token.
* `forced_top1`: how often the engine's token is LiteRT-LM's, after the same tokens.
  `forced_margin`: by how much the engine prefers its own where it is not.
* `rounding`: the largest difference between the engines' logarithms of probabilities where both
  choose the same token. `noise`: the same of LiteRT's other kernels, null if it is not needed. A
  margin up to twice the larger one is what rounding may decide: `explained`.
* `reference`: the numpy interpreter on a short answer: how many of its tokens are the engine's,
  and the largest difference of logarithms.

LiteRT-LM returns no logits, so those of its side are from LiteRT's interpreter with XNNPACK, which
has the same kernels; `peer_top1` is how often these choose LiteRT-LM's token.

LiteRT-LM cannot open bundles with caches of several lengths. Such a bundle is compared with its
answers to the bundle of `--same`: "llama_two_caches:llama_wi8" has the same weights.
"""

from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags
from harness import append, last_line

from jaxdelegate import lm
from jaxdelegate.comparison.answers import AnswerDiff
from jaxdelegate.comparison.language_models import language_model_diff
from jaxdelegate.comparison.litert_lm import Process

FLAGS = flags.FLAGS
flags.DEFINE_string("peer_python", "python", "A Python that has litert-lm-api.")
flags.DEFINE_integer("prompts", 5, "How many prompts.", 1)
flags.DEFINE_integer("tokens", 64, "How many tokens of each answer.", 1)
flags.DEFINE_integer("reference_tokens", 12, "How many tokens the numpy interpreter answers.", 2)
flags.DEFINE_list("same", ["llama_two_caches:llama_wi8"], "Bundles with the same weights.")
flags.DEFINE_string("weights", "trained", "What the lines say about the bundles' weights.")
flags.DEFINE_string("out", None, "A file to append the JSON lines to.")


def prompts_of(path: Path) -> list[str]:
    """Texts of words that the tokenizer knows, of different lengths."""
    random = np.random.default_rng(0)
    lengths = [5, 12, 17, 40, 90][: FLAGS.prompts] + [30] * max(FLAGS.prompts - 5, 0)
    with lm.Engine(path) as engine:
        return [engine.detokenize(random.integers(4, 132, n).tolist()) for n in lengths]


def divergence(answer: AnswerDiff) -> dict[str, Any]:
    """Where two answers differ first; they have the same tokens before."""
    number = answer.divergence
    assert number is not None
    if number >= len(answer.steps):  # LiteRT-LM's token is not known
        return {"step": number, "margin": None, "peer_margin": None}
    step = answer.steps[number]
    return {
        "step": number,
        "ours": step.token,
        "theirs": step.expected,
        "margin": step.margin,
        "peer_margin": step.expected_margin,
    }


def reference(path: Path, prompt: str) -> dict[str, Any]:
    """The numpy interpreter's short answer, and the engine's after the same tokens."""
    found = language_model_diff(
        path, reference="numpy", prompts=[prompt], max_output_tokens=FLAGS.reference_tokens
    )
    same = sum(step.agrees for step in found.steps)
    difference = max(abs(step.own[0] - step.reference[0]) for step in found.steps)
    return {"tokens": len(found.steps), "same": same, "difference": difference}


def measure(path: Path, peer: Path) -> dict[str, Any]:
    prompts = prompts_of(path)
    found = language_model_diff(
        path,
        against=None if peer == path else peer,
        prompts=prompts,
        max_output_tokens=FLAGS.tokens,
        litert_lm=Process(FLAGS.peer_python),
    )
    margins = [step.margin for step in found.steps if not step.agrees]
    return {
        "answers": len(found.answers),
        "answer_tokens": [len(answer.expected_tokens) for answer in found.answers],
        "equal": len(found.answers) - len(found.differing),
        "divergences": [divergence(answer) for answer in found.differing],
        "forced_top1": found.top_1,
        "forced_margin": max(margins, default=0.0),
        "rounding": found.rounding,
        "noise": found.noise,
        "explained": found.is_healthy,
        "peer_top1": float(np.mean([step.best == step.expected for step in found.steps])),
        "reference": reference(path, prompts[0]),
    }


def main(arguments: list[str]) -> None:
    same = dict(pair.split(":") for pair in FLAGS.same)
    for path in map(Path, arguments[1:]):
        head = {"bench": "compare_language_models", "bundle": path.name, "weights": FLAGS.weights}
        peer = path.with_stem(same.get(path.stem, path.stem))
        try:
            found = measure(path, peer)
        except Exception as error:
            found = {"failed": last_line(error)}
        append({**head, "peer": peer.name, **found}, FLAGS.out)


if __name__ == "__main__":
    app.run(main)
