"""Engines and sessions: tokens, texts and scores equal those of a loop over the numpy reference."""

import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate import lm
from jaxdelegate.errors import GenerationError, OptionError
from jaxdelegate.lm.configs import with_activations
from jaxdelegate.lm.scheduler import Pace
from tests.support.language_models import (
    drafter_bundle,
    embedders,
    language_bundle,
    language_model,
)

BOS, EOS = 1, 2
PROMPTS = ["Hello", "What is 2 + 3?", "x", "The quick brown fox jumps over the lazy dog", "äöü €"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lm") / "model.litertlm"
    path.write_bytes(language_bundle())
    return path


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[lm.Engine]:
    with lm.Engine(path, lm.Backend.CPU(), max_batch=3) as engine:
        yield engine


class Reference:
    """The model by numpy kernels, a token at a time."""

    def __init__(self) -> None:
        self._runner = jd.Interpreter(model_content=language_model()).get_signature_runner("decode")
        self._state = {
            name: np.zeros(d["shape"], d["dtype"])
            for name, d in self._runner.get_input_details().items()
        }
        self._position = 0

    def logits(self, token: int) -> np.ndarray:
        state = self._state
        state["tokens"][:], state["input_pos"][:] = token, self._position
        sees = np.arange(state["mask"].shape[-1]) <= self._position
        state["mask"][:] = np.where(sees, 0, -0.7 * np.finfo(np.float32).max)
        results = self._runner(**state)
        self._state = {name: results.get(name, value) for name, value in state.items()}
        self._position += 1
        found: np.ndarray = results["logits"].reshape(-1)
        return found


@functools.cache
def greedy(ids: tuple[int, ...], count: int) -> tuple[list[int], list[float]]:
    """The most likely tokens, and the logarithms of their probabilities."""
    reference = Reference()
    for token in ids[:-1]:
        reference.logits(token)
    tokens, scores = [ids[-1]], list[float]()
    while len(tokens) <= count and (len(tokens) == 1 or tokens[-1] != EOS):
        logits = reference.logits(tokens[-1])
        tokens.append(int(logits.argmax()))
        scores.append(log_softmax(logits)[tokens[-1]])
    return tokens[1:], scores


def log_softmax(logits: np.ndarray) -> Any:
    wide = np.float64(logits) - logits.max()
    return wide - np.log(np.exp(wide).sum())


def wanted(engine: lm.Engine, ids: Sequence[int], count: int) -> tuple[list[int], str]:
    tokens, _ = greedy(tuple(ids), count)
    tokens = tokens[:-1] if tokens[-1] == EOS else tokens
    return tokens, engine.detokenize(tokens)


def test_declarations(engine: lm.Engine) -> None:
    assert (engine.bos_token_id, engine.eos_token_ids) == (BOS, [[EOS]])
    assert engine.max_num_tokens == 128
    assert engine.detokenize(engine.tokenize("äöü €")) == "äöü €"
    assert engine.cache_bytes == 2 * 4 * 128 * 16
    assert engine.weight_bytes == 0  # small weights are constants of programs


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_session_continues_greedily(
    engine: lm.Engine, prompt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [BOS, *engine.tokenize(prompt)]
    tokens, text = wanted(engine, ids, 30)
    with engine.create_session(max_output_tokens=30) as session:
        session.run_prefill([prompt])
        assert session.run_decode().texts == [text]
    monkeypatch.setattr(Pace, "took", lambda *_: None)  # one step in each run
    with engine.create_session(max_output_tokens=30) as session:
        session.run_prefill([prompt])
        parts = [r.texts[0] for r in session.run_decode_async()]
        assert "".join(parts) == text
        assert len(parts) > 1 or len(tokens) < 9


def test_a_batch_gives_what_each_prompt_alone_does(engine: lm.Engine) -> None:
    """More prompts than slots, of different lengths: each waits for a free one."""
    found = engine.generate(PROMPTS, max_output_tokens=20, log_probabilities=True)
    for prompt, completion in zip(PROMPTS, found, strict=True):
        ids = [BOS, *engine.tokenize(prompt)]
        tokens, text = wanted(engine, ids, 20)
        assert (completion.token_ids, completion.text) == (tokens, text)
        assert completion.prompt_tokens == len(ids)
        assert completion.finish_reason == ("length" if len(tokens) == 20 else "stop")
        scores = greedy(tuple(ids), 20)[1][: len(tokens)]
        np.testing.assert_allclose(completion.log_probabilities, scores, rtol=0, atol=1e-4)


def test_random_answers_do_not_depend_on_the_batch(engine: lm.Engine) -> None:
    sampler = lm.SamplerConfig(top_k=20, top_p=0.95, temperature=1.5, seed=7)
    together = engine.generate(PROMPTS, sampler_config=sampler, max_output_tokens=12)
    for prompt, completion in zip(PROMPTS, together, strict=True):
        (alone,) = engine.generate([prompt], sampler_config=sampler, max_output_tokens=12)
        assert (alone.token_ids, alone.text) == (completion.token_ids, completion.text)
    assert together != engine.generate(PROMPTS, max_output_tokens=12)


def test_a_session_goes_on(engine: lm.Engine) -> None:
    """Answers are part of it: a later prompt follows all of them."""
    with engine.create_session(max_output_tokens=5) as session:
        ids = [BOS]
        for prompt in ("One", " two", " three"):
            session.run_prefill([prompt])
            ids += engine.tokenize(prompt)
            tokens, _ = greedy(tuple(ids), 5)
            (text,) = session.run_decode().texts
            assert text == engine.detokenize([t for t in tokens if t != EOS])
            ids += tokens


def test_scores_of_texts(engine: lm.Engine) -> None:
    targets = ["yes", " a longer text of more than thirty-two tokens, in two parts", ""]
    with engine.create_session(max_output_tokens=4) as session:
        session.run_prefill(["Is it?"])
        found = session.run_text_scoring(targets, store_token_lengths=True)
        ids = [BOS, *engine.tokenize("Is it?")]
        for target, scores in zip(targets, found.token_scores, strict=True):
            reference, tokens = Reference(), engine.tokenize(target)
            for token in ids[:-1]:
                reference.logits(token)
            given_ = itertools.pairwise([ids[-1], *tokens])
            want = [log_softmax(reference.logits(a))[b] for a, b in given_]
            np.testing.assert_allclose(scores, want, rtol=0, atol=1e-4)
        assert found.texts == targets
        assert found.token_lengths == [len(engine.tokenize(t)) for t in targets]
        np.testing.assert_allclose(found.scores, [sum(s) for s in found.token_scores])
        # The session is as before.
        assert session.run_text_scoring(targets).scores == found.scores
        assert session.run_decode().texts == [wanted(engine, ids, 4)[1]]


def test_it_ends_where_the_caches_do(engine: lm.Engine) -> None:
    ids = [BOS, *[70] * 119]
    (found,) = engine.generate([ids])
    tokens, _ = greedy(tuple(ids), 8)
    assert len(found.token_ids) == 8 or found.finish_reason == "stop"
    assert found.token_ids == [t for t in tokens if t != EOS]
    (last,) = engine.generate([[BOS, *[70] * 126]])
    assert len(last.token_ids) <= 1
    with pytest.raises(GenerationError, match="at most 127 tokens before an answer"):
        engine.generate([[BOS, *[70] * 127]])
    with engine.create_session() as session:
        session.run_prefill(["x" * 100])
        with pytest.raises(GenerationError, match="at most 127 tokens before an answer"):
            session.run_prefill(["x" * 100])
        assert session.run_text_scoring(["y"]).scores[0] < 0  # it can still be used


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("drafts", [True, False])
@pytest.mark.parametrize("limit", [8, 20])
def test_max_num_tokens_limits_prompt_and_answer(
    tmp_path: Path, limit: int, declared: bool, drafts: bool
) -> None:
    def edit(metadata: Any) -> None:
        del metadata.stop_tokens[:]
        metadata.max_num_tokens = limit if declared else 100

    path = tmp_path / "model.litertlm"
    path.write_bytes(drafter_bundle(edit=edit) if drafts else language_bundle(edit=edit))
    given = None if declared else limit
    arguments = {"max_num_tokens": given, "enable_speculative_decoding": drafts}
    with lm.Engine(path, lm.Backend.CPU(), cache_dir=":nocache", **arguments) as engine:
        assert engine.max_num_tokens == limit
        (found,) = engine.generate([[5, 6, 7]])
        assert (len(found.token_ids), found.finish_reason) == (limit - 3, "length")
        said = f"at most {limit - 1} tokens before an answer .max_num_tokens is {limit}., got"
        with pytest.raises(GenerationError, match=said):
            engine.generate([[5] * limit])
        with engine.create_session(apply_prompt_template=False) as session:
            session.run_prefill(["ab"])
            session.run_decode()
            assert session.get_benchmark_info().last_decode_token_count == limit - 3
            for call in (session.run_decode, lambda: session.run_prefill(["c"])):
                with pytest.raises(GenerationError, match=said):
                    call()
        template = "{% for m in messages %}{{ m.content }}{% endfor %}"
        with engine.create_conversation(chat_template=template, text_contents=True) as talk:
            talk.send_message("a")
            assert talk.token_count == limit
            with pytest.raises(GenerationError, match=said):
                talk.send_message("a")


def test_a_limit_beyond_the_caches_is_theirs(path: Path) -> None:
    with lm.Engine(path, lm.Backend.CPU(), max_num_tokens=1000) as engine:
        assert engine.max_num_tokens == 128


def test_stop_sequences_of_several_tokens(tmp_path: Path, engine: lm.Engine) -> None:
    ids = [BOS, *engine.tokenize("Hello")]
    tokens, _ = greedy(tuple(ids), 30)
    stop = tokens[3:5]
    first = next(n for n in range(len(tokens)) if tokens[n : n + 2] == stop)

    def edit(m: Any) -> None:
        m.stop_tokens.add().token_ids.ids.extend(stop)

    path = tmp_path / "stop.litertlm"
    path.write_bytes(language_bundle(edit=edit))
    other = lm.Engine(path, lm.Backend.CPU())
    (found,) = other.generate(["Hello"], max_output_tokens=30)
    assert (found.token_ids, found.finish_reason) == (tokens[:first], "stop")
    with other.create_session(max_output_tokens=30) as session:
        session.run_prefill(["Hello"])
        assert session.run_decode().texts == [engine.detokenize(tokens[:first])]
        # What was generated after the stop does not count.
        session.run_prefill([" and"])
        ids += [*tokens[: first + 2], *engine.tokenize(" and")]
        want = greedy(tuple(ids), 3)[0]
        assert session.run_decode().texts[0].startswith(engine.detokenize(want[:1]))


def test_a_stop_sequence_may_end_in_another_run(
    tmp_path: Path, engine: lm.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs are short where steps take long."""
    monkeypatch.setattr(Pace, "took", lambda *_: None)  # one step each
    tokens, _ = greedy((BOS, *engine.tokenize("Hello")), 8)

    def edit(m: Any) -> None:
        m.stop_tokens.add().token_ids.ids.extend(tokens[2:4])

    path = tmp_path / "stop.litertlm"
    path.write_bytes(language_bundle(edit=edit))
    with lm.Engine(path, lm.Backend.CPU()) as other:
        for limit, count in ((8, 2), (3, 3)):  # the first token of a stop belongs to an answer, too
            with other.create_session(max_output_tokens=limit) as session:
                session.run_prefill(["Hello"])
                assert session.run_decode().texts == [engine.detokenize(tokens[:count])]


def test_cancelled(engine: lm.Engine) -> None:
    with engine.create_session() as session:
        session.run_prefill(["Hello"])
        stream = session.run_decode_async()
        first = next(stream).texts[0]
        session.cancel_process()
        rest = "".join(r.texts[0] for r in stream)
        assert len(rest) <= len(first) + 1
        session.run_prefill([" again"])
        assert session.run_decode().texts[0]


def test_affixes_of_bundles_without_a_template(tmp_path: Path, engine: lm.Engine) -> None:
    def edit(m: Any) -> None:
        m.prompt_templates.user.prefix, m.prompt_templates.user.suffix = "<|im_start|>", "|"
        m.prompt_templates.model.prefix = "A:"

    path = tmp_path / "affixes.litertlm"
    path.write_bytes(language_bundle(None, edit=edit))
    other = lm.Engine(path, lm.Backend.CPU())
    for has_affixes, prompt in ((True, "<|im_start|>hi|A:"), (False, "hi")):
        ids = [BOS, *engine.tokenize(prompt)]
        session = other.create_session(apply_prompt_template=has_affixes, max_output_tokens=6)
        session.run_prefill(["h", "i"])
        assert session.run_decode().texts == [wanted(engine, ids, 6)[1]]


def test_wrong_use(path: Path, engine: lm.Engine) -> None:
    session = engine.create_session()
    for call, kind, said in (
        (session.run_decode, GenerationError, "run_prefill before"),
        (lambda: session.run_text_scoring(["x"]), GenerationError, "run_prefill before"),
        (lambda: session.run_prefill([]), GenerationError, "expected a text"),
        (lambda: session.run_prefill("text"), TypeError, r"pass \[text\]"),
        (lambda: engine.generate("text"), TypeError, r"pass \[prompt\]"),
        (lambda: engine.generate([[]]), GenerationError, "the prompt is empty"),
        (lambda: engine.generate([[5, 10**6]]), GenerationError, "below 261, got 1000000"),
        (lambda: engine.generate(["x"], max_output_tokens=0), OptionError, "max_output_tokens"),
        (lambda: lm.Engine(path, max_batch=0), OptionError, "max_batch"),
        (lambda: lm.Engine(path, max_num_tokens=0), OptionError, "max_num_tokens: .* at least 1"),
        (lambda: lm.Engine(path, vision_backend=lm.Backend.CPU()), OptionError, "vision_backend"),
        (lambda: lm.Engine(path, visoin=1), TypeError, "visoin"),
        (lambda: engine.create_session(vision_backend=3), OptionError, "vision_backend"),
    ):
        with pytest.raises(kind, match=said):
            call()
    assert engine.generate([]) == []
    session.close()
    with pytest.raises(GenerationError, match="closed"):
        session.run_prefill(["x"])


def test_a_model_whose_embeddings_are_in_other_parts(engine: lm.Engine, tmp_path: Path) -> None:
    path = tmp_path / "embedders.litertlm"
    names = ("tf_lite_embedder", "tf_lite_per_layer_embedder")
    others = dict(zip(names, embedders(), strict=True))
    model = language_model(has_embedders=True)
    path.write_bytes(language_bundle(model=model, others=others))
    with lm.Engine(path, lm.Backend.CPU(), max_batch=3) as separate:
        for prompts in (PROMPTS[:1], PROMPTS):
            found, expected = (
                e.generate(prompts, max_output_tokens=12, log_probabilities=True)
                for e in (separate, engine)
            )
            assert [c.token_ids for c in found] == [c.token_ids for c in expected]
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_allclose(a.log_probabilities, b.log_probabilities, rtol=1e-4)
    path.write_bytes(language_bundle(model=model, others={names[0]: others[names[0]]}))
    with pytest.raises(jd.ModelError, match="expected a model 'per_layer_embedder' in the bundle"):
        lm.Engine(path, lm.Backend.CPU())


def test_arguments_and_attributes_of_litert_lm(path: Path) -> None:
    """Positions, and arguments that are not given or change only how LiteRT-LM computes."""
    cpu = lm.Backend.CPU()
    with lm.Engine(
        path,
        cpu,
        64,
        None,
        ":nocache",
        enable_benchmark=True,
        use_ringbuffers_local_attention=False,
        enable_ynnpack=None,
        activation_data_type=None,
        vision_backend=None,
    ) as engine:
        assert (engine.max_num_tokens, engine.cache_dir) == (64, ":nocache")
        assert engine.backend is cpu
        for name in ("max_num_images", "vision_backend", "audio_backend", "lora_rank_config"):
            assert getattr(engine, name) is None
        assert isinstance(engine, lm.AbstractEngine)
        template = "{{ 1 }}"
        with engine.create_conversation(chat_template=template, tools=[]) as talk:
            assert (talk.chat_template, list(talk.tools)) == (template, [])
            assert talk.tool_event_handler is talk.lora_config is None
            assert talk.automatic_tool_calling
    with lm.Engine(path, cpu, 64, 2) as engine:
        assert engine.max_num_images == 2


def test_the_type_of_activations_is_the_compute_dtype(path: Path) -> None:
    kinds = lm.ActivationDataType
    with lm.Engine(
        path, lm.Backend.CPU(), activation_data_type=kinds.FLOAT32, cache_dir=":nocache",
        lora_rank_config=lm.LoraRankConfig(lora_rank=0), options={"compute_dtype": "float32"},
    ) as engine:  # fmt: skip
        assert (engine.activation_data_type, engine.is_reduced) == (kinds.FLOAT32, False)
        assert engine.lora_rank_config == lm.LoraRankConfig(lora_rank=0)
    chosen = with_activations({"platform": "gpu"}, kinds.FLOAT16)
    assert chosen == {"platform": "gpu", "compute_dtype": "float16"}
    for wrong in (kinds.INT8, "FLOAT16"):
        with pytest.raises(OptionError, match=r"expected ActivationDataType\.FLOAT32 or FLOAT16"):
            lm.Engine(path, activation_data_type=wrong)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="float32 contradicts the compute_dtype 'float16'"):
        with_activations({"compute_dtype": "float16"}, kinds.FLOAT32)
    assert [kinds.from_str(t) for t in ("fp32", "INT8", "x")] == [kinds.FLOAT32, kinds.INT8, None]


def test_backends() -> None:
    with pytest.raises(OptionError, match=r"Backend\.NPU is not supported: .* use Backend\.CPU"):
        lm.Backend.NPU()
    assert repr(lm.Backend.CPU(thread_count=2)) == "CPU(thread_count=2)"
    assert isinstance(lm.Backend.CPU(), lm.Backend.CPU)
    assert lm.Backend.CPU() == lm.Backend.CPU() != lm.Backend.GPU()
    assert lm.Backend.GPU(gpu_decode_steps_per_sync=None).get_name() == "gpu"


@pytest.mark.parametrize("unknown", [-1, 261, 10**8, 2**31])
def test_unknown_tokens_have_no_text(engine: lm.Engine, unknown: int) -> None:
    ids = engine.tokenize("Hello")
    assert engine.detokenize([unknown]) == ""
    assert engine.detokenize([*ids[:2], unknown, *ids[2:]]) == "Hello"


def test_a_prompt_may_be_the_start_token_alone(engine: lm.Engine) -> None:
    with engine.create_session(max_output_tokens=6) as session:
        session.run_prefill([""])
        assert session.run_decode().texts == [wanted(engine, [BOS], 6)[1]]
