"""The tokens of jaxdelegate.lm and of LiteRT-LM, for bundles of bench/make_language_models.py.

    python bench/compare_language_models.py bundles/*.litertlm --peer_python=PYTHON
        [--prompts=5] [--tokens=64] [--weights=random]
        [--out=bench/results/compare_language_models.jsonl]

PYTHON has litert-lm 0.18.1 installed. For each bundle, one line:

* `equal`: how many answers have the same tokens. `divergences`: the first token that differs in
  each of the others, with the margins: by how much each engine prefers its own token.
* `forced_top1`: how often the engine's token is LiteRT-LM's, after the same tokens.
  `forced_margin`: by how much the engine prefers its own where it is not.
* `rounding`: the largest difference between the engines' logarithms of probabilities where both
  choose the same token. A margin up to twice the rounding is what it may decide: `explained`.
* `reference`: the numpy interpreter on a short sequence: how many of its tokens are the engine's,
  and the largest difference of logarithms.

LiteRT-LM returns no logits, so those of its side are from LiteRT's interpreter with XNNPACK, which
has the same kernels; `peer_top1` is how often these choose LiteRT-LM's token.

LiteRT-LM cannot open bundles with caches of several lengths. Such a bundle is compared with its
answers to the bundle of `--same`: "llama_two_caches:llama_wi8" has the same weights.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags
from ai_edge_litert.interpreter import Interpreter
from harness import append, last_line
from processes import Worker, WorkerError

import jaxdelegate as jd
from jaxdelegate import lm
from jaxdelegate.lm.graph import LanguageGraph
from jaxdelegate.lm.masks import place_inputs
from jaxdelegate.lm.signatures import language_graph

FLAGS = flags.FLAGS
flags.DEFINE_string("peer_python", "python", "A Python that has litert-lm.")
flags.DEFINE_integer("prompts", 5, "How many prompts.", 1)
flags.DEFINE_integer("tokens", 64, "How many tokens of each answer.", 1)
flags.DEFINE_integer("reference_tokens", 12, "How many tokens the numpy interpreter reads.", 2)
flags.DEFINE_list("same", ["llama_two_caches:llama_wi8"], "Bundles with the same weights.")
flags.DEFINE_string("weights", "trained", "What the lines say about the bundles' weights.")
flags.DEFINE_string("out", None, "A file to append the JSON lines to.")

PART = "prefill_decode"
Logits = Iterator[np.ndarray]


@dataclasses.dataclass
class Forced:
    """The engines after the same tokens, step by step.

    Attributes:
        theirs: LiteRT-LM's tokens.
        ours: the engine's.
        own: the logarithm of the probability of the engine's token.
        of_theirs: of LiteRT-LM's, by the engine.
        peer: [steps, vocabulary]: LiteRT's logarithms of probabilities.
    """

    theirs: list[int]
    ours: list[int]
    own: np.ndarray
    of_theirs: np.ndarray
    peer: np.ndarray

    @property
    def agree(self) -> np.ndarray:
        return np.array(self.ours) == np.array(self.theirs)

    @property
    def margins(self) -> np.ndarray:
        """By how much the engine prefers its token to LiteRT-LM's."""
        return self.own - self.of_theirs

    @property
    def peer_margins(self) -> np.ndarray:
        """By how much LiteRT prefers LiteRT-LM's token to the engine's."""
        rows = np.arange(len(self.ours))
        found: np.ndarray = self.peer[rows, self.theirs] - self.peer[rows, self.ours]
        return found

    @property
    def differences(self) -> np.ndarray:
        """How far the logarithms are apart for the token that both engines choose."""
        rows = np.arange(len(self.ours))
        found: np.ndarray = np.abs(self.peer[rows, self.ours] - self.own)[self.agree]
        return found


# ---- the two engines


def peer_answers(path: Path, prompts: list[str]) -> list[str]:
    script = str(Path(__file__).with_name("litert_lm_worker.py"))
    worker = Worker([FLAGS.peer_python, script])
    request = {"path": str(path), "prompts": prompts, "tokens": FLAGS.tokens}
    try:
        texts: list[str] = worker.ask(300, do="answers", **request)
    except WorkerError as error:
        raise WorkerError(f"LiteRT-LM: {error}") from error
    finally:
        worker.stop(wait=10)
    return texts


def forced(engine: lm.Engine, prompt: list[int], theirs: list[int], peer: np.ndarray) -> Forced:
    """The engine's next token after each beginning of LiteRT-LM's answer."""
    greedy = lm.SamplerConfig(top_k=1)
    beginnings = [[*prompt, *theirs[:n]] for n in range(len(theirs))]
    found = engine.generate(
        beginnings, sampler_config=greedy, max_output_tokens=1, log_probabilities=True
    )
    stop = engine.eos_token_ids[0][0]
    ours = [c.token_ids[0] if c.token_ids else stop for c in found]
    decoder = engine.new_decoder(1, has_stops=False)
    own, of_theirs = np.zeros(len(ours)), np.zeros(len(ours))
    for n, tokens in enumerate(beginnings):
        for scores, token in ((own, ours[n]), (of_theirs, theirs[n])):
            decoder.read(0, tokens)
            scores[n] = decoder.score(0, [token])[0]
    return Forced(theirs, ours, own, of_theirs, peer)


# ---- interpreters, token by token


