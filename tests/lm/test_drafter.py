"""Speculative decoding: a drafter proposes tokens, and answers are those of plain decoding."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate import lm
from jaxdelegate.errors import OptionError
from jaxdelegate.lm.background_compiler import BackgroundCompiler
from jaxdelegate.lm.constraints import Grammar
from jaxdelegate.lm.graph import LanguageGraph
from jaxdelegate.lm.language_model import LanguageModel
from jaxdelegate.lm.program_spec import ProgramSpec, ProgramSpecs
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.sampling_params import SamplingParams, Variant
from jaxdelegate.lm.scheduler import Scheduler
from jaxdelegate.lm.warm_up import warm_programs
from tests.lm.test_background_compiler import Held, finished
from tests.support.language_models import (
    drafter,
    drafter_bundle,
    embedders,
    language_bundle,
    language_model,
)

BOS, LENGTH, CAPACITY = 1, 4, 128
PROMPTS = ["Hello", "What is 2 + 3?", "x", "The quick brown fox jumps over the lazy dog"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lm") / "model.litertlm"
    path.write_bytes(drafter_bundle(verify=LENGTH))
    return path


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[lm.Engine]:
    with lm.Engine(path, lm.Backend.CPU(), max_batch=2, enable_speculative_decoding=True) as engine:
        yield engine


@pytest.fixture(scope="module")
def plain(path: Path) -> Iterator[lm.Engine]:
    with lm.Engine(path, lm.Backend.CPU(), max_batch=2) as engine:
        yield engine


def both(engine: lm.Engine, plain: lm.Engine, **given: Any) -> list[lm.Completion]:
    """The completions of both, which have the same tokens."""
    found, wanted = (e.generate(PROMPTS, log_probabilities=True, **given) for e in (engine, plain))
    assert [c.token_ids for c in found] == [c.token_ids for c in wanted]
    assert [c.finish_reason for c in found] == [c.finish_reason for c in wanted]
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a.log_probabilities, b.log_probabilities, rtol=0, atol=1e-4)
    return found


def test_answers_are_those_of_plain_decoding(engine: lm.Engine, plain: lm.Engine) -> None:
    """Up to the caches' last place, where a step of several tokens does not fit any more."""
    found = both(engine, plain)
    assert {c.prompt_tokens + c.completion_tokens for c in found} == {CAPACITY}
    for limit in range(1, LENGTH + 2):
        assert {c.completion_tokens for c in both(engine, plain, max_output_tokens=limit)} == {
            limit
        }


@pytest.mark.slow
def test_random_answers_with_penalties(engine: lm.Engine, plain: lm.Engine) -> None:
    """A proposal is right if it is the token that would have been drawn."""
    both(
        engine,
        plain,
        sampler_config=lm.SamplerConfig(top_k=40, temperature=0.7, seed=3),
        repetition_penalty_config=lm.RepetitionPenaltyConfig(repetition_penalty=1.3),
        no_repeat_ngram_config=lm.NoRepeatNgramConfig(no_repeat_ngram_size=2),
        max_output_tokens=40,
    )


