"""Reads requests of /v1/responses: items become the messages of a chat."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from jaxdelegate.serve.clients import shown
from jaxdelegate.serve.json_objects import Buffer
from jaxdelegate.serve.openai import files, messages, requests, tools
from jaxdelegate.serve.openai.fields import OBJECT, STRING, ApiError, Kind, integers, one_of

_MOST_ITEMS = 4096
_SCORES = "message.output_text.logprobs"
# What belongs to tools that are refused, and to keys that reasoning is not encrypted with.
_ABSENT = (
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
)
_INCLUDED = one_of(_SCORES, *_ABSENT)
_INPUT = Kind(
    f"a string, or a list of 1 to {_MOST_ITEMS} items",
    lambda v: isinstance(v, str) or (isinstance(v, list) and 0 < len(v) <= _MOST_ITEMS),
)
_ITEM = one_of("message", "function_call", "function_call_output", "reasoning")
_FUNCTION = one_of("function")
_ROLE = one_of("user", "assistant", "system", "developer")
_TEXT = Kind(
    "input_text, output_text, refusal or, of the user, input_image or input_audio",
    lambda v: v in ("input_text", "output_text", "text", "refusal", "reasoning_text"),
)
_OF_CHATS = {"add_generation_prompt", "continue_final_message", "logprobs", "messages", "n"}
_OF_CHATS |= {"max_completion_tokens", "max_tokens", "prompt_logprobs", "response_format"}
_OF_CHATS |= {"stream_options"}
_FIELDS: Mapping[str, Kind] = {
    **{name: kind for name, kind in requests.CHAT.items() if name not in _OF_CHATS},
    "include": Kind("a list", lambda v: isinstance(v, list)),
    "input": _INPUT,
    "instructions": STRING,
    "max_output_tokens": integers(1),
    "metadata": OBJECT,
    "reasoning": OBJECT,
    "text": OBJECT,
}
# Fields of chats, and where they are here.
_NAMES = {
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "tool_choice.function": "tool_choice",
}
_STORED = "nothing is stored: send the earlier items in input"
_NEUTRAL: Mapping[str, requests.Neutral] = {
    **requests.NEUTRAL,
    "background": ((False,), _STORED.partition(":")[0]),
    "context_management": (([],), "input is not made shorter"),
    "conversation": ((), _STORED),
    "moderation": ((), "the server has no moderation"),
    "previous_response_id": ((), _STORED),
    "prompt": ((), _STORED),
    "text.verbosity": requests.NEUTRAL["verbosity"],
    "truncation": (("disabled",), "input is not cut"),
}
# No calls of built-in tools come, and events have nothing that obfuscates their lengths.
_IGNORED = {*requests.IGNORED, "max_tool_calls", "prompt_cache_options", "stream_options"}


def response_request(body: Buffer) -> requests.TextRequest:
    """Read a request of /v1/responses. An ApiError, or a RequestError of invalid JSON."""
    fields, ignored = requests.checked(body, _FIELDS, {"input"}, _NEUTRAL, _IGNORED)
    included = [
        _INCLUDED.checked(name, f"include[{i}]") for i, name in enumerate(fields.get("include", ()))
    ]
    top, has_scores = fields.get("top_logprobs", 0), _SCORES in included
    if top and not has_scores:
        raise ApiError(f"expected only with {_SCORES} in include", param="top_logprobs")
    asked = {**fields, **_as_in_chats(fields)}
    messages_read = _messages(fields)
    try:
        request = requests.text_request(
            asked,
            fields.get("max_output_tokens"),
            chat=messages.chat_of(messages_read, asked),
            has_scores=has_scores,
            top=top,
            echo=_echo(fields),
            ignored=ignored,
        )
    except ApiError as error:
        raise _renamed(error) from None
    field = _NAMES.get(request.grammar_field, request.grammar_field)
    return dataclasses.replace(request, grammar_field=field)


def _renamed(error: ApiError) -> ApiError:
    """The error with a field's name in this API instead of that in chats."""
    param = error.param or ""
    chats = next((name for name in _NAMES if param.startswith(name)), "")
    if not chats:
        return error
    name = _NAMES[chats] + param.removeprefix(chats)
    message = str(error).removeprefix(f"{param}: ")
    return ApiError(message, error.status, param=name, code=error.code)


def _as_in_chats(fields: Mapping[str, Any]) -> dict[str, Any]:
    asked: dict[str, Any] = {}
    listed = enumerate(fields.get("tools", ()))
    asked["tools"] = [_tool(tool, f"tools[{i}]") for i, tool in listed]
    asked["tool_choice"] = _choice(fields.get("tool_choice", "auto"))
    effort = fields.get("reasoning", {}).get("effort")
    if effort is not None:
        asked["reasoning_effort"] = STRING.checked(effort, "reasoning.effort")
    text = fields.get("text", {})
    if text.get("verbosity") is not None:
        requests.check_neutral("text.verbosity", text["verbosity"], _NEUTRAL)
    if text.get("format") is not None:
        asked["response_format"] = _format(OBJECT.checked(text["format"], "text.format"))
    return asked


