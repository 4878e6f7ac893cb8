"""Tools in conversations: descriptions of functions, calls, results, formats of answers."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from jaxdelegate import lm
from jaxdelegate.errors import GenerationError, OptionError
from jaxdelegate.lm import conversation as module
from jaxdelegate.lm.tools import tool_map
from tests.support.language_models import CHATML, language_bundle, language_model


def weather(city: str, days: int = 1, *, hours: Sequence[float] = (), deep: bool = False) -> str:
    """The weather of a city.

    More about it.

    Args:
        city: where,
            in English.
        days (int): how many.

    Returns:
        A sentence.
    """
    del hours, deep
    return f"{city}: {days} days of sun"


def fails() -> None:
    """Fails."""
    raise ValueError("no network")


# ---- descriptions


def test_a_function_describes_itself() -> None:
    function = lm.tool_from_function(weather).get_tool_description()["function"]
    assert (function["name"], function["description"]) == ("weather", "The weather of a city.")
    parameters = function["parameters"]
    assert parameters["required"] == ["city"]
    assert parameters["properties"] == {
        "city": {"type": "string", "description": "where, in English."},
        "days": {"type": "integer", "description": "how many."},
        "hours": {"type": "array", "items": {"type": "number"}},
        "deep": {"type": "boolean"},
    }
    assert lm.tool_from_function(weather).execute({"city": "Rome"}) == "Rome: 1 days of sun"


def test_names_differ() -> None:
    with pytest.raises(OptionError, match="expected different names of functions, got 'weather'"):
        tool_map([weather, lm.tool_from_function(weather)])


# ---- conversations


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lm.Engine]:
    path = tmp_path_factory.mktemp("tools") / "tiny.litertlm"
    path.write_bytes(language_bundle(CHATML, model=language_model(capacity=2048)))
    with lm.Engine(path, lm.Backend.CPU()) as opened:
        yield opened


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the model says, one answer after the other."""
    said: list[str] = []

    class Answer(module.Answer):
        def parts(self, *_: Any) -> Iterator[str]:
            self.finish_reason = "stop"
            yield from said.pop(0)

    monkeypatch.setattr(module, "Answer", Answer)
    return said