def test_a_stop_token_ends_an_answer(tmp_path: Path) -> None:
    """Also where the drafter proposes it, and tokens after it."""

    def stops(m: Any) -> None:
        for text in "#SBi":
            m.stop_tokens.add().token_str = text

    path = tmp_path / "model.litertlm"
    path.write_bytes(drafter_bundle(verify=LENGTH, edit=stops))
    engine, plain = (
        lm.Engine(path, max_batch=1, enable_speculative_decoding=drafts) for drafts in (True, None)
    )
    assert "stop" in {c.finish_reason for c in both(engine, plain, max_output_tokens=40)}
    runner = engine.new_runner(1)
    runner.prefill(0, engine.prompt_ids("Hello"))
    runner.begin(0, Request((), 40, engine.text.sampling_params(), has_scores=True))
    pieces = [runner.decode(1)[0] for _ in range(20) if not runner.is_resting(0)]
    assert [piece.is_resting for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert engine.detokenize(pieces[-1].tokens[-1:]) in "#SBi"


class Reference:
    """The protocol of LiteRT-LM's drafter by numpy kernels, greedily."""

    def __init__(self, path: Path) -> None:
        models = jd.open_bundle(path).models
        parts = ("prefill_decode", "mtp_drafter", "embedder", "per_layer_embedder")
        main, draft, *embedding = (jd.Interpreter(models[part]) for part in parts)
        self._runs = {key: main.get_signature_runner(key) for key in ("decode", "verify")}
        self._draft = draft.get_signature_runner()
        self._embedders = [model.get_signature_runner() for model in embedding]
        self._caches = {
            name: np.zeros(d["shape"], d["dtype"])
            for name, d in self._runs["decode"].get_input_details().items()
            if name.startswith("kv_cache")
        }

    def _embedding(self, which: int, token: int) -> np.ndarray:
        results = self._embedders[which](token_ids=np.array([[token]], np.int32))
        found: np.ndarray = results["embeddings"].ravel()
        return found

    @staticmethod
    def _places(start: int, n: int) -> dict[str, np.ndarray]:
        places = np.arange(start, start + n, dtype=np.int32)
        sees = np.arange(CAPACITY) <= places[:, None]
        params = np.array([start, start + n, start + n, 0, 0, 0, 0], np.int32)
        return {
            "input_pos": places,
            "mask": sees[None, None],
            "param_tensor": params.reshape(1, 1, 1, 7),
        }

    def step(self, tokens: list[int], start: int) -> tuple[list[int], np.ndarray]:
        """The most likely tokens after each, and the activations."""
        own, more = (np.stack([self._embedding(i, t) for t in tokens])[None] for i in (0, 1))
        results = self._runs["decode" if len(tokens) == 1 else "verify"](
            embeddings=own,
            per_layer_embeddings=more[:, :, None],
            **self._places(start, len(tokens)),
            **self._caches,
        )
        self._caches = {name: results[name] for name in self._caches}
        return results["logits"][0].argmax(-1).tolist(), results["activations"][0]

    def proposals(self, token: int, position: int, activations: np.ndarray) -> list[int]:
        tokens = [token]
        for _ in range(LENGTH - 1):
            given = np.concatenate([self._embedding(0, tokens[-1]), activations.ravel()])
            where = self._places(position - 1, 1)
            results = self._draft(activations=given[None, None], **where, **self._caches)
            tokens.append(int(results["logits"].argmax()))
            activations = results["projected_activations"]
        return tokens[1:]

    def rounds(self, ids: list[int], count: int, *, is_warm: bool) -> list[int]:
        """How many tokens each round adds, up to `count` tokens.

        `is_warm`: a decode step generates the first token and its activations, as in LiteRT-LM.
        """
        for place, token in enumerate(ids[:-1]):
            self.step([token], place)
        token, place, found = ids[-1], len(ids) - 1, list[int]()
        activations = np.zeros(16, np.float32)
        if is_warm:
            (token,), activations = self.step([token], place)
            place, count = place + 1, count - 1
        while sum(found) < count:
            drafts = self.proposals(token, place, activations)
            tokens, rows = self.step([token, *drafts], place)
            right = next((n for n in range(LENGTH - 1) if tokens[n] != drafts[n]), LENGTH - 1)
            found.append(right + 1)
            token, activations, place = tokens[right], rows[right], place + right + 1
        return found


def test_proposals_are_accepted_as_in_litert_lm(path: Path) -> None:
    """Version 0.18.1 logs the success rate 0.29078 for these prompts, 30 tokens, this bundle."""
    tokenizer = jd.open_bundle(path).tokenizer()
    found = list[int]()
    for prompt in PROMPTS[:3]:
        ids = [BOS, *tokenizer.encode(prompt)]
        found += Reference(path).rounds(ids, 30, is_warm=True)
    assert sum(n - 1 for n in found) / ((LENGTH - 1) * len(found)) == pytest.approx(0.29078, 1e-5)


@pytest.mark.parametrize("prompt", PROMPTS[:2])
def test_each_step_adds_what_the_reference_accepts(
    path: Path, engine: lm.Engine, prompt: str
) -> None:
    """Its activations are zeros at first: the first proposals are worse than LiteRT-LM's."""
    ids, runner = engine.prompt_ids(prompt), engine.new_runner(1, has_stops=False)
    runner.prefill(0, ids)
    runner.begin(0, Request((), 40, engine.text.sampling_params()))
    found = [len(runner.decode(1)[0].tokens) for _ in range(10)]
    assert found == Reference(path).rounds(ids, 40, is_warm=False)[:10]
    assert sum(found) > 15


@pytest.mark.parametrize("slots", [1, 3])
def test_caches_are_updated_in_place(slots: int) -> None:
    size: dict[str, int] = {"hidden": 64, "capacity": 256}
    own, more = embedders(hidden=64)
    others = {"embedder": own, "per_layer_embedder": more, "mtp_drafter": drafter(**size)}
    content = language_model(has_embedders=True, verify=LENGTH, **size)
    model = LanguageModel(content, "model", others, {"platform": "cpu"}, None, ":nocache")
    variant = SamplingParams().variant(model.graph.vocabulary)
    spec = ProgramSpecs(model.graph, slots, (2,)).decode(variant, 256, "verify")
    text = model.program(spec)[0].executable.as_text()
    ahead = "" if slots == 1 else f"{slots},"
    for shape in (f"{ahead}1,1,256,64", f"{ahead}1,1,64,256"):
        assert f"f32[{shape}]" in text
        assert not re.search(rf"= f32\[{shape}\][^=]* copy\(", text)
    aliased = re.search(r"input_output_alias=\{([^\n]*?)\}, entry", text)
    assert aliased is not None
    assert aliased[1].count("alias)") == 3  # with the activations


def test_a_session_may_differ_from_its_engine(engine: lm.Engine, plain: lm.Engine) -> None:
    """`decode` shows how: a step that drafts may add several tokens."""
    for one, asked, drafts in (
        (engine, None, True),
        (engine, False, False),
        (plain, None, False),
        (plain, True, True),
    ):
        session = one.create_session(enable_speculative_decoding=asked)
        session.run_prefill(["Hello"])
        runner = session._open()
        runner.begin(0, Request((), 30, one.text.sampling_params()))
        assert (max(len(runner.decode(1)[0].tokens) for _ in range(4)) > 1) == drafts


def test_a_bundle_without_a_drafter_says_so(tmp_path: Path) -> None:
    path = tmp_path / "model.litertlm"
    names = ("tf_lite_embedder", "tf_lite_per_layer_embedder")
    others = dict(zip(names, embedders(), strict=True))
    verifying = language_model(has_embedders=True, verify=LENGTH)
    wrong = {"tf_lite_mtp_drafter": drafter(hidden=8)}
    for model, more, says in (
        (verifying, {}, "needs a model 'mtp_drafter'"),
        (language_model(has_embedders=True), wrong, "needs a signature 'verify'"),
        (verifying, wrong, r"cache 'kv_cache_k_0' of the shape \(1, 1, 128, 16\), got"),
    ):
        path.write_bytes(language_bundle(model=model, others={**others, **more}))
        with pytest.raises(OptionError, match=f"enable_speculative_decoding: .*{says}"):
            lm.Engine(path, enable_speculative_decoding=True)
        with lm.Engine(path) as engine, pytest.raises(OptionError, match=says):
            engine.create_session(enable_speculative_decoding=True)


# ---- programs that a thread compiles


@pytest.fixture(scope="module")
def long_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lm.Engine]:
    """For 512 tokens, with caches of two lengths."""
    own, more = embedders()
    others = {
        "tf_lite_embedder": own,
        "tf_lite_per_layer_embedder": more,
        "tf_lite_mtp_drafter": drafter(capacity=512),
    }
    model = language_model(has_embedders=True, verify=LENGTH, capacity=512, prefill=(64,))
    path = tmp_path_factory.mktemp("lm") / "model.litertlm"
    path.write_bytes(language_bundle(model=model, others=others))
    with (
        pytest.MonkeyPatch.context() as patch,
        lm.Engine(path, max_batch=3, enable_speculative_decoding=True, cache_dir=":nocache") as one,
    ):
        patch.setattr(LanguageGraph, "cache_lengths", (256, 512))
        yield one


