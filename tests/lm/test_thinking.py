"""Budgets of thoughts; the answers wanted are those of litert_lm 0.18.1, unless a test says so."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate import lm
from jaxdelegate.errors import OptionError
from jaxdelegate.lm.constraints import words
from jaxdelegate.lm.model_runner import ModelRunner
from jaxdelegate.lm.thinking import AfterThought, ThinkingBudget
from tests.support.language_models import (
    CHATML,
    VOCABULARY,
    drafter_bundle,
    language_bundle,
    language_model,
)

PROMPT = "<|im_start|>assistant\n"
START, END = (7, 8), (9, 10)


def budget(count: int, *, is_open: bool = False) -> ThinkingBudget:
    return ThinkingBudget(START, END, count, VOCABULARY, is_open=is_open)


def allowed(state: ThinkingBudget) -> list[int] | None:
    """None: all tokens."""
    bits = np.unpackbits(state.allowed().view(np.uint8), bitorder="little")
    found = np.flatnonzero(bits).tolist()
    return None if len(found) >= VOCABULARY else found


def walk(state: ThinkingBudget, tokens: list[int]) -> list[tuple[int | None, list[int] | None]]:
    """The room and the allowed tokens before each token, and after the last one."""
    found = [(state.room, allowed(state))]
    for token in tokens:
        state.add(token)
        found.append((state.room, allowed(state)))
    return found


@pytest.mark.parametrize(
    ("state", "tokens", "want"),
    [
        (budget(2, is_open=True), [1, 2, 9, 10, 3],
         [(2, None), (1, None), (1, [9]), (1, [10]), (None, None), (None, None)]),
        (budget(0, is_open=True), [9, 10], [(1, [9]), (1, [10]), (None, None)]),
        (budget(3, is_open=True), [9, 10, 7, 8],
         [(3, None), (2, None), *[(None, None)] * 3]),
        (budget(2), [7, 8, 1, 2, 9, 10],
         [(4, None), (3, None), (2, None), (1, None), (1, [9]), (1, [10]), (None, None)]),
        (budget(0), [7, 8, 9, 10],
         [(2, None), (1, None), (1, [9]), (1, [10]), (None, None)]),
        (budget(2), [7, 1, 7, 8], [(4, None), (3, None), *[(None, None)] * 3]),
        # The model has begun to end its thoughts itself. LiteRT-LM adds the whole end.
        (budget(2, is_open=True), [1, 9, 10], [(2, None), (1, None), (1, [10]), (None, None)]),
    ],
)  # fmt: skip
def test_what_may_come_next(
    state: ThinkingBudget, tokens: list[int], want: list[tuple[int | None, list[int] | None]]
) -> None:
    untouched = state.copy()
    assert walk(state.copy(), tokens) == want
    assert walk(state, tokens) == want
    assert walk(untouched, []) == want[:1]


def thinking_bundle(start: str, end: str, opened: str = "", capacity: int = 128) -> bytes:
    """A bundle with a channel; the prompt ends with `opened`."""

    def edit(m: Any) -> None:
        m.channels.add(channel_name="thought", start=start, end=end, is_reasoning_channel=True)

    template = CHATML.replace(PROMPT, PROMPT + opened)
    model = language_model(seed=5, capacity=capacity)
    return language_bundle(template, model=model, edit=edit)


@pytest.fixture
def engine(request: Any, tmp_path: Path) -> Iterator[lm.Engine]:
    path = tmp_path / "model.litertlm"
    path.write_bytes(thinking_bundle(*request.param))
    with lm.Engine(path, lm.Backend.CPU()) as opened:
        yield opened


def said(engine: lm.Engine, **config: Any) -> tuple[str, str]:
    """The thoughts and the text of an answer of 20 tokens."""
    chosen = lm.ThinkingConfig(**config)
    with engine.create_conversation(thinking_config=chosen, max_output_tokens=20) as talk:
        answer = talk.send_message("hi")
    return answer.channels.get("thought", ""), str(answer)


OPENED = "\ufffd<pad>$\ufffdpp\ufffd'\x02p\ufffd\ufffd{\ufffd\ufffd=f\ufffd6\ufffd"


@pytest.mark.parametrize("engine", [("<think>", "ZQ", "<think>")], indirect=True)
def test_the_prompt_opens_the_channel(engine: lm.Engine) -> None:
    assert said(engine) == (OPENED, "")
    assert said(engine, enable_thinking=False, thinking_token_budget=4) == (OPENED, "")
    text = "\ufffd\ufffd'\ufffd\ufffd\x02p\ufffd\ufffd{\ufffd\ufffd=f{\x19\ufffd"
    assert said(engine, thinking_token_budget=1) == ("\ufffd", text)
    text = "\ufffd'\x02p\ufffd\ufffd{\ufffd\ufffd=f\ufffd6\ufffd"
    assert said(engine, thinking_token_budget=4) == ("\ufffd<pad>$\ufffd", text)
    assert said(engine, thinking_token_budget=100) == (OPENED, "")


@pytest.mark.parametrize("engine", [("\t&", "ZQ")], indirect=True)
def test_the_answer_begins_with_the_channel(engine: lm.Engine) -> None:
    thoughts = "\ufffdJ$\x166\ufffdB\x02\ufffd\ufffd\x02\ufffdM\f\ufffd\x02\ufffd'"
    assert said(engine) == (thoughts, "")
    text = "\ufffd'Y\x16$\u00ae\ufffdp\ufffd6\x19\x02\ufffd'"
    assert said(engine, thinking_token_budget=1) == ("\ufffd", text)
    text = "\ufffd\ufffd\x02\ufffd\ufffd\ufffd\ufffd\x02p\ufffd\ufffd{"
    assert said(engine, thinking_token_budget=4) == ("\ufffdJ$\x16", text)


@pytest.mark.parametrize("engine", [("&", "ZQ")], indirect=True)
def test_a_channel_in_the_middle_has_no_budget(engine: lm.Engine) -> None:
    assert said(engine, thinking_token_budget=1) == said(engine)
    assert said(engine)[1] == "\t"


@pytest.mark.parametrize("engine", [("<think>", "$", "<think>")], indirect=True)
def test_the_model_ends_the_channel_itself(engine: lm.Engine) -> None:
    want = "\ufffd<pad>", "\ufffdpp\ufffd'\x02p\ufffd\ufffd{\ufffd\ufffd=f\ufffd6\ufffd"
    assert said(engine) == want
    assert [said(engine, thinking_token_budget=n) for n in (2, 3, 20)] == [want] * 3
    text = "3B\x02\x02\ufffdM\f\ufffd\ufffd&\u075b\x02$\ufffdZ\ufffdE"
    assert said(engine, thinking_token_budget=1) == ("\ufffd", text)


@pytest.mark.parametrize("engine", [("<think>", "ZQ", "<think>ZQ")], indirect=True)
def test_the_prompt_ends_the_channel(engine: lm.Engine) -> None:
    assert said(engine, thinking_token_budget=1) == said(engine)
    assert said(engine)[0] == ""


@pytest.mark.parametrize("engine", [("<think>", "ZQ", "<think>")], indirect=True)
def test_budgets_differ_by_message_and_zero_means_none(
    engine: lm.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In LiteRT-LM 0 is no limit. Only the end is generated token by token."""
    counts, decode = list[int](), ModelRunner.decode

    def counted(runner: ModelRunner, *args: Any, **more: Any) -> Any:
        found = decode(runner, *args, **more)
        counts.extend(len(output.tokens) for output in found.values())
        return found

    monkeypatch.setattr(ModelRunner, "decode", counted)
    thoughts, text = said(engine, thinking_token_budget=0)
    assert (thoughts, len(text) > 0) == ("", True)
    counts.clear()
    zero, seven = (lm.ThinkingConfig(thinking_token_budget=n) for n in (0, 7))
    with engine.create_conversation(thinking_config=zero, max_output_tokens=10) as talk:
        assert talk.send_message("hi", thinking_config=seven).channels["thought"]
    assert [n for n in itertools.accumulate(counts) if n >= 7] == [7, 8, 9, 10]
    assert max(counts) > 1