def _format(value: Mapping[str, Any]) -> dict[str, Any]:
    if value.get("type") != "json_schema":
        return dict(value)
    return {"type": "json_schema", "json_schema": {k: v for k, v in value.items() if k != "type"}}


def _tool(tool: Any, where: str) -> dict[str, Any]:
    """A function as chats have it, whose fields are those of the tool itself here."""
    kind = OBJECT.checked(tool, where).get("type")
    if kind != "function":
        expected = "expected 'function', as the server runs no tools itself"
        raise ApiError(f"{expected}, got {shown(kind)}", param=f"{where}.type")
    tools.check_function(tool, where)
    return {"type": kind, "function": {name: v for name, v in tool.items() if name != "type"}}


def _choice(choice: Any) -> Any:
    if not isinstance(choice, dict):
        return choice
    _FUNCTION.checked(choice.get("type"), "tool_choice.type")
    return {"type": "function", "function": {"name": choice.get("name")}}


# ---- items


def _messages(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Messages as chat templates see them; items of one turn of the assistant are one."""
    items = fields["input"]
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    found: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        message = _message(item, f"input[{number}]")
        if not message:
            continue
        if found and _is_of_one_turn(found[-1], message):
            calls = [*found[-1].get("tool_calls", ()), *message.get("tool_calls", ())]
            content = [*found[-1]["content"], *message["content"]]
            found[-1] |= message | {"content": content} | ({"tool_calls": calls} if calls else {})
        else:
            found.append(message)
    if not found:
        raise ApiError("expected an item with a text or a call", param="input")
    if "instructions" in fields:
        texts = [fields["instructions"]]
        if found[0]["role"] == "system":  # templates show one, at the beginning
            texts += ["\n\n", *(part["text"] for part in found.pop(0)["content"])]
        found.insert(0, messages.said("system", texts))
    return found


def _is_of_one_turn(before: Mapping[str, Any], message: Mapping[str, Any]) -> bool:
    """Whether both are the assistant's: reasoning, then text, then calls."""
    if not before["role"] == message["role"] == "assistant":
        return False
    is_text_late = bool(message["content"]) and (before["content"] or "tool_calls" in before)
    is_reasoning_late = "reasoning_content" in message and (
        before["content"] or "tool_calls" in before or "reasoning_content" in before
    )
    return not (is_text_late or is_reasoning_late)


def _message(item: Any, where: str) -> dict[str, Any]:
    kind = OBJECT.checked(item, where).get("type")
    if kind == "item_reference":
        raise ApiError(f"{_STORED}, not references", param=where)
    if kind is None and "role" in item:
        kind = "message"
    _ITEM.checked(kind, f"{where}.type")
    if kind == "message":
        role = messages.ROLES[_ROLE.checked(item.get("role"), f"{where}.role")]
        return messages.said(role, [*_parts(item.get("content"), role, f"{where}.content")])
    if kind == "function_call":
        identity = STRING.checked(item.get("call_id"), f"{where}.call_id")
        call = tools.call_of(item, identity, where)
        return {**messages.said("assistant", ()), "tool_calls": [call]}
    if kind == "function_call_output":
        texts = [*_texts(item.get("output"), f"{where}.output")]
        identity = STRING.checked(item.get("call_id"), f"{where}.call_id")
        return {**messages.said("tool", texts), "tool_call_id": identity}
    said = "".join(_texts(item.get("content") or "", f"{where}.content"))
    return {**messages.said("assistant", ()), "reasoning_content": said} if said else {}


def _parts(content: Any, role: str, where: str) -> Iterator[str | dict[str, Any]]:
    if role != "user" or not isinstance(content, list):
        yield from _texts(content, where)
        return
    for number, part in enumerate(messages.CONTENT.checked(content, where)):
        place = f"{where}[{number}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "input_image":
            yield files.image_part(part, place)
        elif kind == "input_audio":
            yield files.sound_part(part, place)
        else:
            yield from _texts([part], where, number)


def _texts(content: Any, where: str, first: int = 0) -> Iterator[str]:
    if isinstance(messages.CONTENT.checked(content, where), str):
        yield content
        return
    for number, part in enumerate(content, first):
        place = f"{where}[{number}]"
        kind = _TEXT.checked(OBJECT.checked(part, place).get("type"), f"{place}.type")
        name = "refusal" if kind == "refusal" else "text"
        yield STRING.checked(part.get(name), f"{place}.{name}")


# ---- what responses show of their requests


def _echo(fields: Mapping[str, Any]) -> dict[str, Any]:
    text, reasoning = fields.get("text", {}), fields.get("reasoning", {})
    echoed = ("instructions", "max_output_tokens", "temperature", "top_p")
    unset = ("strict", "parameters")
    return {
        **{name: fields.get(name) for name in echoed},
        "background": False,
        "metadata": fields.get("metadata", {}),
        "parallel_tool_calls": fields.get("parallel_tool_calls", True),
        "previous_response_id": None,
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "service_tier": "default",
        "store": False,
        "text": {"format": text.get("format") or {"type": "text"}},
        "tool_choice": fields.get("tool_choice", "auto"),
        "tools": [{**dict.fromkeys(unset), **tool} for tool in fields.get("tools", ())],
        "top_logprobs": fields.get("top_logprobs", 0),
        "truncation": "disabled",
    }
