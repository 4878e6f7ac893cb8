"""The fields of OpenAI's API for tools: what may be called, and calls in messages."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxdelegate.serve.clients import shown
from jaxdelegate.serve.openai.fields import FLAG, OBJECT, STRING, ApiError, Kind, one_of

_MOST_TOOLS = 128  # OpenAI's
_NAME = Kind(
    "1 to 64 letters, digits, underscores, dots and hyphens",
    lambda v: isinstance(v, str) and re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", v),
)
_CHOICE = Kind(
    "auto, none, required, or an object that names a function",
    lambda v: isinstance(v, dict) or (isinstance(v, str) and v in ("auto", "none", "required")),
)
_FUNCTION = one_of("function")
FIELDS: Mapping[str, Kind] = {
    "parallel_tool_calls": FLAG,
    "tool_choice": _CHOICE,
    "tools": Kind(
        f"a list of at most {_MOST_TOOLS} tools",
        lambda value: isinstance(value, list) and len(value) <= _MOST_TOOLS,
    ),
}


class Tools(NamedTuple):
    """The tools of a request."""

    shown: Sequence[Mapping[str, Any]] = ()  # in OpenAI's form, for the prompt; empty: none
    callable: Sequence[Mapping[str, Any]] = ()  # the functions that the answer may call
    is_required: bool = False  # the answer is calls only
    is_strict: bool = False  # calls in answers match their schemas
    is_named: bool = False  # the request names the function
    most: int | None = None  # how many calls the answer may have; None: several


def tools(fields: Mapping[str, Any]) -> Tools:
    listed = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(fields.get("tools", ()))]
    choice = fields.get("tool_choice", "auto")
    if not listed and choice not in ("auto", "none"):
        raise ApiError("expected only with tools", param="tool_choice")
    if not listed or choice == "none":
        return Tools()
    functions = [tool["function"] for tool in listed]
    name = _named(choice, [function["name"] for function in functions])
    return Tools(
        listed,
        [function for function in functions if name in (None, function["name"])],
        is_required=choice == "required" or name is not None,
        is_strict=any(function.get("strict") for function in functions),
        is_named=name is not None,
        most=None if fields.get("parallel_tool_calls", True) and name is None else 1,
    )


def _tool(tool: Any, where: str) -> dict[str, Any]:
    _FUNCTION.checked(OBJECT.checked(tool, where).get("type"), f"{where}.type")
    function = OBJECT.checked(tool.get("function"), f"{where}.function")
    check_function(function, f"{where}.function")
    known = {k: v for k, v in function.items() if v is not None}
    return {"type": "function", "function": {"parameters": {"type": "object"}, **known}}


def check_function(function: Mapping[str, Any], where: str) -> None:
    _NAME.checked(function.get("name"), f"{where}.name")
    for name, kind in (("description", STRING), ("parameters", OBJECT), ("strict", FLAG)):
        if function.get(name) is not None:
            kind.checked(function[name], f"{where}.{name}")


def _named(choice: Any, names: Sequence[str]) -> str | None:
    if isinstance(choice, str):
        return None
    function = OBJECT.checked(choice.get("function"), "tool_choice.function")
    name = STRING.checked(function.get("name"), "tool_choice.function.name")
    if name not in names:
        expected = f"expected one of {', '.join(names)}, got {shown(name)}"
        raise ApiError(expected, param="tool_choice.function.name")
    return str(name)


def called(calls: Any, where: str) -> list[dict[str, Any]]:
    """The `tool_calls` of a message, with arguments as objects, which templates show."""
    listed = Kind("a list of calls", lambda value: isinstance(value, list)).checked(calls, where)
    return [_call(call, f"{where}[{i}]") for i, call in enumerate(listed)]


def _call(call: Any, where: str) -> dict[str, Any]:
    function = OBJECT.checked(OBJECT.checked(call, where).get("function"), f"{where}.function")
    identity = None if call.get("id") is None else STRING.checked(call["id"], f"{where}.id")
    return call_of(function, identity, f"{where}.function")


def call_of(function: Mapping[str, Any], identity: str | None, where: str) -> dict[str, Any]:
    """The call of a function's name and arguments, as chat templates see it."""
    name = STRING.checked(function.get("name"), f"{where}.name")
    arguments, place = function.get("arguments") or {}, f"{where}.arguments"
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise ApiError("expected the JSON of an object", param=place) from None
    read = {"name": name, "arguments": OBJECT.checked(arguments, place)}
    named = {} if identity is None else {"id": identity}
    return {**named, "type": "function", "function": read}


def with_names(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    names: dict[str, str] = {}
    named = []
    for message in messages:
        for call in message.get("tool_calls", ()):
            if "id" in call:
                names[call["id"]] = call["function"]["name"]
        name = names.get(message.get("tool_call_id", ""))
        is_result = message["role"] == "tool" and name is not None
        named.append({"name": name, **message} if is_result else message)
    return named
