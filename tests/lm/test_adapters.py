"""LoRA adapters: answers equal the graph's with the same factors, alone and among others."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate import lm
from jaxdelegate.errors import ModelError, OptionError
from jaxdelegate.lm.adapters import is_adapter_input, rank_of, read_adapter
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.sampling_params import SamplingParams
from jaxdelegate.model.records import read_model
from tests.support.language_models import (
    EXPORTED,
    INLINE,
    adapter_factors,
    adapter_file,
    language_bundle,
    language_model,
    most_likely,
    until_stop,
    weights_of_logits,
)

RANK, COUNT = 4, 12
PROMPT = [1, 77, 102, 113]
MODEL = language_model(lora_ranks=(RANK,))
FACTORS = [adapter_factors(EXPORTED, RANK, seed) for seed in (1, 2)]


def expected(factors: Any, prompt: list[int] = PROMPT, count: int = COUNT) -> list[int]:
    """By numpy kernels; `factors`: None: the model alone."""
    more: Any = {"key": f"decode_lora_r{RANK}", "factors": factors} if factors else {}
    return until_stop(most_likely(MODEL, prompt, count, **more))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    (folder / "model.litertlm").write_bytes(language_bundle(model=MODEL))
    for number, factors in enumerate(FACTORS):
        (folder / f"{number}.tflite").write_bytes(adapter_file(factors, RANK))
    return folder


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[lm.Engine]:
    with lm.Engine(
        folder / "model.litertlm",
        lm.Backend.CPU(),
        max_batch=3,
        lora_rank_config=lm.LoraRankConfig(lora_rank=RANK),
    ) as engine:
        yield engine


@pytest.fixture(scope="module")
def configs(folder: Path) -> list[lm.LoraConfig]:
    return [lm.LoraConfig(str(folder / f"{number}.tflite")) for number in range(len(FACTORS))]


def test_adapters_in_one_batch(engine: lm.Engine, configs: list[lm.LoraConfig]) -> None:
    """A prompt is in three slots, then again, so each slot's adapter is changed once."""
    chosen = [None, *configs, *configs, None]
    found = engine.generate([PROMPT] * 6, max_output_tokens=COUNT, lora_config=chosen)
    wanted = [expected(None), *map(expected, FACTORS)]
    assert len({*map(tuple, wanted)}) == 3
    assert [c.token_ids for c in found] == [*wanted, *wanted[1:], wanted[0]]


def test_the_model_alone_is_unchanged(
    engine: lm.Engine, folder: Path, configs: list[lm.LoraConfig]
) -> None:
    """Bit for bit, among slots with adapters, whose entries it does not take."""
    args: Any = {"max_output_tokens": COUNT, "log_probabilities": True}
    with lm.Engine(folder / "model.litertlm", lm.Backend.CPU(), max_batch=3) as alone:
        assert alone.graph.decode.key == "decode"
        wanted = alone.generate([PROMPT] * 3, **args)[1]
    _, found, _ = engine.generate([PROMPT] * 3, lora_config=[configs[0], None, configs[1]], **args)
    assert (found.token_ids, found.reused_tokens) == (wanted.token_ids, 0)
    assert found.log_probabilities == wanted.log_probabilities


def test_entries_are_not_shared_across_adapters(
    engine: lm.Engine, configs: list[lm.LoraConfig]
) -> None:
    scheduler = engine.new_scheduler(2)
    adapters = [engine.adapter(configs[0]), engine.adapter(configs[1]), None]
    long = PROMPT * 5
    for adapter in (*adapters, adapters[0]):
        active = scheduler.join(Request(long, 2, SamplingParams(), adapter=adapter))
        while active.finish_reason is None:
            scheduler.step()
        assert active.reused == 0  # two slots: the first one's adapter has been replaced
    again = scheduler.join(Request(long, 2, SamplingParams(), adapter=adapters[0]))
    assert again.reused == len(long) - 1


def test_sessions_and_conversations(engine: lm.Engine, configs: list[lm.LoraConfig]) -> None:
    texts = []
    for config in (None, *configs):
        with engine.create_session(
            apply_prompt_template=False, lora_config=config, max_output_tokens=COUNT
        ) as session:
            session.run_prefill(["Hello"])
            (text,) = session.run_decode().texts
            texts.append(text)
    ids = engine.prompt_ids("Hello")
    assert texts == [engine.detokenize(expected(f, ids)) for f in (None, *FACTORS)]
    with engine.create_conversation(lora_config=configs[0], max_output_tokens=4) as conversation:
        assert conversation.lora_config is configs[0]
        said = str(conversation.send_message("Hi"))
        prompt = engine.prompt_ids(conversation.render_message_to_string("Hi"))
    assert said == engine.detokenize(expected(FACTORS[0], prompt, 4))


def test_hidden_states(engine: lm.Engine, configs: list[lm.LoraConfig]) -> None:
    """They are what each adapter's logits are computed from; among others, and alone."""
    chosen = [None, *configs, configs[0]]
    states = engine.hidden_states([PROMPT] * 4, lora_config=chosen)
    logits = states @ weights_of_logits().T
    assert logits.argmax(-1).tolist() == [expected(f, count=1)[0] for f in (None, *FACTORS)] + [
        expected(FACTORS[0], count=1)[0]
    ]
    assert len({row.tobytes() for row in states}) == 3
    np.testing.assert_array_equal(states[1], states[3])
    alone = engine.hidden_states([PROMPT], lora_config=configs[1])
    np.testing.assert_allclose(alone[0], states[2], rtol=1e-5, atol=1e-6)
    with pytest.raises(OptionError, match="lora_config: expected 2, one a prompt, got 1"):
        engine.hidden_states([PROMPT] * 2, lora_config=[None])