@pytest.mark.parametrize("engine", [("", "ZQ")], indirect=True)
def test_a_budget_needs_a_channel(engine: lm.Engine) -> None:
    with pytest.raises(OptionError, match="thinking_token_budget: expected a bundle that declares"):
        said(engine, thinking_token_budget=5)
    assert said(engine, thinking_token_budget=5, enable_thinking=False)[0] == ""


@pytest.mark.parametrize("engine", [("<think>", "ZQ", "<think>")], indirect=True)
def test_a_format_holds_after_the_thoughts(engine: lm.Engine) -> None:
    """Thoughts are those without a format, as far as the budget."""
    form = lm.ResponseFormat.regex("(ab|cd){3}")
    for count in (0, 4):
        config = lm.ThinkingConfig(thinking_token_budget=count)
        with engine.create_conversation(thinking_config=config, max_output_tokens=20) as talk:
            answer = talk.send_message("hi", response_format=form)
        assert re.fullmatch("(ab|cd){3}", str(answer))
        assert answer.channels.get("thought", "") == said(engine, thinking_token_budget=count)[0]


def weather(city: str) -> str:
    """The weather of a city."""
    return f"sun in {city}"


def test_calls_match_their_schemas_after_the_thoughts(tmp_path: Path) -> None:
    path = tmp_path / "model.litertlm"
    path.write_bytes(thinking_bundle("<think>", "ZQ", "<think>", capacity=1024))
    limits: Any = {
        "thinking_config": lm.ThinkingConfig(thinking_token_budget=3),
        "constrained_decoding_config": lm.ConstrainedDecodingConfig(enable=True),
        "automatic_tool_calling": False,
    }
    with (
        lm.Engine(path, lm.Backend.CPU()) as engine,
        engine.create_conversation(tools=[weather], max_output_tokens=12, **limits) as talk,
    ):
        answer = talk.send_message("hi")
    thoughts = answer.channels["thought"]
    assert 0 < len(thoughts) <= 3
    assert "ZQ" not in thoughts