def interpreter_logits(
    interpreter: Callable[[bytes], Any], bundle: jd.Bundle, graph: LanguageGraph, ids: Sequence[int]
) -> Logits:
    """The logits after each token, by the signature that decodes."""
    step = graph.decode
    run = runner(interpreter, bundle, PART, step.key)
    embed = {
        name: (runner(interpreter, bundle, e.part, e.key), e) for name, e in graph.embedders.items()
    }
    caches = {name: np.zeros(s.shape, s.dtype) for name, s in graph.states.items()}
    for position, token in enumerate(ids):
        placed = place_inputs(step.places, step.inputs, position, 1, graph.attention, graph.ring)
        inputs = {**caches, **{name: np.asarray(array) for name, array in placed.items()}}
        if step.tokens is not None:
            inputs[step.tokens] = np.array([[token]], step.inputs[step.tokens].dtype)
        for name, (computed, e) in embed.items():
            found = computed(**{e.token: np.full(e.shape, token, e.dtype)})[e.result]
            inputs[name] = np.array(found).reshape(step.inputs[name].shape)
        outputs: Mapping[str, np.ndarray] = run(**inputs)
        caches = {name: np.array(outputs[name]) for name in caches}
        yield np.array(outputs["logits"]).reshape(-1)


def runner(interpreter: Callable[[bytes], Any], bundle: jd.Bundle, part: str, key: str) -> Any:
    return interpreter(bytes(bundle.data(part))).get_signature_runner(key)


def xnnpack(model: bytes) -> Any:
    interpreter = Interpreter(model_content=model, num_threads=1)
    interpreter.allocate_tensors()
    return interpreter


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    found: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return found


# ---- the comparison


def prompts_of(engine: lm.Engine) -> list[str]:
    """Texts of words that the tokenizer knows, of different lengths."""
    random = np.random.default_rng(0)
    lengths = [5, 12, 17, 40, 90][: FLAGS.prompts] + [30] * max(FLAGS.prompts - 5, 0)
    return [engine.detokenize(random.integers(4, 132, n).tolist()) for n in lengths]


def reference(engine: lm.Engine, bundle: jd.Bundle, graph: LanguageGraph, ids: list[int]) -> Any:
    """The numpy interpreter's tokens and probabilities after a short sequence, and the engine's."""
    ids = ids[: FLAGS.reference_tokens]
    logits = np.array(list(interpreter_logits(jd.Interpreter, bundle, graph, ids)))
    chances = log_softmax(logits)
    found = forced(engine, ids[:1], [*ids[1:], int(chances[-1].argmax())], chances)
    best = chances.argmax(axis=1)
    difference = np.abs(chances[np.arange(len(ids)), found.ours] - found.own).max()
    same = [int(t) == o for t, o in zip(best, found.ours, strict=True)]
    return {"tokens": len(ids), "same": sum(same), "difference": float(difference)}


def divergence(found: Forced, ours: list[int]) -> dict[str, Any] | None:
    """Where the free answers part; they have the same tokens before."""
    pairs = zip(ours, found.theirs, strict=False)
    step = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(found.theirs)))
    if step == max(len(ours), len(found.theirs)):
        return None
    if step == len(found.theirs):  # it ended there
        return {"step": step, "margin": None, "peer_margin": None}
    return {
        "step": step,
        "ours": found.ours[step],
        "theirs": found.theirs[step],
        "margin": float(found.margins[step]),
        "peer_margin": float(found.peer_margins[step]),
    }


def measure(path: Path, peer: Path) -> dict[str, Any]:
    bundle = jd.open_bundle(path)
    engine = lm.Engine(path, max_batch=8)
    signatures = {part: jd.load(model).signatures for part, model in bundle.models.items()}
    graph = language_graph(signatures[PART], path.name, others=signatures)
    prompts = prompts_of(engine)
    ids = [engine.prompt_ids(prompt) for prompt in prompts]
    theirs = [engine.tokenize(text) for text in peer_answers(peer, prompts)]
    greedy = lm.SamplerConfig(top_k=1)
    free = engine.generate(prompts, sampler_config=greedy, max_output_tokens=FLAGS.tokens)
    steps = []
    for prompt, answer in zip(ids, theirs, strict=True):
        logits = list(interpreter_logits(xnnpack, bundle, graph, [*prompt, *answer[:-1]]))
        chances = log_softmax(np.array(logits[len(prompt) - 1 :]))
        steps.append(forced(engine, prompt, answer, chances))
    rounding = max(float(s.differences.max()) for s in steps)
    apart = [d for s, c in zip(steps, free, strict=True) if (d := divergence(s, c.token_ids))]
    agree = np.concatenate([s.agree for s in steps])
    wrong = np.concatenate([s.margins[~s.agree] for s in steps])
    chosen = np.concatenate([s.peer.argmax(axis=1) == np.array(s.theirs) for s in steps])
    return {
        "answers": len(free),
        "answer_tokens": [len(t) for t in theirs],
        "equal": len(free) - len(apart),
        "divergences": apart,
        "forced_top1": float(agree.mean()),
        "forced_margin": float(wrong.max()) if len(wrong) else 0.0,
        "rounding": rounding,
        "explained": all(
            d["margin"] is not None and max(d["margin"], d["peer_margin"]) <= 2 * rounding
            for d in apart
        ),
        "peer_top1": float(chosen.mean()),
        "reference": reference(engine, bundle, graph, [*ids[0], *theirs[0]]),
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