def test_inputs_of_all_signatures(tmp_path: Path) -> None:
    """Their names are LiteRT-LM's, in exports without signatures for each rank."""
    model, factors = language_model(lora=RANK), adapter_factors(INLINE, RANK, 3)
    path, adapter = tmp_path / "model.litertlm", tmp_path / "adapter.tflite"
    path.write_bytes(language_bundle(model=model))
    adapter.write_bytes(adapter_file(factors))
    config = lm.LoraConfig(str(adapter))
    answers = [until_stop(most_likely(model, PROMPT, 6, factors=f)) for f in ({}, factors)]
    assert answers[0] != answers[1]
    with lm.Engine(path, lm.Backend.CPU(), lora_rank_config=lm.LoraRankConfig(RANK)) as engine:
        found = engine.generate([PROMPT] * 2, max_output_tokens=6, lora_config=[None, config])
        assert [c.token_ids for c in found] == answers
    with lm.Engine(path, lm.Backend.CPU()) as engine:
        assert engine.generate([PROMPT], max_output_tokens=6)[0].token_ids == answers[0]
        assert engine.adapter(config) is not None
    with pytest.raises(OptionError, match="takes LoRA adapters of the rank 4, got 8"):
        lm.Engine(path, lora_rank_config=lm.LoraRankConfig(8))


def test_mistakes_are_named(
    engine: lm.Engine, folder: Path, configs: list[lm.LoraConfig], tmp_path: Path
) -> None:
    path, plain = folder / "model.litertlm", tmp_path / "plain.litertlm"
    plain.write_bytes(language_bundle())
    for bundle, config, said in (
        (plain, lm.LoraRankConfig(4), "takes no LoRA adapters, got 4"),
        (path, lm.LoraRankConfig(8), "takes LoRA adapters of the rank 4, got 8"),
        (path, lm.LoraRankConfig(-1), "lora_rank: expected at least 0, got -1"),
        (
            path,
            lm.LoraRankConfig(audio_lora_rank=4),
            "audio_lora_rank: audio encoders take no adapters here",
        ),
    ):
        with pytest.raises(OptionError, match=said):
            lm.Engine(bundle, lora_rank_config=config)
    with (
        lm.Engine(path, lora_rank_config=lm.LoraRankConfig(0)) as without,
        pytest.raises(OptionError, match=r"lora_rank_config=LoraRankConfig\(lora_rank=\.\.\.\)"),
    ):
        without.create_session(lora_config=configs[0])
    with pytest.raises(OptionError, match="expected 2, one a prompt, got 1"):
        engine.generate([PROMPT] * 2, lora_config=[configs[0]])
    with pytest.raises(OptionError, match="audio_lora_path: audio encoders take no adapters here"):
        engine.create_session(lora_config=lm.LoraConfig(audio_lora_path="a"))
    with pytest.raises(ModelError, match=r"missing\.tflite"):
        engine.create_session(lora_config=lm.LoraConfig(str(tmp_path / "missing.tflite")))


A, B = (f"lora_atten_q_{side}_prime_weight_0" for side in "ab")


@pytest.mark.parametrize(
    ("edit", "rank", "said"),
    [
        (lambda _: {}, 0, f"the tensors of a LoRA adapter, for example '{A}', got none"),
        (lambda f: {k: v for k, v in f.items() if k != B}, 4, f"got '{A}' without '{B}'"),
        (lambda f: f | {A[:-1] + "7": f[A]}, 4, "expected tensors that the model takes"),
        (
            lambda _: adapter_factors(EXPORTED, 8, 0),
            0,
            r"as float32 \[16, 4\], got float32 \[16, 8\]: the adapter has the rank 8, .* model 4",
        ),
        (lambda _: adapter_factors(EXPORTED, 8, 0), 32, "the adapter has the rank 32"),
        (lambda f: f | {A: f[A].astype(np.float16)}, 4, r"float32 \[16, 4\], got float16"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    edit: Any, rank: int, said: str, engine: lm.Engine, tmp_path: Path
) -> None:
    path = tmp_path / "adapter.tflite"
    path.write_bytes(adapter_file(edit(FACTORS[0]), rank))
    with pytest.raises(ModelError, match=said):
        read_adapter(path, engine.graph.adapters)


def test_a_projection_that_a_file_does_not_have_is_zero(engine: lm.Engine, tmp_path: Path) -> None:
    path, own = tmp_path / "adapter.tflite", FACTORS[0]
    path.write_bytes(adapter_file({name: own[name] for name in (A, B)}, RANK))
    found = read_adapter(path, engine.graph.adapters).arrays
    assert {name for name, array in found.items() if array.any()} == {A, B}
    np.testing.assert_array_equal(found[B], own[B])


def test_a_file_that_is_written_again_is_read_again(engine: lm.Engine, tmp_path: Path) -> None:
    path = tmp_path / "adapter.tflite"
    path.write_bytes(adapter_file(FACTORS[0], RANK))
    config = lm.LoraConfig(str(path))
    first = engine.adapter(config)
    assert engine.adapter(config) is first
    path.unlink()
    path.write_bytes(adapter_file(FACTORS[1], RANK) + bytes(4))
    second = engine.adapter(config)
    assert second is not None
    np.testing.assert_array_equal(second.arrays[A], FACTORS[1][A])


def test_names_and_ranks() -> None:
    names = (A, "post_w_prime_right_12", "transformer.layer_3.attn.attn_vec_einsum.w_prime_left")
    assert all(map(is_adapter_input, names))
    assert not any(map(is_adapter_input, ("tokens", "lora_param_tensor", A + "_x")))
    assert rank_of({}) == 0
    metadata = read_model(adapter_file(FACTORS[0], 1000)).metadata  # beyond the buffers
    assert int.from_bytes(metadata["lora_rank"], "little") == 1000
