"""The messages of a chat, and the fields that say how they become a prompt."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxdelegate.lm.messages import KINDS
from jaxdelegate.serve.clients import shown
from jaxdelegate.serve.openai import files, tools
from jaxdelegate.serve.openai.fields import (
    FLAG,
    OBJECT,
    STRING,
    ApiError,
    Kind,
    integers,
    one_of,
)
from jaxdelegate.serve.openai.tools import Tools

_MAX_MESSAGES = 4096
ROLES = {"developer": "system", **{role: role for role in ("system", "user", "assistant", "tool")}}
_ROLE = one_of(*ROLES)
_CONTEXT = Kind(
    "an object without the names messages and add_generation_prompt",
    lambda value: isinstance(value, dict) and not {"messages", "add_generation_prompt"} & {*value},
)
CONTENT = Kind(
    "a string or a list of parts", lambda v: isinstance(v, str) or (isinstance(v, list) and v)
)
_BUDGET, _THINKING = integers(-1), one_of("enabled", "adaptive", "disabled")
_KIND = one_of("text", "image_url", "input_audio")
_MESSAGE = {"role", "content", "name", "reasoning", "reasoning_content", "channels"}
_MESSAGE |= {"tool_calls", "tool_call_id"}
# What clients return of answers, without a meaning for the model.
_MESSAGE |= {"annotations", "provider_specific_fields", "refusal", "thinking_blocks"}
_REFUSED = {"audio": "the model generates text only", "function_call": "use tool_calls"}
FIELDS: Mapping[str, Kind] = {
    "add_generation_prompt": FLAG,
    "chat_template_kwargs": _CONTEXT,
    "continue_final_message": FLAG,
    "messages": Kind(
        f"a list of messages, 1 to {_MAX_MESSAGES}",
        lambda value: isinstance(value, list) and 0 < len(value) <= _MAX_MESSAGES,
    ),
    "reasoning_effort": STRING,
    "thinking": OBJECT,  # Anthropic's, which clients pass on
    "thinking_token_budget": _BUDGET,  # vLLM's
}


@dataclasses.dataclass(frozen=True)
class Chat:
    """The messages of a chat, and how they become a prompt."""

    messages: Sequence[Mapping[str, Any]]  # as chat templates see them
    context: Mapping[str, Any]  # more variables of the template
    begins_answer: bool  # whether the prompt ends where an answer begins
    continues: bool  # the answer continues the last message
    tools: Tools  # what the answer may call
    budget: int | None = None  # the most tokens of its reasoning; None: any number
    budget_field: str = ""  # which says so
    # Images and sounds of the messages, in order: see `image_part` and `sound_part`.
    files: Sequence[dict[str, Any]] = ()


def chat(fields: Mapping[str, Any]) -> Chat:
    """The chat of a request's fields. An ApiError: a message is wrong."""
    messages = [_message(m, f"messages[{i}]") for i, m in enumerate(fields["messages"])]
    return chat_of(messages, fields)


def unknown(messages: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Fields of messages that the server does not know and that are not empty."""
    places: dict[str, str] = {}  # the first one of each name
    for number, message in enumerate(messages):
        for name, value in message.items():
            if name not in _MESSAGE and name not in _REFUSED and value not in (None, [], ""):
                places.setdefault(name, f"messages[{number}].{name}")
    return tuple(places.values())


def chat_of(messages: Sequence[dict[str, Any]], fields: Mapping[str, Any]) -> Chat:
    context = dict(fields.get("chat_template_kwargs", {}))
    budgets = _budgets(fields, context)
    if (effort := fields.get("reasoning_effort")) is not None:
        context.setdefault("reasoning_effort", effort)
        if effort == "none":
            context.setdefault("enable_thinking", False)
    continues = fields.get("continue_final_message", False)
    begins_answer = fields.get("add_generation_prompt", not continues)
    if continues and begins_answer:
        raise ApiError("expected false with continue_final_message", param="add_generation_prompt")
    if continues and messages[-1]["role"] != "assistant":
        raise ApiError(
            "expected the last message to be the assistant's", param="continue_final_message"
        )
    field, budget = next(iter(budgets.items()), ("", None))
    parts = [part for message in messages for part in message["content"]]
    found = [{**part} for part in parts if part["type"] in KINDS]
    for part in parts:
        if part["type"] in KINDS:  # templates know that there is one
            for name in part.keys() - {"type"}:
                del part[name]
    return Chat(
        tools.with_names(messages),
        context,
        begins_answer,
        continues,
        tools.tools(fields),
        budget=None if context.get("enable_thinking") is False else budget,
        budget_field=field,
        files=found,
    )


def _budgets(fields: Mapping[str, Any], context: dict[str, Any]) -> dict[str, int]:
    """The thinking budget, by field; `context` gets whether the model thinks at all."""
    found = {"thinking_token_budget": fields.get("thinking_token_budget")}
    if (thinking := fields.get("thinking")) is not None:
        kind = _THINKING.checked(thinking.get("type"), "thinking.type")
        context.setdefault("enable_thinking", kind != "disabled")
        found["thinking.budget_tokens"] = thinking.get("budget_tokens")
    read = {name: _BUDGET.checked(n, name) for name, n in found.items() if n is not None}
    if len({*read.values()}) > 1:
        raise ApiError("give one of them, or the same number", param=" and ".join(read))
    return {name: n for name, n in read.items() if n >= 0}


def said(role: str, parts: Iterable[str | dict[str, Any]]) -> dict[str, Any]:
    typed = [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts]
    return {"role": role, "content": typed}


def _message(message: Any, where: str) -> dict[str, Any]:
    role = _ROLE.checked(OBJECT.checked(message, where).get("role"), f"{where}.role")
    for name, why in _REFUSED.items():
        if message.get(name):
            raise ApiError(f"{why}, got {shown(message[name])}", param=f"{where}.{name}")
    parts = _parts(message.get("content"), role, f"{where}.content")
    checked = said(ROLES[role], parts)
    if message.get("tool_calls"):
        if role != "assistant":
            raise ApiError("expected only in the assistant's", param=f"{where}.tool_calls")
        checked["tool_calls"] = tools.called(message["tool_calls"], f"{where}.tool_calls")
    if "reasoning" in message:  # vLLM's name
        message = {"reasoning_content": message["reasoning"], **message}
    for name in ("name", "reasoning_content", "tool_call_id"):
        if (text := message.get(name)) is not None:
            checked[name] = STRING.checked(text, f"{where}.{name}")
    return checked


def _parts(content: Any, role: str, where: str) -> list[Any]:
    if content is None and role == "assistant":
        return []
    if isinstance(CONTENT.checked(content, where), str):
        return [content]
    return [_part(part, role, f"{where}[{i}]") for i, part in enumerate(content)]


def _part(part: Any, role: str, where: str) -> Any:
    kind = _KIND.checked(OBJECT.checked(part, where).get("type"), f"{where}.type")
    if kind == "text":
        return STRING.checked(part.get("text"), f"{where}.text")
    if role != "user":
        nouns = "images" if kind == "image_url" else "sounds"
        raise ApiError(f"expected {nouns} only in the user's messages", param=where)
    return (files.image_part if kind == "image_url" else files.sound_part)(part, where)
