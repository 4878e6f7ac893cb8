"""The state of a language model after a prompt, which serves as its embedding."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jaxdelegate import lm
from jaxdelegate.lm.generation import hidden_state_request
from jaxdelegate.lm.hidden_states import hidden_size
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.sampling_params import SamplingParams
from jaxdelegate.model.records import read_model
from jaxdelegate.op_lowering.options import FullyConnectedOptions
from jaxdelegate.testing import ModelBuilder
from tests.support.language_models import drafter_bundle, language_bundle, weights_of_logits

PROMPTS = ["a prompt of some length", "b", "another prompt, which is longer than the others are"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lm.Engine]:
    path = tmp_path_factory.mktemp("bundle") / "model.litertlm"
    path.write_bytes(language_bundle())
    with lm.Engine(path, lm.Backend.CPU(), cache_dir=":nocache") as opened:
        yield opened


def test_logits_are_their_products(engine: lm.Engine) -> None:
    states = engine.hidden_states(PROMPTS)
    logits = states @ weights_of_logits().T
    answers = engine.generate(PROMPTS, max_output_tokens=1, log_probabilities=True)
    assert (states.shape, states.dtype) == ((3, 16), np.float32)
    for row, answer in zip(logits, answers, strict=True):
        chances = row - np.log(np.exp(row).sum())
        assert answer.token_ids == [row.argmax()]
        assert answer.log_probabilities == [pytest.approx(chances.max(), abs=1e-5)]


def test_a_row_depends_on_its_prompt_only(engine: lm.Engine) -> None:
    alone = [engine.hidden_states([prompt]) for prompt in PROMPTS]
    np.testing.assert_array_equal(np.concatenate(alone), engine.hidden_states(PROMPTS))
    np.testing.assert_array_equal(alone[1], engine.hidden_states([engine.prompt_ids("b")]))


@pytest.mark.slow
def test_others_generate_meanwhile(engine: lm.Engine) -> None:
    ids = [*map(ord, "a text")]
    (answer,) = engine.generate([ids], max_output_tokens=20)
    scheduler = engine.new_scheduler(2)
    running = [
        scheduler.join(Request(ids, 20, SamplingParams())),
        scheduler.join(hidden_state_request(ids[:3])),
    ]
    while scheduler.free < 2:
        scheduler.prefill()
        scheduler.decode(2)
    assert running[0].tokens == answer.token_ids
    assert running[0].hidden_state is None
    np.testing.assert_array_equal(running[1].hidden_state, engine.hidden_states([ids[:3]])[0])


def test_a_drafter_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "model.litertlm"
    path.write_bytes(drafter_bundle())
    found = []
    for drafts in (False, True):
        with lm.Engine(
            path, lm.Backend.CPU(), cache_dir=":nocache", enable_speculative_decoding=drafts
        ) as engine:
            found.append(engine.hidden_states(["a text"]))
    np.testing.assert_array_equal(*found)


def test_wrong_arguments(engine: lm.Engine) -> None:
    assert engine.hidden_states([]).shape == (0, 16)
    with pytest.raises(TypeError, match=r"expected a list of prompts, got a str: pass \[prompt\]"):
        engine.hidden_states("a text")
    with pytest.raises(ValueError, match="expected at most 128 tokens"):
        engine.hidden_states([[5] * 129])


@pytest.mark.parametrize(("is_sum", "size"), [(False, 3), (True, 0)])
def test_where_they_are(*, is_sum: bool, size: int) -> None:
    builder = ModelBuilder()
    x, y, scale = (builder.tensor((1, n)) for n in (3, 5, 5))
    states = builder.input((1, 3), np.float32, "x")
    builder.operator("ABS", [states], [x])
    weights, half = (builder.constant(np.ones(shape, np.float32)) for shape in ((5, 3), (1, 5)))
    builder.operator("FULLY_CONNECTED", [x, weights, None], [y], FullyConnectedOptions())
    builder.operator("MUL", [y, y if is_sum else half], [scale])
    builder.outputs(scale)
    builder.signature("decode", {"x": states}, {"logits": scale})
    model = read_model(builder.build())
    assert hidden_size(model, model.signatures[0]) == size
