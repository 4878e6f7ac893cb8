"""How models write calls of tools in their answers: each family has a syntax of its own.

Source: LiteRT-LM's runtime/conversation/model_data_processor and runtime/components/tool_use, and
the chat templates of the families.
"""

import ast
import dataclasses
import json
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from jaxdelegate.bundles.metadata import LlmMetadata
from jaxdelegate.lm.text_stream import overlap

_MOST_NESTED = 64
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_KEY = re.compile(r"[^:{}\[\],\s]+")
_WORDS = {"true": True, "false": False, "null": None, "none": None}
_WORDS |= {"True": True, "False": False, "None": None}


class Call(NamedTuple):
    """A call of a tool."""

    name: str
    arguments: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class ToolSyntax:
    """How a model writes calls.

    Attributes:
        start: the text before calls; empty: an answer is text, or calls and nothing else.
        end: the text after them; empty: the answer's end.
        form: "json": objects with `name` and `arguments`; "fc": `call:name{key:value}`; "python":
            `name(key=value)`.
        quote: around strings of the form "fc".
        arguments: the key of the arguments of the form "json".
    """

    start: str = ""
    end: str = ""
    form: Literal["json", "fc", "python"] = "json"
    quote: str = ""
    arguments: str = "arguments"

    def calls(self, text: str) -> list[Call] | None:
        """The calls in the text between `start` and `end`; None: it has another form."""
        try:
            if self.form == "python":
                calls = _python_calls(text.strip())
            elif self.form == "fc":
                calls = _fc_calls(text.strip(), self.quote)
            else:
                calls = _json_calls(text)
            json.dumps(calls, allow_nan=False)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            return None
        return calls


_QWEN = ToolSyntax("<tool_call>", "</tool_call>")
_FUNCTION_GEMMA = ToolSyntax("<start_function_call>", "<end_function_call>", "fc", "<escape>")
_GEMMA_4 = ToolSyntax("<|tool_call>", "<tool_call|>", "fc", '<|"|>')
_GEMMA_3 = ToolSyntax("```tool_code\n", "```", "python")
_LFM = ToolSyntax("<|tool_call_start|>", "<|tool_call_end|>", "python")
_MISTRAL = ToolSyntax("[TOOL_CALLS]")
_BY_TYPE = {
    "qwen3": _QWEN,
    "qwen2p5": _QWEN,
    "function_gemma": _FUNCTION_GEMMA,
    "gemma4": _GEMMA_4,
    "gemma3": _GEMMA_3,
    "gemma3n": _GEMMA_3,
    "lfm2": _LFM,
    "minicpm5": _QWEN,
}
# Templates show the syntax; the type of a bundle may be generic.
_SHOWN = (_GEMMA_4, _FUNCTION_GEMMA, _LFM, _QWEN, _MISTRAL)


def syntax_of(metadata: LlmMetadata, template: str | None) -> ToolSyntax:
    """The syntax of a bundle's model, by its template, its type and what it declares."""
    shown = (s for s in _SHOWN if template and s.start in template)
    known = next(shown, _BY_TYPE.get(metadata.model_type))
    if known is None:
        is_llama = template is not None and '"parameters"' in template
        return ToolSyntax(arguments="parameters" if is_llama else "arguments")
    declared = getattr(metadata.proto.llm_model_type, metadata.model_type, None)
    return dataclasses.replace(
        known,
        start=getattr(declared, "code_fence_start", "") or known.start,
        end=getattr(declared, "code_fence_end", "") or known.end,
        quote=getattr(declared, "open_quote", "") or known.quote,
    )


class ToolReader:
    """Splits an answer that arrives in parts into text and calls."""

    def __init__(self, syntax: ToolSyntax, names: Collection[str], most: int | None = None) -> None:
        """No text yet.

        Args:
            syntax: of the calls.
            names: of the tools: what calls others is text.
            most: how many calls are taken; None: all.
        """
        self._syntax, self._names, self._most = syntax, names, most
        self._text, self._is_text, self._is_call, self._count = "", False, False, 0

    def add(self, text: str) -> Iterator[str | Call]:
        """What this part completes."""
        self._text += text
        if not self._syntax.start:  # an answer that begins as JSON may be calls
            self._is_text |= self._text.strip()[:1] not in ("", "{", "[")
            if self._is_text:
                yield from self._shown(len(self._text))
            return
        while True:
            mark = self._syntax.end if self._is_call else self._syntax.start
            place = self._text.find(mark) if mark else -1
            if place < 0:
                break
            if self._is_call:
                text, self._text = self._text[:place], self._text[place + len(mark) :]
                yield from self._called(text, mark)
            else:
                yield from self._shown(place)
                self._text = self._text[len(mark) :]
            self._is_call = not self._is_call
        if not self._is_call:
            yield from self._shown(len(self._text) - overlap(self._text, self._syntax.start))

    def end(self) -> Iterator[str | Call]:
        """The rest."""
        text, self._text = self._text, ""
        if self._is_call or not (self._syntax.start or self._is_text):
            yield from self._called(text, "")
        elif text:
            yield text

    def _shown(self, count: int) -> Iterator[str]:
        text, self._text = self._text[:count], self._text[count:]
        if text and not (self._count and text.isspace()):  # between calls
            yield text

    def _called(self, text: str, mark: str) -> Iterator[str | Call]:
        calls = self._syntax.calls(text)
        if not calls or any(call.name not in self._names for call in calls):
            shown = (self._syntax.start if self._is_call else "") + text + mark
            if shown:
                yield shown
            return
        for call in calls:
            if self._most is None or self._count < self._most:
                self._count += 1
                yield call