class _Abc:
    """A constraint to the tokens 20, 21, 22, after which nothing follows."""

    def __init__(self, tokens: tuple[int, ...] = ()) -> None:
        self._tokens = tokens

    def copy(self) -> "_Abc":
        return _Abc(self._tokens)

    def add(self, token: int) -> None:
        self._tokens = (*self._tokens, token)

    @property
    def error(self) -> str | None:
        return None if self._tokens == (20, 21, 22)[: len(self._tokens)] else "no"

    @property
    def is_match(self) -> bool:
        return self._tokens == (20, 21, 22)

    is_complete = is_match

    def allowed(self) -> np.ndarray:
        found = np.zeros(words(VOCABULARY), np.uint32)
        found[0] = 1 << (20, 21, 22, 23)[len(self._tokens)]
        return found


@pytest.mark.parametrize(
    ("state", "tokens", "want"),
    [
        # It thinks, is ended, and answers; 2 is a stop.
        (budget(2), [7, 8, 1, 3, 9, 10, 20, 21],
         [[7, 20], [8], -1, -1, [9], [10], [20], [21], [22]]),
        (budget(9, is_open=True), [1, 9, 10, 20], [-1, -1, -1, [20], [21]]),
        (budget(0, is_open=True), [9, 10], [[9], [10], [20]]),
        # It does not think.
        (budget(2), [20, 21], [[7, 20], [21], [22]]),
        # What begins an answer may begin a channel, too.
        (ThinkingBudget((20, 8), END, 2, VOCABULARY, is_open=False), [20, 21],
         [[20], [8, 21], [22]]),
        (ThinkingBudget((20, 8), END, 0, VOCABULARY, is_open=False), [20, 8, 9, 10],
         [[20], [8, 21], [9], [10], [20]]),
    ],
)  # fmt: skip
def test_what_may_come_next_with_a_constraint(
    state: ThinkingBudget, tokens: list[int], want: list[Any]
) -> None:
    """-1: all tokens but the stop."""
    constraint = AfterThought(_Abc(), state, [2])  # type: ignore[arg-type]
    untouched, found = constraint.copy(), []
    for token in [*tokens, None]:
        assert constraint.error is None
        assert not constraint.is_match
        bits = np.unpackbits(constraint.allowed().view(np.uint8), bitorder="little")
        some = np.flatnonzero(bits[:VOCABULARY]).tolist()
        found.append(-1 if some == [i for i in range(VOCABULARY) if i != 2] else some)
        if token is not None:
            constraint.add(token)
    assert found == want
    assert untouched.allowed().any()
    for token in (20, 21, 22)[(20, 21, 22).index(want[-1][0]) :]:
        constraint.add(token)
    assert constraint.is_match
    assert constraint.is_complete
    assert not untouched.is_match


@pytest.mark.slow
def test_a_drafter_changes_nothing(tmp_path: Path) -> None:
    def edit(m: Any) -> None:
        m.channels.add(channel_name="thought", start=PROMPT, end="ZQ", is_reasoning_channel=True)

    path = tmp_path / "model.litertlm"
    path.write_bytes(drafter_bundle(edit=edit))
    found = []
    for drafts in (False, True):
        with lm.Engine(path, enable_speculative_decoding=drafts) as engine:
            found.append([said(engine, thinking_token_budget=n) for n in (0, 3, 9, -1)])
    assert found[0] == found[1]
    assert len(set(found[0])) == 4
