"""Tools in chats: prompts, calls in answers and streams, and what is wrong with requests."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from jaxdelegate.lm.channels import ChannelReader
from jaxdelegate.lm.text_stream import Part
from jaxdelegate.lm.tool_calls import ToolReader, ToolSyntax
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.openai.batching import Delta
from jaxdelegate.serve.openai.responses import AnswerReader, ChatForm, Usage
from tests.serve.test_openai import CHAT, HELLO, Served
from tests.serve.test_openai_fields import serving
from tests.support.language_models import CHATML, language_bundle, language_model

QWEN = (
    "{% if tools %}<|im_start|>system\n# Tools\n{% for tool in tools %}{{ tool | tojson }}\n"
    "{% endfor %}Answer <tool_call>...</tool_call><|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Oslo"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {"name": "weather", "description": "The weather", "parameters": PARAMETERS}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": WEATHER},
    {"type": "function", "function": {"name": "now"}},
]
ASK = {"messages": HELLO, "tools": TOOLS, "max_tokens": 100, "temperature": 0}


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("tools") / "tiny.litertlm"
    path.write_bytes(language_bundle(QWEN, model=language_model(capacity=1024)))
    with serving(path, Limits()) as server:
        yield server


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A bundle whose template does not show tools."""
    path = tmp_path_factory.mktemp("tools") / "plain.litertlm"
    path.write_bytes(language_bundle(CHATML, model=language_model(capacity=1024)))
    with serving(path, Limits()) as server:
        yield server


@pytest.fixture(params=["qwen", "plain"])
def served(request: pytest.FixtureRequest) -> Served:
    pytest.importorskip("llguidance")
    server: Served = request.getfixturevalue(request.param)
    return server


def prompt(served: Served, **body: Any) -> str:
    ids = served.call("/tokenize", body).json["tokens"]
    return str(served.engine.detokenize(ids))


# ---- calls


def test_required_calls_match_their_schemas(served: Served) -> None:
    for seed in range(3):
        more = {"tool_choice": "required", "temperature": 2, "seed": seed, "max_tokens": 200}
        more["parallel_tool_calls"] = False
        (choice,) = served.call(CHAT, {**ASK, **more}).json["choices"]
        message = choice["message"]
        assert (message["content"], choice["finish_reason"]) == (None, "tool_calls")
        (call,) = message["tool_calls"]
        assert call["type"] == "function"
        assert call["id"].startswith("call_")
        arguments = json.loads(call["function"]["arguments"])
        if call["function"]["name"] == "weather":
            assert arguments["city"] in ("Rome", "Oslo")
            assert 0 <= arguments["days"] <= 9
        else:
            assert (call["function"]["name"], arguments) == ("now", {})


