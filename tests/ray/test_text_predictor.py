"""TextPredictor as a plain function of columns: its rows equal what the engines return."""

import base64
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate import lm
from jaxdelegate.errors import InterpreterError, ModelError, OptionError
from jaxdelegate.ray import PredictionError, Predictor, TextPredictor, text_predictor
from tests.serve.stock import NETWORKS
from tests.support.audio_models import file_of as sound_of
from tests.support.audio_models import sound_bundle, tone
from tests.support.language_models import (
    CHATML,
    EXPORTED,
    adapter_factors,
    adapter_file,
    language_bundle,
    language_model,
    weights_of_logits,
)
from tests.support.text_encoders import embedding_bundle
from tests.support.vision_models import file_of, patch_encoder, picture, vision_bundle

PROMPTS = ["x", "What is 2 + 3?", "", "The quick brown fox jumps over the dog", "äöü €", "x", "Hi"]
CHAT = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "Hello"}]
LIMIT = 6
SAMPLER = lm.SamplerConfig(top_k=40, top_p=1.0, temperature=2.0, seed=3)
ALL = ["generated_text", "generated_tokens", "log_probabilities", "finish_reason"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lm") / "model.litertlm"
    refusing = "{% if messages[0].content == 'no' %}{{ raise_exception('not that') }}{% endif %}"
    path.write_bytes(language_bundle(refusing + CHATML))
    return path


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[lm.Engine]:
    with lm.Engine(path, max_batch=3) as engine:
        yield engine


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lm") / "encoder.litertlm"
    path.write_bytes(embedding_bundle())
    return path


def objects(*values: Any) -> np.ndarray:
    """A column as Ray Data has it where rows differ."""
    column = np.empty(len(values), object)
    for i, value in enumerate(values):
        column[i] = value
    return column


def generator(path: Path, **arguments: Any) -> TextPredictor:
    return TextPredictor(path, **{"max_output_tokens": LIMIT, "max_batch": 3, **arguments})


def answer_of(engine: lm.Engine, prompt: Any, **arguments: Any) -> lm.Completion:
    # In all slots, so that all tests need the same program.
    found, *_ = engine.generate([prompt] * 3, max_output_tokens=LIMIT, **arguments)
    return found


def test_rows_have_the_answers_of_their_prompts(path: Path, engine: lm.Engine) -> None:
    batch = {"prompt": objects(*PROMPTS), "id": np.arange(len(PROMPTS))}
    predictor = generator(path)
    found = predictor(batch)
    assert [*found] == [
        *("prompt", "id", "generated_text", "finish_reason"),
        *("num_input_tokens", "num_generated_tokens"),
    ]
    assert found["id"].tolist() == [*range(len(PROMPTS))]
    wanted = [answer_of(engine, prompt, sampler_config=lm.SamplerConfig()) for prompt in PROMPTS]
    assert found["generated_text"].tolist() == [one.text for one in wanted]
    assert found["finish_reason"].tolist() == [one.finish_reason for one in wanted]
    assert found["num_input_tokens"].tolist() == [one.prompt_tokens for one in wanted]
    assert found["num_generated_tokens"].tolist() == [one.completion_tokens for one in wanted]
    assert predictor.stats.input_tokens == sum(one.prompt_tokens for one in wanted)
    assert (predictor.stats.rows, predictor.stats.batches) == (len(PROMPTS), 1)


def test_other_outputs_have_chosen_columns(path: Path, engine: lm.Engine) -> None:
    outputs = {"generated_tokens": "ids", "log_probabilities": "logprobs"}
    found = generator(path, outputs=outputs)({"prompt": objects(*PROMPTS[:2])})
    assert [*found] == ["prompt", "ids", "logprobs"]
    for i, prompt in enumerate(PROMPTS[:2]):
        wanted = answer_of(
            engine, prompt, sampler_config=lm.SamplerConfig(), log_probabilities=True
        )
        assert found["ids"][i] == wanted.token_ids
        np.testing.assert_allclose(found["logprobs"][i], wanted.log_probabilities, rtol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_drawn_answers_do_not_depend_on_the_batches(path: Path, size: int) -> None:
    predictor = generator(path, sampler_config=SAMPLER, outputs=["generated_tokens"])
    prompts = objects(*PROMPTS)
    whole = predictor({"prompt": prompts})["generated_tokens"].tolist()
    order = [*reversed(range(len(prompts)))]
    parts = [prompts[order[i : i + size]] for i in range(0, len(prompts), size)]
    found = [row for part in parts for row in predictor({"prompt": part})["generated_tokens"]]
    assert found == [whole[i] for i in order]
    assert whole[0] == whole[5]  # the same prompt
    other = generator(path, sampler_config=lm.SamplerConfig(40, 1.0, 2.0, 4))
    assert other({"prompt": prompts})["generated_text"].tolist() != whole


def test_a_column_of_seeds(path: Path, engine: lm.Engine) -> None:
    inputs = {"prompt": "prompt", "seed": "number"}
    predictor = generator(path, inputs=inputs, sampler_config=SAMPLER)
    found = predictor({"prompt": objects("x", "x", "x"), "number": np.array([5, 6, 5])})
    answers = found["generated_text"].tolist()
    for seed, answer in zip((5, 6, 5), answers, strict=True):
        sampler = lm.SamplerConfig(40, 1.0, 2.0, seed)
        assert answer == answer_of(engine, "x", sampler_config=sampler).text
    assert answers[0] != answers[1]


def test_chats_are_answered_by_the_bundle_s_template(path: Path, engine: lm.Engine) -> None:
    in_arrow = np.array([{**message, "name": None} for message in CHAT], object)
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    predictor = generator(path, inputs={"messages": "chat"})
    found = predictor({"chat": objects(in_arrow, parts)})["generated_text"].tolist()
    for chat, answer in zip((CHAT, [CHAT[1]]), found, strict=True):
        text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in chat)
        prompt = f"{text}<|im_start|>assistant\n"
        assert answer == answer_of(engine, prompt, sampler_config=lm.SamplerConfig()).text


def test_chats_with_images(tmp_path: Path) -> None:
    path, files = tmp_path / "sees.litertlm", [tmp_path / "0.png", tmp_path / "1.jpg"]
    path.write_bytes(vision_bundle())
    files[0].write_bytes(file_of(picture(30, 20)))
    files[1].write_bytes(file_of(picture(20, 20, seed=1), "JPEG"))
    question = {"type": "text", "text": "what is it?"}
    images = [[{"type": "image", "path": str(file)}] for file in (*files, files[0])]
    images += [[], [*images[0], *images[1]]]
    chats = [[{"role": "user", "content": [*own, question]}] for own in images]
    lost = [{"role": "user", "content": [{"type": "image", "path": "/missing.png"}, question]}]
    predictor = TextPredictor(path, inputs={"messages": "chat"}, max_output_tokens=6)
    found = predictor({"chat": objects(*chats)})
    cpu = lm.Backend.CPU()
    with lm.Engine(path, cpu, vision_backend=cpu) as engine:
        for row, chat in enumerate(chats):
            with engine.create_conversation(max_output_tokens=6) as conversation:
                assert str(conversation.send_message(chat[0])) == found["generated_text"][row]
                count = conversation.get_benchmark_info().last_prefill_token_count
                assert count == found["num_input_tokens"][row]
    with pytest.raises(PredictionError, match=r"/missing.png: No such file"):
        predictor({"chat": objects(chats[0], lost)})


def test_chats_with_sounds(tmp_path: Path) -> None:
    path, files = tmp_path / "hears.litertlm", [tmp_path / "0.wav", tmp_path / "1.flac"]
    path.write_bytes(sound_bundle(sees=True))
    files[0].write_bytes(sound_of(tone(1000)))
    files[1].write_bytes(sound_of(tone(8100, seed=1), kind="FLAC"))
    blob = {"type": "image", "blob": base64.b64encode(file_of(picture(30, 20))).decode()}
    sounds = [{"type": "audio", "path": str(file)} for file in files]
    question = {"type": "text", "text": "what is it?"}
    own = [[sounds[0]], [sounds[1], blob], [], [sounds[1], sounds[0]]]
    chats = [[{"role": "user", "content": [*parts, question]}] for parts in own]
    predictor = TextPredictor(path, inputs={"messages": "chat"}, max_output_tokens=6)
    found = predictor({"chat": objects(*chats)})
    cpu = lm.Backend.CPU()
    with lm.Engine(path, cpu, vision_backend=cpu, audio_backend=cpu) as engine:
        for row, chat in enumerate(chats):
            with engine.create_conversation(max_output_tokens=6) as conversation:
                assert str(conversation.send_message(chat[0])) == found["generated_text"][row]
                count = conversation.get_benchmark_info().last_prefill_token_count
                assert count == found["num_input_tokens"][row]
    files[0].write_bytes(b"RIFF")
    with pytest.raises(PredictionError, match=r"sound 1 of the message: the sound"):
        predictor({"chat": objects(chats[0])})


def test_images_of_a_bundle_whose_vision_parts_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "reads.litertlm"
    path.write_bytes(vision_bundle(encoder=patch_encoder((5,))))
    found = TextPredictor(path, max_output_tokens=2)({"prompt": objects("Hi")})
    assert found["num_generated_tokens"][0] == 2


def test_what_a_chat_says_in_channels_is_no_answer(tmp_path: Path) -> None:
    def edit(metadata: Any) -> None:
        channel = metadata.channels.add()
        channel.channel_name, channel.start, channel.end = "thoughts", "<|im_start|>", "<|im_end|>"

    path = tmp_path / "model.litertlm"
    path.write_bytes(language_bundle(edit=edit))  # its template opens the channel
    predictor = generator(
        path, inputs={"messages": "m"}, outputs=["generated_text", "reasoning_content"]
    )
    found = predictor({"m": objects(CHAT)})
    assert found["generated_text"].tolist() == [""]
    assert len(found["reasoning_content"][0]) > 0


def test_scores_are_those_of_a_session(path: Path, engine: lm.Engine) -> None:
    pairs = [("Hello", " world"), ("", "x" * 40), ("The sea", ""), ("Hello", "!"), ("äö", "ü €")]
    prompts, texts = (objects(*column) for column in zip(*pairs, strict=True))
    outputs = ["log_likelihood", "num_scored_tokens", "log_probabilities"]
    predictor = TextPredictor(path, "score", outputs=outputs, max_batch=3)
    found = predictor({"prompt": prompts, "continuation": texts})
    for i, (prompt, text) in enumerate(pairs):
        runner = engine.new_runner(1)
        runner.prefill(0, engine.prompt_ids(prompt))
        wanted = runner.score(0, engine.tokenize(text))
        np.testing.assert_allclose(found["log_probabilities"][i], wanted, rtol=1e-5)
        np.testing.assert_allclose(found["log_likelihood"][i], sum(wanted), rtol=1e-5)
        assert found["num_scored_tokens"][i] == len(wanted) == len(text.encode())


def test_embeddings(encoder: Path) -> None:
    texts = ["abc", "a longer text", "", "äöü", "abc"]
    found = TextPredictor(encoder, "embed", max_batch=2)({"text": objects(*texts)})
    assert (found["embeddings"].shape, found["embeddings"].dtype) == ((5, 12), np.float32)
    assert found["num_input_tokens"].tolist() == [5, 15, 2, 8, 5]
    with lm.EmbeddingEngine(encoder) as engine:
        wanted = [engine.compute_embedding(text).embedding for text in texts]
    np.testing.assert_allclose(found["embeddings"], wanted, rtol=1e-5, atol=1e-6)


def test_states_of_a_model_that_generates(path: Path, engine: lm.Engine) -> None:
    texts = ["abc", "a longer text", "abc"]
    found = TextPredictor(path, "embed", max_batch=2)({"text": objects(*texts)})
    states = engine.hidden_states(texts)
    wanted = states / np.linalg.norm(states, axis=1, keepdims=True)
    np.testing.assert_allclose(found["embeddings"], wanted, rtol=1e-5, atol=1e-6)
    assert found["num_input_tokens"].tolist() == [len(engine.prompt_ids(t)) for t in texts]
    options = lm.EmbeddingOptions(
        normalize=False,
        output_size=5,
        input_overflow_strategy=lm.InputOverflowStrategy.TRUNCATE,
    )
    cut = TextPredictor(path, "embed", embedding_options=options)({"text": objects("x" * 200)})
    assert (cut["embeddings"].shape, cut["num_input_tokens"].tolist()) == ((1, 5), [128])
    options = lm.EmbeddingOptions(
        input_overflow_strategy=lm.InputOverflowStrategy.CHUNK_AND_AVERAGE
    )
    with pytest.raises(OptionError, match="CHUNK_AND_AVERAGE is for text encoders"):
        TextPredictor(path, "embed", embedding_options=options)


@pytest.mark.slow
def test_an_adapter_of_all_rows(path: Path, encoder: Path, tmp_path: Path) -> None:
    adapts, file = tmp_path / "adapts.litertlm", tmp_path / "adapter.tflite"
    adapts.write_bytes(language_bundle(model=language_model(lora_ranks=(4,))))
    file.write_bytes(adapter_file(adapter_factors(EXPORTED, 4, 1), 4))
    config, texts = lm.LoraConfig(str(file)), ["abc", "a longer text"]
    both: Any = {"lora_config": config, "max_batch": 2}
    ranks = lm.LoraRankConfig(4)
    with lm.Engine(adapts, max_batch=2, lora_rank_config=ranks) as engine:
        wanted, alone = (
            engine.generate(texts, max_output_tokens=4, lora_config=c, log_probabilities=True)
            for c in (config, None)
        )
        states = engine.hidden_states(texts, lora_config=config)
        ids = [engine.prompt_ids(text) for text in texts]
        scores = [lm_scores(engine, prompt, "xyz", config) for prompt in ids]
    assert [one.text for one in wanted] != [one.text for one in alone]
    answers = generator(adapts, max_output_tokens=4, **both)({"prompt": objects(*texts)})
    assert answers["generated_text"].tolist() == [one.text for one in wanted]
    rows = {"prompt": objects(*texts), "continuation": objects("xyz", "xyz")}
    scored = TextPredictor(adapts, "score", **both)(rows)
    np.testing.assert_allclose(scored["log_likelihood"], scores, rtol=1e-5)
    embedded = TextPredictor(adapts, "embed", **both)({"text": objects(*texts)})["embeddings"]
    norms = np.linalg.norm(states, axis=1, keepdims=True)
    np.testing.assert_allclose(embedded, states / norms, rtol=1e-5, atol=1e-6)
    with pytest.raises(OptionError, match="lora_config: text encoders take no adapters"):
        TextPredictor(encoder, "embed", lora_config=config)
    with pytest.raises(OptionError, match="takes no LoRA adapters, got 4"):
        TextPredictor(path, lora_config=config)
    with pytest.raises(OptionError, match=r"lora_config: expected a LoRA adapter, .* no factors"):
        TextPredictor(adapts, lora_config=lm.LoraConfig(str(NETWORKS / "keywords.tflite")))


def lm_scores(engine: lm.Engine, prompt: list[int], text: str, config: lm.LoraConfig) -> float:
    """The logarithm of a text's probability after a prompt, token by token."""
    total = 0.0
    for token in engine.tokenize(text):
        logits = engine.hidden_states([prompt], lora_config=config)[0] @ weights_of_logits().T
        total += logits[token] - np.log(np.exp(logits).sum())
        prompt = [*prompt, token]
    return total


def test_embeddings_are_shortened(encoder: Path) -> None:
    options = lm.EmbeddingOptions(output_size=5, normalize=False)
    predictor = TextPredictor(encoder, "embed", embedding_options=options)
    assert predictor({"text": objects("abc")})["embeddings"].shape == (1, 5)
    assert predictor({"text": objects()})["embeddings"].shape == (0, 5)
    options = lm.EmbeddingOptions(output_size=13)
    with pytest.raises(OptionError, match="output_size: expected at most 12, got 13"):
        TextPredictor(encoder, "embed", embedding_options=options)


def test_no_rows(path: Path) -> None:
    found = generator(path)({"prompt": objects()})
    assert (len(found["generated_text"]), found["num_input_tokens"].dtype) == (0, np.int64)
    found = TextPredictor(path, "score")({"prompt": objects(), "continuation": objects()})
    assert found["log_likelihood"].shape == (0,)


CHATS = {"inputs": {"messages": "m"}}
USER = {"role": "user"}
ROWS: list[tuple[dict[str, Any], str, Any, str]] = [
    ({}, "prompt", None, "column 'prompt': it is null"),
    ({}, "prompt", float("nan"), "column 'prompt': it is null"),
    ({}, "prompt", 3, "column 'prompt': expected text, got int"),
    ({}, "prompt", b"x", "column 'prompt': expected text, got bytes"),
    ({}, "prompt", "x" * 128, "expected at most 127 tokens before an answer .*, got 129"),
    (CHATS, "m", None, "column 'm': it is null"),
    (CHATS, "m", "Hello", "column 'm': expected a list of messages, got str"),
    (CHATS, "m", [], "column 'm': expected at least one message, got none"),
    (CHATS, "m", ["Hello"], "expected messages with a role and a content, got str"),
    (CHATS, "m", [{"content": "x"}], "expected a role of each message, got NoneType"),
    (CHATS, "m", [USER], "expected a content of each message, got NoneType"),
    (CHATS, "m", [{**USER, "content": [1]}], "expected a content of texts or parts, got int"),
    (CHATS, "m", [{**USER, "content": [{"type": "image"}]}], "the engine takes no images"),
    (CHATS, "m", [{**USER, "content": "no"}], "the chat template fails: .*not that"),
    ({"inputs": {"seed": "s"}}, "s", 1.5, "column 's': expected an integer, got float"),
    ({"inputs": {"seed": "s"}}, "s", True, "column 's': expected an integer, got bool"),
]


@pytest.mark.parametrize(("arguments", "column", "value", "message"), ROWS)
def test_rows_that_fail(
    path: Path, arguments: dict[str, Any], column: str, value: Any, message: str
) -> None:
    good = {"prompt": "Hi", "m": CHAT, "s": 1}
    wrong = {**good, column: value}
    batch = {name: objects(good[name], wrong[name], good[name]) for name in good}
    batch["id"] = np.array([5, 6, 7])
    with pytest.raises(PredictionError, match=f"1 of 3 rows .* id=6: .*{message}"):
        generator(path, key="id", **arguments)(batch)
    skipping = generator(path, key="id", on_error="skip", **arguments)
    found = skipping(batch)
    assert found["id"].tolist() == [5, 7]
    assert found["generated_text"][0] == found["generated_text"][1]
    assert skipping.stats.rows_skipped == 1


def test_rows_on_which_the_model_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rows of the batch are answered."""
    generate = text_predictor.generate

    def failing(text: Any, runner: Any, requests: Sequence[Any]) -> Any:
        if any(len(request.ids) > 3 for request in requests):
            raise InterpreterError("an operator failed")
        return generate(text, runner, requests)

    batch = {"prompt": objects("x", "fail", "y"), "id": np.arange(3)}
    wanted = generator(path)({"prompt": objects("x", "y")})["generated_text"].tolist()
    monkeypatch.setattr(text_predictor, "generate", failing)
    skipping = generator(path, key="id", on_error="skip")
    answers = skipping(batch)
    assert (answers["id"].tolist(), answers["generated_text"].tolist()) == ([0, 2], wanted)
    assert (skipping.stats.rows, skipping.stats.rows_skipped) == (2, 1)
    with pytest.raises(PredictionError, match=r"1 of 3 rows .* id=1: an oper") as caught:
        generator(path, key="id")(batch)
    assert isinstance(caught.value.__cause__, InterpreterError)
    nothing = generator(path, on_error="skip")({"prompt": objects("fail", "fail")})
    assert len(nothing["generated_text"]) == 0


def test_a_batch_of_nulls(path: Path) -> None:
    """Ray Data shows nulls without a type as floats."""
    batch = {"prompt": np.full(2, np.nan, np.float32)}
    with pytest.raises(PredictionError, match=r"2 of 2 rows .* row 1 .*: it is null"):
        generator(path)(batch)
    assert len(generator(path, on_error="skip")(batch)["generated_text"]) == 0


def test_texts_that_do_not_fit(path: Path, encoder: Path) -> None:
    pair = {"prompt": objects("x" * 100), "continuation": objects("y" * 40)}
    with pytest.raises(PredictionError, match="row 0 of the batch: expected at most 128 tokens"):
        TextPredictor(path, "score")(pair)
    with pytest.raises(PredictionError, match="row 1 of the batch: expected at most 16 tokens"):
        TextPredictor(encoder, "embed")({"text": objects("x", "x" * 40)})


COLUMNS: list[tuple[dict[str, Any], str]] = [
    ({"text": objects("x")}, "input 'prompt': there is no column 'prompt'; the batch has 'text'"),
    ({"messages": objects(CHAT)}, r"'prompt'.*for chats: inputs=\{\"messages\": \"messages\"\}"),
    ({"prompt": np.arange(2)}, "'prompt' for input 'prompt': expected text, got int64; cast it"),
    ({"prompt": np.array([np.nan, 1.0])}, "expected text, got float64"),
    ({"prompt": np.array([b"x"])}, r"expected text, got \|S1"),
    ({"prompt": objects("x"), "finish_reason": objects("x")}, "is already in the batch"),
]  # fmt: skip


@pytest.mark.parametrize(("batch", "message"), COLUMNS)
def test_columns_that_do_not_fit(path: Path, batch: dict[str, Any], message: str) -> None:
    with pytest.raises(PredictionError, match=message):
        generator(path, on_error="skip")(batch)


def test_wrong_arguments(path: Path, encoder: Path, tmp_path: Path) -> None:
    both = {"prompt": "a", "messages": "b"}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"task": "chat"}, "task: expected one of 'generate', 'score', 'embed', got 'chat'"),
        ({"inputs": {"text": "x"}}, "inputs: 'text' is not an input .* has 'prompt', 'messages'"),
        ({"inputs": both}, "expected a prompt or messages, got both"),
        ({"outputs": ["text"]}, "outputs: 'text' is not an output of the model; it has 'gen"),
        ({"task": "score", "sampler_config": SAMPLER}, "sampler_config: only for task 'generate'"),
        ({"embedding_options": lm.EmbeddingOptions()}, "embedding_options: only for task 'embed'"),
        ({"sampler_config": {"top_k": 3}}, "sampler_config: expected a SamplerConfig, got dict"),
        ({"max_batch": 0}, "max_batch: expected at least 1"),
        ({"on_error": "ignore"}, "on_error"),
        ({"options": {"cache_dir": "x"}}, "did you mean: serialization_dir"),
    ]
    for arguments, message in wrong:
        with pytest.raises(OptionError, match=message):
            TextPredictor(path, **arguments)
    with pytest.raises(OptionError, match=r"model: expected the path of a bundle .*, got bytes"):
        TextPredictor(b"")  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=r"none\.litertlm"):
        TextPredictor(tmp_path / "none.litertlm")
    with pytest.raises(ModelError):
        TextPredictor(encoder)
    for bundle in (path, encoder, encoder.read_bytes()):
        with pytest.raises(OptionError, match=r"bundle .*: use jaxdelegate\.ray\.TextPredictor"):
            Predictor(bundle)
    with pytest.raises(ModelError, match=r"jaxdelegate\.ray\.Predictor open it"):
        TextPredictor(NETWORKS / "keywords.tflite")


def test_a_step_of_a_language_model_has_tensors(path: Path) -> None:
    with pytest.raises(OptionError, match=r"'x' is not an input of the model; it has .*tokens"):
        Predictor(path, {"x": "x"}, signature="decode")


def test_programs_come_from_the_shared_folder(
    path: Path, tmp_path: Path, forget_models: Callable[[], None]
) -> None:
    arguments: dict[str, Any] = {"options": {"serialization_dir": tmp_path / "programs"}}
    counts, answers = [], []
    for _ in range(2):
        forget_models()
        predictor = generator(path, **arguments)
        answers.append(predictor({"prompt": objects(*PROMPTS)})["generated_text"].tolist())
        counts.append((predictor.stats.programs_stored, predictor.stats.programs_loaded))
    (stored, none), (none_2, loaded) = counts
    assert (none, none_2) == (0, 0)
    assert stored == loaded > 0
    assert answers[0] == answers[1]


def test_it_is_not_pickled(path: Path) -> None:
    with pytest.raises(TypeError, match=r"a TextPredictor cannot be pickled .* give Ray the class"):
        pickle.dumps(generator(path))


def test_importing_the_package_does_not_import_language_models() -> None:
    code = (
        "import sys, jaxdelegate.ray\n"
        "assert 'jaxdelegate.lm' not in sys.modules\n"
        "jaxdelegate.ray.TextPredictor\n"
        "assert 'jax' not in sys.modules"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