SHORT, GROWING, NEARLY_FULL = [1, 80, 81], [1, *range(20, 255)], [1, *[*range(20, 190)] * 2]


def asked_of(engine: lm.Engine) -> list[Request]:
    sampled = SamplingParams(lm.SamplerConfig(top_k=40, temperature=0.7, seed=3))
    form = engine.text.constraint(Grammar.json({"type": "integer"}))
    return [
        Request(SHORT, 1, SamplingParams(), has_hidden_state=True),
        Request(SHORT, 30, SamplingParams()),
        Request(SHORT, 30, sampled, has_scores=True),
        Request(SHORT, 30, SamplingParams(), constraint=form),
        Request(GROWING, 40, SamplingParams()),  # beyond the first length of caches
        Request(NEARLY_FULL, None, sampled),  # to the last place
    ]


@pytest.mark.slow
def test_all_programs_are_those_that_the_thread_compiled(
    long_engine: lm.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request runs, or three do, of which some rest; tokens are those without a drafter."""
    held, ran = Held(long_engine._model), list[ProgramSpec]()
    runner, plain = long_engine.new_runner(3), long_engine.new_runner(1, drafts=False)
    compiler = BackgroundCompiler(held)
    held.allowed.set()
    compiler.warm(warm_programs(runner, Variant(), ["any", "long", "embeddings"]))
    assert compiler.wait_until_warm(300) is not None
    compiler.close()
    held.allowed.clear()
    known, run = set(held._known), LanguageModel.run

    def noted(model: LanguageModel, spec: ProgramSpec, *args: Any) -> Any:
        if spec.slots == 3:
            ran.append(spec)
        return run(model, spec, *args)

    monkeypatch.setattr(LanguageModel, "run", noted)
    scheduler = Scheduler(runner, long_engine.text.stops, compiler)
    requests = asked_of(long_engine)
    groups = requests[1:4], requests[2:5], requests[3:]
    for group in (*([request] for request in requests), *groups):
        assert all(map(scheduler.is_ready, group))
        active = [scheduler.join(request) for request in group]
        finished(scheduler, *active)
        for own, request in zip(active, group, strict=True):
            alone = Scheduler(plain, long_engine.text.stops)
            wanted = alone.join(request)
            finished(alone, wanted)
            assert (own.tokens, own.finish_reason) == (wanted.tokens, wanted.finish_reason)
    held.allowed.set()
    assert set(ran) <= known
    steps = {(spec.step, spec.length) for spec in ran if spec.kind == "decode"}
    assert steps >= {("verify", 256), ("verify", 512), ("decode", 512)}
