"""Prompts that describe tools: by the template where it shows them, else in a message."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxdelegate.errors import ModelError
from jaxdelegate.lm.messages import text_of
from jaxdelegate.lm.templates import JsonMessage, Renderer
from jaxdelegate.lm.tool_calls import Call, ToolSyntax, as_text

_FUNCTIONS = """You may call these functions:
{tools}
To call some, answer with nothing but an object of JSON for each:
{{"name": "...", "{arguments}": {{...}}}}"""


class ToolRenderer:
    """Renders messages with tools, calls and their results."""

    def __init__(
        self, renderer: Renderer, syntax: ToolSyntax, tools: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """`syntax`: of the calls that the template shows; `tools`: in OpenAI's form."""
        self._renderer, self._syntax, self._tools = renderer, syntax, list(tools)

    @property
    def syntax(self) -> ToolSyntax:
        """How the model writes calls: as JSON where the template shows no tools."""
        return self._syntax if self._renderer.shows_tools else ToolSyntax()

    def render(
        self, messages: Sequence[JsonMessage], context: Mapping[str, Any], *, ends: bool
    ) -> str:
        """See `ChatTemplate`; the messages are those that `stated` returns."""
        renderer = self._renderer
        messages = [single for message in messages for single in _single_results(message)]
        if not self._tools and not any(map(_is_of_tools, messages)):
            return renderer.render(messages, context, ends=ends)
        if renderer.shows_tools:
            more = {"tools": self._tools} if self._tools else {}
            return renderer.render(messages, {**context, **more}, ends=ends)
        plain = [*map(self._plain, messages)]
        if not self._tools:
            return renderer.render(plain, context, ends=ends)
        shown = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in self._tools)
        text = _FUNCTIONS.format(tools=shown, arguments=self.syntax.arguments)
        try:
            return renderer.render(_with_text(plain, "system", text), context, ends=ends)
        except ModelError:  # some templates have no system messages
            return renderer.render(_with_text(plain, "user", text), context, ends=ends)

    def _plain(self, message: JsonMessage) -> JsonMessage:
        """A message without calls, or results of tools, for a template that does not show them."""
        if message["role"] == "tool":
            name = message.get("name") or "the function"
            return _said("user", f"Result of {name}:\n{text_of(message)}")
        if calls := message.get("tool_calls"):
            written = [Call(c["function"]["name"], c["function"]["arguments"]) for c in calls]
            both = filter(None, (text_of(message), as_text(self.syntax, written)))
            return _said("assistant", "\n".join(both))
        return message


def _is_of_tools(message: JsonMessage) -> bool:
    return message["role"] == "tool" or bool(message.get("tool_calls"))


def _single_results(message: JsonMessage) -> Iterator[JsonMessage]:
    """A message of the role `tool` for each result in it, with the result's text."""
    results = [part for part in message["content"] if part["type"] == "tool_response"]
    if not results:
        yield message
    for part in results:
        text = part.get("response")
        if not isinstance(text, str):
            text = json.dumps(text, ensure_ascii=False, default=str)
        yield {**_said("tool", text), "name": part.get("name", "")}


def _with_text(messages: Sequence[JsonMessage], role: str, text: str) -> list[JsonMessage]:
    """Messages with a text before what a role says first; the system's is the first message."""
    places = range(1) if role == "system" else range(len(messages))
    place = next((i for i in places if messages[i]["role"] == role), None)
    if place is None:
        return [_said(role, text), *messages]
    said = _said(role, f"{text}\n\n{text_of(messages[place])}")
    return [*messages[:place], said, *messages[place + 1 :]]


def _said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}]}