def call(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def test_tools_are_called_until_an_answer(engine: lm.Engine, answers: list[str]) -> None:
    answers += [call("weather", city="Rome", days=2), call("fails"), "It is sunny."]
    with engine.create_conversation(tools=[weather, fails]) as talk:
        answer = talk.send_message("And Rome?")
        assert str(answer) == "It is sunny."
        roles = [message["role"] for message in talk.messages]
        assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
        _, first, result, _, failed, _ = talk.messages
        (asked,) = first.tool_calls
        assert asked["function"] == {"name": "weather", "arguments": {"city": "Rome", "days": 2}}
        (response,) = result.contents
        assert response == lm.Content.ToolResponse("weather", "Rome: 2 days of sun")
        (response,) = failed.contents
        assert response == lm.Content.ToolResponse("fails", "Error: no network")
        text = talk.render_message_to_string("x")
        assert "Result of" not in text  # only what is new


def test_a_prompt_has_tools_and_results(engine: lm.Engine, answers: list[str]) -> None:
    answers += [call("weather", city="Rome")]
    talk = engine.create_conversation(
        tools=[weather], automatic_tool_calling=False, text_contents=True
    )
    assert talk.render_message_to_string("Hi").startswith(
        "<|im_start|>system\nYou may call these functions:\n"
    )
    asked = talk.send_message("Hi")
    (wanted,) = asked.tool_calls
    assert wanted["function"]["name"] == "weather"
    assert not asked.contents
    results = lm.Message.tool(lm.Contents.of(lm.Content.ToolResponse("weather", {"sun": True})))
    text = talk.render_message_to_string(results)
    assert '<|im_start|>user\nResult of weather:\n{"sun": true}<|im_end|>' in text
    answers += ["Sunny."]
    assert str(talk.send_message(results)) == "Sunny."
    assert talk.messages[1].tool_calls == [wanted]


def test_parts_of_answers(engine: lm.Engine, answers: list[str]) -> None:
    answers += [call("weather", city="Rome"), "Sunny."]
    with engine.create_conversation(tools=[weather]) as talk:
        assert "".join(map(str, talk.send_message_async("Hi"))) == "Sunny."
    answers += [call("weather", city="Rome")]
    with engine.create_conversation(tools=[weather], automatic_tool_calling=False) as talk:
        (part,) = talk.send_message_async("Hi")
        assert part.tool_calls


class Handler(lm.ToolEventHandler):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def approve_tool_call(self, tool_call: dict[str, Any]) -> bool:
        self.seen.append(tool_call["function"]["arguments"])
        return bool(tool_call["function"]["arguments"]["city"] != "Oslo")

    def process_tool_response(self, tool_response: Any) -> Any:
        return f"<{tool_response}>"


def test_a_handler_decides(engine: lm.Engine, answers: list[str]) -> None:
    answers += [call("weather", city="Rome"), call("weather", city="Oslo")]
    handler = Handler()
    with engine.create_conversation(tools=[weather], tool_event_handler=handler) as talk:
        last = talk.send_message("Hi")
        assert handler.seen == [{"city": "Rome"}, {"city": "Oslo"}]
        assert last.tool_calls  # it was not approved, and nothing was sent
        (response,) = talk.messages[2].contents
        assert response == lm.Content.ToolResponse("weather", "<Rome: 1 days of sun>")


def test_messages_of_before_may_have_calls(engine: lm.Engine) -> None:
    calls = [lm.ToolCall("weather", {"city": "Rome"})]
    messages = [
        lm.Message.user("Hi"),
        lm.Message.model(tool_calls=calls),
        {"role": "tool", "name": "weather", "content": "sunny"},
    ]
    with engine.create_conversation(messages=messages, text_contents=True) as talk:
        text = talk.render_message_to_string("And now?")
    assert '{"name": "weather", "arguments": {"city": "Rome"}}<|im_end|>' in text
    assert "Result of weather:\nsunny<|im_end|>" in text


# ---- formats


def test_answers_match_a_format(engine: lm.Engine) -> None:
    pytest.importorskip("llguidance")
    with engine.create_conversation(max_output_tokens=50) as talk:
        form = lm.ResponseFormat.regex("[ab]{5}!")
        assert re.fullmatch("[ab]{5}!", str(talk.send_message("Hi", response_format=form)))
        form = lm.ResponseFormat.json({"enum": ["yes", "no"]})
        answer = str(talk.send_message("Hi", response_format=form))
        assert json.loads(answer) in ("yes", "no")
        assert str(talk.messages[-1]) == answer
    with pytest.raises(ValueError, match="Expecting value"):
        lm.ResponseFormat.json("nonsense")


def test_wrong_formats(engine: lm.Engine, tmp_path: Path) -> None:
    del tmp_path
    pytest.importorskip("llguidance")
    with engine.create_conversation() as talk:
        with pytest.raises(OptionError, match="change the regular expression, which llguidance"):
            talk.send_message("Hi", response_format=lm.ResponseFormat.regex("("))
        assert talk.messages == []


def test_calls_match_their_schemas(engine: lm.Engine) -> None:
    pytest.importorskip("llguidance")
    config = lm.ConstrainedDecodingConfig(enable=True)
    sampler = lm.SamplerConfig(top_k=100, temperature=2)
    with engine.create_conversation(
        tools=[weather],
        automatic_tool_calling=False,
        constrained_decoding_config=config,
        sampler_config=sampler,
        max_output_tokens=60,
    ) as talk:
        answer = talk.send_message("Hi")
        for wanted in answer.tool_calls:
            assert isinstance(wanted["function"]["arguments"]["city"], str)
        assert talk.constrained_decoding_config == config


def test_a_conversation_gets_too_long(engine: lm.Engine, answers: list[str]) -> None:
    answers += [call("weather", city="Rome")] * 100
    talk = engine.create_conversation(tools=[weather])
    with talk, pytest.raises(GenerationError, match="tokens"):
        talk.send_message("Hi")