def _json_calls(text: str) -> list[Call]:
    values, decoder, at = list[Any](), json.JSONDecoder(), 0
    text = text.strip()
    while at < len(text):  # objects, or lists of them, one after the other
        value, at = decoder.raw_decode(text, at)
        values += value if isinstance(value, list) else [value]
        at += len(text[at:]) - len(text[at:].lstrip(" \t\r\n;,"))
    return [_json_call(value) for value in values]


def _json_call(value: Any) -> Call:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError("expected an object with a name")
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(arguments, dict):
        raise ValueError("expected an object of arguments")
    return Call(value["name"], arguments)


def _python_calls(text: str) -> list[Call]:
    nodes: list[ast.expr] = []
    for statement in ast.parse(text).body:
        if not isinstance(statement, ast.Expr):
            raise ValueError("expected calls")
        value = statement.value
        nodes += value.elts if isinstance(value, ast.List) else [value]
    return [_python_call(node) for node in nodes]


def _python_call(node: ast.expr) -> Call:
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "print" and len(node.args) == 1:
        node = node.args[0]  # Gemma writes print(call())
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("expected a call with keywords")
    if any(word.arg is None for word in node.keywords):
        raise ValueError("expected keywords")
    return Call(ast.unparse(node.func), {str(w.arg): _python_value(w.value) for w in node.keywords})


def _python_value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [*map(_python_value, node.elts)]
    if isinstance(node, ast.Dict):
        keys = [ast.literal_eval(key) for key in node.keys if key is not None]
        return dict(zip(keys, map(_python_value, node.values), strict=True))
    value = ast.literal_eval(node)
    if not isinstance(value, str | int | float | bool | None):
        raise ValueError("expected a value of JSON")
    return value


def _fc_calls(text: str, quote: str) -> list[Call]:
    reader, calls = _FcReader(text, quote), list[Call]()
    while not reader.is_at_end:
        calls.append(reader.call())
    return calls


class _FcReader:
    """Reads `call:name{key:value,...}`, where strings are between two quotes."""

    def __init__(self, text: str, quote: str) -> None:
        self._text, self._quote, self._at = text, quote, 0

    @property
    def is_at_end(self) -> bool:
        self._skip()
        return self._at >= len(self._text)

    def call(self) -> Call:
        self._take("call:")
        name = self._match(_KEY)
        return Call(name, self._object(0))

    def _object(self, depth: int) -> dict[str, Any]:
        self._take("{")
        fields: dict[str, Any] = {}
        while not self._has("}"):
            if fields:
                self._take(",")
            key = self._string() if self._is_quoted else self._match(_KEY)
            self._take(":")
            fields[key] = self._value(depth + 1)
        return fields

    def _value(self, depth: int) -> Any:
        if depth > _MOST_NESTED:
            raise ValueError("nested too deeply")
        self._skip()
        if self._is_quoted:
            return self._string()
        if self._text.startswith("{", self._at):
            return self._object(depth)
        if self._has("["):
            values: list[Any] = []
            while not self._has("]"):
                if values:
                    self._take(",")
                values.append(self._value(depth + 1))
            return values
        if number := _NUMBER.match(self._text, self._at):
            self._at = number.end()
            return json.loads(number[0])
        return _WORDS.get(word := self._match(_KEY), word)

    @property
    def _is_quoted(self) -> bool:
        self._skip()
        return self._text.startswith(self._quote, self._at)

    def _string(self) -> str:
        begin = self._at + len(self._quote)
        end = self._text.index(self._quote, begin)
        self._at = end + len(self._quote)
        return self._text[begin:end]

    def _has(self, mark: str) -> bool:
        self._skip()
        has = self._text.startswith(mark, self._at)
        self._at += len(mark) * has
        return has

    def _take(self, mark: str) -> None:
        if not self._has(mark):
            raise ValueError(f"expected {mark!r} at {self._at}")

    def _match(self, pattern: re.Pattern[str]) -> str:
        self._skip()
        if not (match := pattern.match(self._text, self._at)):
            raise ValueError(f"expected a name at {self._at}")
        self._at = match.end()
        return match[0]

    def _skip(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1


def as_text(syntax: ToolSyntax, calls: Sequence[Call]) -> str:
    """Calls as JSON, for templates that show none."""
    shown = [{"name": call.name, syntax.arguments: call.arguments} for call in calls]
    return "\n".join(json.dumps(call, ensure_ascii=False) for call in shown)
