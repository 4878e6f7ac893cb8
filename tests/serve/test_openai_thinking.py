"""Budgets of thoughts in the server: answers are those of conversations."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxdelegate import lm
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.openai.fields import ApiError
from jaxdelegate.serve.openai.requests import chat_request
from tests.lm.test_thinking import thinking_bundle
from tests.serve.test_openai import CHAT, HELLO, Served
from tests.serve.test_openai_fields import serving

RESPONSES = "/v1/responses"
BODY = {"messages": HELLO, "temperature": 0, "max_tokens": 14}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path: Path = tmp_path_factory.mktemp("thinking") / "tiny.litertlm"
    path.write_bytes(thinking_bundle("<think>", "ZQ", "<think>"))
    with serving(path, Limits()) as server:
        yield server


def wanted(served: Served, budget: int) -> tuple[str, str]:
    config = lm.ThinkingConfig(thinking_token_budget=budget)
    with served.engine.create_conversation(
        thinking_config=config, max_output_tokens=14, text_contents=True
    ) as talk:
        answer = talk.send_message(HELLO[0])
    return answer.channels.get("thought", ""), str(answer)


def said(served: Served, **fields: Any) -> list[tuple[str, str]]:
    answer = served.call(CHAT, BODY | fields)
    assert answer.status == 200, answer.body
    messages = [choice["message"] for choice in answer.json["choices"]]
    return [(m.get("reasoning_content") or "", m["content"]) for m in messages]


@pytest.mark.parametrize("budget", [0, 1, 5, 50])
def test_an_answer_is_that_of_a_conversation(served: Served, budget: int) -> None:
    want = wanted(served, budget)
    assert (want == wanted(served, -1)) == (budget == 50)
    assert said(served, thinking_token_budget=budget) == [want]
    assert said(served, thinking={"type": "enabled", "budget_tokens": budget}) == [want]
    assert said(served, thinking_token_budget=budget, n=2) == [want] * 2


def test_without_a_budget(served: Served) -> None:
    want = [wanted(served, -1)]
    for fields in (
        {},
        {"thinking_token_budget": -1},
        {"thinking": {"type": "adaptive"}},
        {"thinking": {"type": "disabled", "budget_tokens": 3}},
        {"thinking_token_budget": 3, "chat_template_kwargs": {"enable_thinking": False}},
        {"thinking_token_budget": 3, "reasoning_effort": "none"},
    ):
        assert said(served, **fields) == want


def test_streams_log_probabilities_and_responses(served: Served) -> None:
    thoughts, text = wanted(served, 5)
    chunks = served.call(CHAT, BODY | {"stream": True, "thinking_token_budget": 5}).events
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(d.get("reasoning_content") or "" for d in deltas) == thoughts
    assert "".join(d.get("content") or "" for d in deltas) == text
    answer = served.call(CHAT, BODY | {"logprobs": True, "thinking_token_budget": 5}).json
    assert len(answer["choices"][0]["logprobs"]["content"]) == 14
    body = {"input": HELLO, "temperature": 0, "max_output_tokens": 14, "thinking_token_budget": 5}
    reasoning, message = served.call(RESPONSES, body).json["output"]
    assert reasoning["content"][0]["text"] == thoughts
    assert message["content"][0]["text"] == text


def test_a_grammar_holds_after_the_thoughts(served: Served) -> None:
    thoughts, _ = wanted(served, 5)
    fields = {"thinking_token_budget": 5, "structured_outputs": {"regex": "(<think>|cd){2}"}}
    ((reasoning, text),) = said(served, **fields, max_tokens=30)
    assert reasoning == thoughts
    assert re.fullmatch("(<think>|cd){2}", text)


def test_what_is_refused(served: Served) -> None:
    for more, param, message in (
        ({"thinking": {"type": "enabled", "budget_tokens": 4}},
         "thinking_token_budget and thinking.budget_tokens", "give one of them"),
        ({"thinking": {"type": "yes"}}, "thinking.type", "expected one of enabled, adaptive"),
        ({"thinking_token_budget": -2}, "thinking_token_budget", "expected an integer from -1"),
    ):  # fmt: skip
        answer = served.call(CHAT, {**BODY, "thinking_token_budget": 3, **more})
        assert answer.status == 400
        assert answer.json["error"]["param"] == param
        assert message in answer.json["error"]["message"]


def test_a_field_of_thinking_has_its_name() -> None:
    body = {**BODY, "thinking": {"type": "enabled", "budget_tokens": "many"}}
    with pytest.raises(ApiError, match=r"thinking\.budget_tokens: expected an integer from -1"):
        chat_request(json.dumps(body).encode())
