"""/v1/responses: items in requests, items and events of responses, and what is refused."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from jaxdelegate.bundles.metadata import Channel
from jaxdelegate.bundles.tokenizers import TYPES, open_tokenizer
from jaxdelegate.lm.channels import ChannelReader
from jaxdelegate.lm.text_stream import Part
from jaxdelegate.lm.tool_calls import ToolReader, ToolSyntax
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.openai.batching import Delta
from jaxdelegate.serve.openai.response_events import ResponseForm
from jaxdelegate.serve.openai.response_requests import response_request
from jaxdelegate.serve.openai.responses import AnswerReader, Usage
from jaxdelegate.serve.openai.scores import ScoreForm, TokenTexts
from tests.serve.test_openai import CHAT, HELLO, Served
from tests.serve.test_openai_fields import serving
from tests.serve.test_openai_tools import QWEN, TOOLS
from tests.support.bundles import compressed
from tests.support.language_models import byte_tokenizer, language_bundle, language_model

PATH = "/v1/responses"
FUNCTIONS = [{"type": "function", **tool["function"]} for tool in TOOLS]
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Rome"}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("responses") / "tiny.litertlm"
    path.write_bytes(language_bundle(QWEN, model=language_model(capacity=1024)))
    with serving(path, Limits()) as server:
        yield server


def read(**fields: Any) -> Sequence[Mapping[str, Any]]:
    """The messages that a request has for the chat template."""
    chat = response_request(json.dumps(fields).encode()).chat
    assert chat is not None
    return chat.messages


def text(message: Mapping[str, Any]) -> str:
    return "".join(part["text"] for part in message["content"])


def events_of(body: bytes) -> list[Any]:
    """The events of a stream; each has its type as its name, and the next number."""
    events = []
    for number, block in enumerate(body.decode().removesuffix("\n\n").split("\n\n")):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        events.append(event)
    return events


# ---- requests


def test_items_become_messages() -> None:
    parts = [{"type": "input_text", "text": "He"}, {"type": "input_text", "text": "llo"}]
    messages = read(
        instructions="Be brief.",
        input=[
            {"role": "developer", "content": "Be kind."},
            {"type": "message", "role": "user", "content": parts},
            {"type": "reasoning", "id": "r", "summary": [], "content": [part("hm")]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            CALL,
            {**CALL, "call_id": "c2"},
            RESULT,
            {**RESULT, "call_id": "c2", "output": parts},
            {"type": "reasoning", "summary": [], "encrypted_content": "x"},
            {"role": "assistant", "content": "It is sunny."},
            {"role": "user", "content": "Thanks"},
        ],
    )
    roles = ["system", "user", "assistant", "tool", "tool", "assistant", "user"]
    assert [m["role"] for m in messages] == roles
    texts = [
        "Be brief.\n\nBe kind.",
        "Hello",
        "I look.",
        "sunny",
        "Hello",
        "It is sunny.",
        "Thanks",
    ]
    assert [text(m) for m in messages] == texts
    assert messages[2]["reasoning_content"] == "hm"
    calls = messages[2]["tool_calls"]
    assert [call["id"] for call in calls] == ["c1", "c2"]
    assert calls[0]["function"] == {"name": "weather", "arguments": {"city": "Rome"}}
    assert [(m["tool_call_id"], m["name"]) for m in messages[3:5]] == [
        ("c1", "weather"),
        ("c2", "weather"),
    ]


def part(text: str) -> dict[str, str]:
    return {"type": "reasoning_text", "text": text}


def test_turns_of_the_assistant_are_separate_where_their_order_is_another() -> None:
    said = {"role": "assistant", "content": "a"}
    reasoning = {"type": "reasoning", "content": [part("b")]}
    messages = read(input=[said, said, reasoning, reasoning, CALL, said, CALL, reasoning])
    shown = [(text(m), m.get("reasoning_content"), len(m.get("tool_calls", ()))) for m in messages]
    assert shown == [
        ("a", None, 0),
        ("a", None, 0),
        ("", "b", 0),
        ("", "b", 1),
        ("a", None, 1),
        ("", "b", 0),
    ]


def test_fields_are_those_of_chats() -> None:
    body = {
        "input": "Hi",
        "max_output_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 3,
        "seed": 5,
        "reasoning": {"effort": "none", "summary": "auto"},
        "text": {"format": {"type": "json_schema", "name": "x", "schema": {"const": 1}}},
        "tools": FUNCTIONS,
        "tool_choice": {"type": "function", "name": "now"},
        "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
        "stream": True,
        "store": True,
    }
    request = response_request(json.dumps(body).encode())
    assert (request.ends.max_tokens, request.is_stream, request.has_scores) == (7, True, True)
    assert request.sampling == {"temperature": 0.5, "top_p": 0.25, "top_k": 3, "seed": 5}
    assert request.chat is not None
    assert request.chat.context == {"reasoning_effort": "none", "enable_thinking": False}
    assert request.chat.tools.shown == TOOLS_SHOWN
    assert [f["name"] for f in request.chat.tools.callable] == ["now"]
    assert request.grammar is not None
    assert request.ignored == ()


TOOLS_SHOWN = [
    {"type": "function", "function": {"parameters": {"type": "object"}, **tool["function"]}}
    for tool in TOOLS
]


# ---- responses


def test_an_answer_is_that_of_a_chat(served: Served) -> None:
    system = {"role": "system", "content": "Be brief."}
    chat = {"messages": [system, *HELLO], "max_tokens": 12, "temperature": 0}
    expected = served.call(CHAT, chat).json
    asked = {
        "input": "Hello",
        "instructions": "Be brief.",
        "max_output_tokens": 12,
        "temperature": 0,
        "metadata": {"a": "b"},
    }
    found = served.call(PATH, asked).json
    (item,) = found["output"]
    (choice,) = expected["choices"]
    assert (item["type"], item["role"]) == ("message", "assistant")
    (content,) = item["content"]
    assert content["text"] == choice["message"]["content"]
    assert content["logprobs"] == []
    is_cut = choice["finish_reason"] == "length"
    assert found["status"] == item["status"] == ("incomplete" if is_cut else "completed")
    assert found["incomplete_details"] == ({"reason": "max_output_tokens"} if is_cut else None)
    usage, other = found["usage"], expected["usage"]
    assert usage["input_tokens"] == other["prompt_tokens"]
    assert usage["output_tokens"] == other["completion_tokens"]
    assert usage["input_tokens_details"]["cached_tokens"] == other["prompt_tokens"] - 1
    assert found["instructions"] == "Be brief."
    assert (found["store"], found["metadata"], found["model"]) == (False, {"a": "b"}, "tiny")


def test_scores_are_those_of_chats(served: Served) -> None:
    """But bytes that are unknown are an empty list, as the API has no null there."""
    chat = {"messages": HELLO, "max_tokens": 48, "temperature": 0}
    expected = served.call(CHAT, {**chat, "logprobs": True, "top_logprobs": 20}).json
    asked = {"input": "Hello", "max_output_tokens": 48, "temperature": 0, "top_logprobs": 20}
    found = served.call(PATH, {**asked, "include": ["message.output_text.logprobs"]}).json
    tokens = expected["choices"][0]["logprobs"]["content"]
    entries = [entry for token in tokens for entry in (token, *token["top_logprobs"])]
    assert any(entry["bytes"] is None for entry in entries)
    for entry in entries:
        entry["bytes"] = entry["bytes"] or []
    assert found["output"][0]["content"][0]["logprobs"] == tokens
    assert found["top_logprobs"] == 20


def test_a_stream_ends_with_the_whole_response(served: Served) -> None:
    asked = {"input": "Hello", "max_output_tokens": 9, "temperature": 0}
    whole = served.call(PATH, asked).json
    answer = served.call(PATH, {**asked, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = events_of(answer.body)
    assert [e["type"] for e in events[:4]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []
    last = events[-1]["response"]
    assert events[-1]["type"] == f"response.{last['status']}"
    assert last["output"][0]["content"] == whole["output"][0]["content"]
    streamed = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    assert streamed == whole["output"][0]["content"][0]["text"]
    assert last["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_calls_and_their_results(served: Served) -> None:
    pytest.importorskip("llguidance")
    asked = {"tools": FUNCTIONS, "max_output_tokens": 200, "temperature": 0}
    named = {"type": "function", "name": "weather"}
    found = served.call(PATH, {**asked, "input": "Hello", "tool_choice": named}).json
    (call,) = found["output"]
    assert (call["type"], call["name"], found["status"]) == (
        "function_call",
        "weather",
        "completed",
    )
    assert json.loads(call["arguments"])["city"] in ("Rome", "Oslo")
    assert found["tool_choice"] == named
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    items = [{"role": "user", "content": "Hello"}, call, result]
    again = served.call(PATH, {**asked, "input": items}).json
    assert again["usage"]["input_tokens"] > found["usage"]["input_tokens"]


def test_text_that_matches_a_schema(served: Served) -> None:
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "name": "x", "schema": {"enum": ["a", "b"]}, "strict": True}
    found = served.call(PATH, {"input": "Hello", "text": {"format": form}}).json
    assert json.loads(found["output"][0]["content"][0]["text"]) in ("a", "b")
    assert found["text"]["format"] == form


def test_the_official_client(served: Served) -> None:
    """A stream of a call, then its result; the client reads events into its own types."""
    openai = pytest.importorskip("openai", reason="the package openai is not installed")
    pytest.importorskip("llguidance")
    url = f"http://127.0.0.1:{served.port}/v1"
    options = {"model": "tiny", "tools": FUNCTIONS, "max_output_tokens": 200, "temperature": 0}
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        stream = {"input": "Hello", "tool_choice": "required", "parallel_tool_calls": False}
        with client.responses.stream(**options, **stream) as events:
            kinds = [event.type for event in events]
            first = events.get_final_response()
        assert kinds[-1] == "response.completed"
        (call,) = first.output
        assert call.type == "function_call"
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        items = [{"role": "user", "content": "Hello"}, call, result]
        answer = client.responses.create(**options, input=items)
        assert answer.usage.input_tokens > first.usage.input_tokens
        with pytest.raises(openai.BadRequestError, match="nothing is stored"):
            client.responses.create(**options, input="Hi", previous_response_id=first.id)


# ---- items, from parts of answers

SYNTAX = ToolSyntax("<tool_call>", "</tool_call>")
THOUGHT = Channel("thought", "<think>", "</think>", is_reasoning=True)
SAID = "<think>hm</think>I look.<tool_call>%s</tool_call>"
SAID %= json.dumps({"name": "weather", "arguments": {"city": "Rome"}})


def scores_of_bytes() -> ScoreForm:
    tokenizer = open_tokenizer(TYPES[1], memoryview(compressed(byte_tokenizer())), "a test")
    return ScoreForm(TokenTexts(tokenizer), 0)


def form() -> ResponseForm:
    reader = AnswerReader(ChannelReader([THOUGHT], ""), ToolReader(SYNTAX, {"weather"}, None))
    return ResponseForm("m", Usage([3]), reader, {}, scores_of_bytes())


def deltas(said: str, size: int, reason: str = "stop") -> list[Delta]:
    parts = [Part(said[i : i + size], 0, -1.0) for i in range(0, len(said), size)]
    found = [Delta(0, [part], tokens=n + 1) for n, part in enumerate(parts)]
    return [*found, Delta(0, (), reason, len(parts))]


@pytest.mark.parametrize("size", [1, 3])
def test_reasoning_text_and_calls_are_items(size: int) -> None:
    whole = form().whole(deltas(SAID, size))
    thought, message, call = whole["output"]
    assert thought["content"] == [part("hm")]
    (content,) = message["content"]
    assert content["text"] == "I look."
    if size == 1:
        assert [score["token"] for score in content["logprobs"]] == [*"I look."]
        details = whole["usage"]["output_tokens_details"]
        assert details == {"reasoning_tokens": len("<think>hm</think>")}
    assert json.loads(call["arguments"]) == {"city": "Rome"}
    assert [item["status"] for item in whole["output"]] == ["completed"] * 3
    streamed = form()
    events = events_of(b"".join(streamed.events(delta) for delta in deltas(SAID, size)))
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    assert [without_ids(item) for item in done] == [without_ids(i) for i in whole["output"]]
    for index, kind in enumerate(("reasoning_text", "output_text", "function_call_arguments")):
        mine = [e for e in events if e["type"].startswith(f"response.{kind}.")]
        assert {(e["output_index"], e["item_id"]) for e in mine} == {(index, done[index]["id"])}
        *parts, last = mine
        full = last["arguments" if index == 2 else "text"]
        assert "".join(e["delta"] for e in parts) == full
    added = [e["item"] for e in events if e["type"] == "response.output_item.added"]
    assert [item["status"] for item in added] == ["in_progress"] * 3


def without_ids(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in ("id", "call_id")}


def test_an_answer_that_is_cut_is_incomplete() -> None:
    whole = form().whole(deltas("<think>hm</think>Hi", 2, "length"))
    assert [item["status"] for item in whole["output"]] == ["completed", "incomplete"]
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}


def test_an_empty_answer_is_an_empty_message() -> None:
    (item,) = form().whole([Delta(0, (), "stop")])["output"]
    assert item["content"][0]["text"] == ""


def test_a_stream_that_fails() -> None:
    streamed = form()
    error = {"message": "no", "type": "server_error", "param": None, "code": "timeout"}
    body = streamed.events(deltas("Hello", 5)[0]) + streamed.error_events(error)
    *_, said, failed = events_of(body)
    assert (said["type"], said["message"], said["code"]) == ("error", "no", "timeout")
    assert failed["type"] == "response.failed"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "no"}


# ---- errors


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({}, "input", "missing field"),
        ({"input": []}, "input", "a list of 1 to"),
        ({"input": [5]}, "input[0]", "an object"),
        ({"input": [{"type": "reasoning"}]}, "input", "an item with a text"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type", "one of message"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]", "nothing is stored"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "one of user"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
            "input[0].content[0].type",
            "or, of the user, input_image",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "input[0].content[0].text",
            "a string",
        ),
        ({"input": [{**CALL, "call_id": None}]}, "input[0].call_id", "a string"),
        ({"input": [{**CALL, "arguments": "{"}]}, "input[0].arguments", "the JSON of an object"),
        ({"input": [{**RESULT, "output": None}]}, "input[0].output", "a string or a list"),
        ({"previous_response_id": "r"}, "previous_response_id", "nothing is stored: send the"),
        ({"conversation": "c"}, "conversation", "nothing is stored"),
        ({"background": True}, "background", "nothing is stored"),
        ({"truncation": "auto"}, "truncation", "not cut"),
        ({"include": ["x"]}, "include[0]", "one of message.output_text.logprobs"),
        ({"top_logprobs": 3}, "top_logprobs", "expected only with message.output_text"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "runs no tools itself"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "1 to 64 letters"),
        ({"tool_choice": "required"}, "tool_choice", "only with tools"),
        ({"tools": FUNCTIONS, "tool_choice": {"type": "mcp"}}, "tool_choice.type", "function"),
        (
            {"tools": FUNCTIONS, "tool_choice": {"type": "function", "name": "x"}},
            "tool_choice.name",
            "one of weather, now",
        ),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type", "json_schema"),
        (
            {"text": {"format": {"type": "json_schema", "schema": 5}}},
            "text.format.schema",
            "an object",
        ),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "ask for it in a message"),
        ({"reasoning": {"effort": 5}}, "reasoning.effort", "a string"),
        (
            {"text": {"format": {"type": "json_schema", "schema": {"not": {}}}}},
            "text.format",
            "llguidance",
        ),
    ],
)
def test_wrong_requests(served: Served, body: Any, param: str, said: str) -> None:
    found = served.call(PATH, {"input": "Hi", **body} if body else body)
    assert (found.status, found.error["param"]) == (400, param)
    assert said in found.error["message"]


def test_unknown_fields_are_named(served: Served) -> None:
    found = served.call(PATH, {"input": "Hi", "max_output_tokens": 1, "n": 2, "prewarm": True})
    assert found.status == 200
    assert "'n', 'prewarm'" in found.headers["warning"]