def test_a_named_function_is_called_once(served: Served) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    (choice,) = served.call(CHAT, {**ASK, "tool_choice": named}).json["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert choice["finish_reason"] == "stop"  # OpenAI's reason for a named function


def test_a_stream_has_the_calls_of_the_whole_answer(served: Served) -> None:
    body = {**ASK, "tool_choice": "required", "parallel_tool_calls": False, "seed": 3}
    (whole,) = served.call(CHAT, body).json["choices"]
    chunks = [e["choices"][0] for e in served.call(CHAT, {**body, "stream": True}).events]
    calls = [call for c in chunks for call in c["delta"].get("tool_calls", ())]
    assert [c["index"] for c in calls] == [0]
    expected = [call["function"] for call in whole["message"]["tool_calls"]]
    assert [call["function"] for call in calls] == expected
    assert chunks[-1]["finish_reason"] == "tool_calls"
    assert not any(c["delta"].get("content") for c in chunks)


def test_a_strict_function_leaves_the_model_its_text(served: Served) -> None:
    strict = [{"type": "function", "function": {**WEATHER, "strict": True}}]
    letter = str(served.engine.tokenize("A")[0])
    body = {**ASK, "tools": strict, "max_tokens": 9, "logit_bias": {letter: 100}}
    (choice,) = served.call(CHAT, body).json["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("A" * 9, "length")


def test_a_schema_of_answers_beside_tools(served: Served) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": "no"}}}
    for seed in range(3):
        more = {"response_format": form, "temperature": 2, "seed": seed}
        (choice,) = served.call(CHAT, {**ASK, **more}).json["choices"]
        if choice["finish_reason"] == "stop":
            assert choice["message"]["content"].strip() == '"no"'
        else:
            assert choice["message"]["tool_calls"]


# ---- answers in parts

CALL = '{"name": "weather", "arguments": {"city": "Rome"}}'


def form(syntax: ToolSyntax, most: int | None = None) -> ChatForm:
    reader = AnswerReader(ChannelReader((), ""), ToolReader(syntax, {"weather", "now"}, most))
    return ChatForm("m", Usage([3]), [reader])


def deltas(text: str, size: int) -> list[Delta]:
    parts = [text[i : i + size] for i in range(0, len(text), size)]
    found = [Delta(0, [Part(part, 0, None)], tokens=n) for n, part in enumerate(parts)]
    return [*found, Delta(0, (), "stop", len(parts))]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_text_and_calls_in_parts(size: int) -> None:
    syntax = ToolSyntax("<tool_call>", "</tool_call>")
    text = f"Let me <see>.\n<tool_call>\n{CALL}\n</tool_call>\n<tool_call>{CALL}</tool_call>"
    (choice,) = form(syntax).whole(deltas(text, size))["choices"]
    assert choice["message"]["content"] == "Let me <see>.\n"
    calls = choice["message"]["tool_calls"]
    assert [json.loads(c["function"]["arguments"]) for c in calls] == [{"city": "Rome"}] * 2
    assert len({c["id"] for c in calls}) == 2
    assert choice["finish_reason"] == "tool_calls"
    streamed = form(syntax, 1)
    chunks = [
        c["choices"][0] for d in deltas(text, size) for c in streamed.chunks(d, has_usage=False)
    ]
    shown = "".join(c["delta"].get("content", "") for c in chunks)
    assert shown == "Let me <see>.\n"
    assert sum("tool_calls" in c["delta"] for c in chunks) == 1


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>{oops}</tool_call>",
        '<tool_call>{"name": "x", "arguments": {}}</tool_call>',
        "Hi",
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    (choice,) = form(ToolSyntax("<tool_call>", "</tool_call>")).whole(deltas(text, 2))["choices"]
    assert choice["message"]["content"] == text
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"


# ---- prompts


def history(arguments: Any = '{"city": "Rome", "days": 2}') -> list[dict[str, Any]]:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]


def test_the_template_shows_tools_calls_and_results(qwen: Served) -> None:
    text = prompt(qwen, messages=history(), tools=TOOLS)
    assert '"name":"weather"' in text.replace(": ", ":")
    assert '{"name": "weather", "arguments": {"city": "Rome", "days": 2}}' in text
    assert "<|im_start|>tool\nsunny<|im_end|>" in text
    assert prompt(qwen, messages=history({"city": "Rome", "days": 2}), tools=TOOLS) == text


def test_a_template_without_tools_gets_messages_about_them(plain: Served) -> None:
    text = prompt(plain, messages=history(), tools=TOOLS)
    assert text.startswith("<bos><|im_start|>system\nYou may call these functions:\n")
    assert '"description": "The weather"' in text
    call = '{"name": "weather", "arguments": {"city": "Rome", "days": 2}}'
    assert f"<|im_start|>assistant\n{call}<|im_end|>" in text
    assert "<|im_start|>user\nResult of weather:\nsunny<|im_end|>" in text
    system = [{"role": "system", "content": "Be brief."}, *HELLO]
    assert "Be brief.<|im_end|>" in prompt(plain, messages=system, tools=TOOLS)


def test_no_choice_shows_no_tools(qwen: Served) -> None:
    body = {"messages": HELLO, "max_tokens": 1, "tools": TOOLS}
    counts = [
        qwen.call(CHAT, {**body, **more}).json["usage"]["prompt_tokens"]
        for more in ({}, {"tool_choice": "none"}, {"tools": []}, {"tools": None})
    ]
    assert counts[0] > counts[1] == counts[2] == counts[3]


def test_the_official_client(served: Served) -> None:
    """A call, its result, and the answer."""
    openai = pytest.importorskip("openai", reason="the package openai is not installed")
    address = f"http://127.0.0.1:{served.port}/v1"
    with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as client:
        options = {"model": "tiny", "tools": TOOLS, "max_tokens": 200, "temperature": 0}
        named = {"type": "function", "function": {"name": "weather"}}
        asked = client.chat.completions.create(messages=HELLO, tool_choice=named, **options)
        message = asked.choices[0].message
        (call,) = message.tool_calls
        assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
        result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
        messages = [*HELLO, message, result]
        answer = client.chat.completions.create(messages=messages, **options)
        assert answer.usage.prompt_tokens > asked.usage.prompt_tokens


# ---- errors


def function(**fields: Any) -> Sequence[Any]:
    return [{"type": "function", "function": {"name": "f", **fields}}]


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"tools": "x"}, "tools", "a list of at most 128 tools"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type", "one of function"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "an object"),
        ({"tools": function(name="a b")}, "tools[0].function.name", "1 to 64 letters"),
        ({"tools": function(parameters=5)}, "tools[0].function.parameters", "an object"),
        ({"tools": function(strict=1)}, "tools[0].function.strict", "true or false"),
        ({"tool_choice": "required"}, "tool_choice", "expected only with tools"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice", "auto, none, required"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice.function.name",
            "expected one of weather, now, got 'x'",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]},
            "messages[0].tool_calls",
            "the assistant's",
        ),
        (
            {"messages": history("{oops")},
            "messages[1].tool_calls[0].function.arguments",
            "the JSON of an object",
        ),
        (
            {"tools": TOOLS, "guided_regex": "x"},
            "guided_regex",
            "expected a JSON schema, as there are tools",
        ),
        (
            {"tools": function(parameters={"not": {}}), "tool_choice": "required"},
            "tools",
            "llguidance refuses",
        ),
    ],
)
def test_wrong_requests(qwen: Served, body: Any, param: str, said: str) -> None:
    found = qwen.call(CHAT, {"messages": HELLO, **body})
    assert (found.status, found.error["param"]) == (400, param)
    assert said in found.error["message"]
