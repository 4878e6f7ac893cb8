"""Tools that a model may call, with the names of `litert_lm`."""

import abc
import collections.abc
import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

from jaxdelegate.errors import OptionError

_TYPES = {int: "integer", float: "number", bool: "boolean", str: "string"}
_ARGUMENT = re.compile(r"\s+([\w.]+)(?:\s*\(.*?\))?:\s*(.*)")
_SECTIONS = ("Returns:", "Raises:", "Yields:")


class Tool(abc.ABC):
    """What a model may call."""

    @abc.abstractmethod
    def get_tool_description(self) -> dict[str, Any]:
        """In OpenAI's form: `{"type": "function", "function": {"name", "description", ...}}`."""

    @abc.abstractmethod
    def execute(self, param: Mapping[str, Any]) -> Any:
        """The result of a call with arguments by name."""


class ToolEventHandler(abc.ABC):
    """Sees calls before tools run, and results before the model reads them."""

    @abc.abstractmethod
    def approve_tool_call(self, tool_call: dict[str, Any]) -> bool:
        """Whether a tool may be called; `tool_call` is in OpenAI's form."""

    @abc.abstractmethod
    def process_tool_response(self, tool_response: Any) -> Any:
        """What the model reads instead of a tool's result."""


class _FunctionTool(Tool):
    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def get_tool_description(self) -> dict[str, Any]:
        text = inspect.getdoc(self._function) or ""
        described, parameters = _described(text), inspect.signature(self._function).parameters
        hints = typing.get_type_hints(self._function)
        properties = {
            name: _schema(hints.get(name, p.annotation)) for name, p in parameters.items()
        }
        for name in properties.keys() & described.keys():
            properties[name]["description"] = described[name]
        required = [n for n, p in parameters.items() if p.default is inspect.Parameter.empty]
        return {
            "type": "function",
            "function": {
                "name": self._function.__name__,
                "description": text.split("\n")[0],
                "parameters": {"type": "object", "properties": properties, "required": required},
            },
        }

    def execute(self, param: Mapping[str, Any]) -> Any:
        return self._function(**param)


def tool_from_function(func: Callable[..., Any]) -> Tool:
    """A tool that calls a function.

    The docstring's first line describes it, its section `Args:` the parameters; their annotations
    are the types.
    """
    return _FunctionTool(func)


def tool_map(tools: Sequence[Callable[..., Any] | Tool]) -> dict[str, Tool]:
    """Tools by name. An OptionError: two have the same, or one none."""
    named: dict[str, Tool] = {}
    for tool in tools:
        wrapped = tool if _is_tool(tool) else tool_from_function(tool)  # type: ignore[arg-type]
        name = wrapped.get_tool_description().get("function", {}).get("name")
        if not name or name in named:
            raise OptionError(f"tools: expected different names of functions, got {name!r}")
        named[name] = wrapped
    return named


def _is_tool(tool: Any) -> TypeGuard[Tool]:
    """Also one of `litert_lm`'s class."""
    return hasattr(tool, "get_tool_description") and hasattr(tool, "execute")


def _schema(annotation: Any) -> dict[str, Any]:
    if annotation in _TYPES:
        return {"type": _TYPES[annotation]}
    kind, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if kind in (list, collections.abc.Sequence, collections.abc.Iterable):
        return {"type": "array", **({"items": _schema(arguments[0])} if arguments else {})}
    return {"type": "string"}


def _described(text: str) -> dict[str, str]:
    """The texts of a docstring's section `Args:` by parameter."""
    described, name, is_inside = dict[str, str](), "", False
    for line in text.split("\n"):
        if line.strip() in ("Args:", *_SECTIONS):
            is_inside, name = line.strip() == "Args:", ""
        elif is_inside and (match := _ARGUMENT.match(line)):
            name = match[1]
            described[name] = match[2].strip()
        elif is_inside and name and line.strip():
            described[name] += " " + line.strip()
        else:
            name = ""
    return described
