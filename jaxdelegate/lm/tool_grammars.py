"""Grammars of answers that call tools: which tokens may come next."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxdelegate.bundles.tokenizers import Tokenizer
from jaxdelegate.errors import OptionError
from jaxdelegate.lm.constraints import Grammar
from jaxdelegate.lm.schema_checks import GRAMMAR
from jaxdelegate.lm.tool_calls import ToolSyntax

_MOST_CALLS = 16  # in an answer
_NUMBERS = {"integer": "INTEGER", "number": "NUMBER"}
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
_TERMINALS = r"""
INTEGER: /-?(0|[1-9][0-9]{0,17})/
NUMBER: /-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,3})?/
KEY: /[A-Za-z_][A-Za-z0-9_]*/
TEXT: /(.|\n)*/
PLAIN: /[^{\[\s](.|\n)*/
SEPARATOR: /\s{1,2}/
"""


def tool_grammar(
    syntax: ToolSyntax,
    tools: Sequence[Mapping[str, Any]],
    tokenizer: Tokenizer,
    *,
    has_text: bool,
    most: int | None = None,
    otherwise: Grammar | None = None,
) -> Grammar:
    """What an answer with calls of tools matches.

    Args:
        syntax: of the calls.
        tools: `name`, and the JSON schema `parameters`, of those that may be called.
        tokenizer: knows which marks are tokens of their own.
        has_text: whether the answer may also be text, or have text before calls.
        most: how many calls it may have; None: several.
        otherwise: what an answer without calls matches; None: any text, also before calls.

    Raises:
        OptionError: `otherwise` is something else than a JSON schema.

    Arguments of the forms "fc" and "python" have the types and names of the schema, required ones
    first; other keywords of schemas have no effect there.
    """
    rules = _Rules(syntax, tokenizer)
    call = rules.any_call(tools)
    count = 1 if not syntax.start else most or _MOST_CALLS  # marks tell calls apart
    others = f" (SEPARATOR? {call}){{0,{count - 1}}}" if count > 1 else ""
    if not has_text:
        start = call + others
    elif otherwise is not None:
        if otherwise.kind != "json_schema":
            raise OptionError("expected a JSON schema, as there are tools that may be called")
        schema = json.dumps({**json.loads(otherwise.text), "x-guidance": GRAMMAR})
        start = f"{call}{others} | %json {schema}"
    elif syntax.start:
        start = f"TEXT | {rules.text_before()} {call.removeprefix(rules.start)}{others}"
    else:
        start = f"PLAIN | {call}"
    return Grammar("lark", "\n".join([f"start: {start}", *rules.lines, _TERMINALS]))


class _Rules:
    """Rules of llguidance's form of Lark, which are named as they are made."""

    def __init__(self, syntax: ToolSyntax, tokenizer: Tokenizer) -> None:
        self._syntax, self._tokenizer = syntax, tokenizer
        self.lines: list[str] = []
        self._numbers = itertools.count()
        self.start = self._mark(syntax.start)

    def _mark(self, text: str) -> str:
        """A text, or the special token that it is."""
        token = self._tokenizer.token_id(text)
        if token is not None and token in self._tokenizer.special_ids:
            return f"<[{token}]>"
        return json.dumps(text) if text else ""

    def _rule(self, body: str, prefix: str = "r") -> str:
        name = f"{prefix}{next(self._numbers)}"
        self.lines.append(f"{name}: {body}")
        return name

    def text_before(self) -> str:
        """A text that ends with the mark before calls."""
        if self.start.startswith("<"):
            return f"TEXT {self.start}"
        name = f"before{next(self._numbers)}"
        self.lines.append(f"{name}[lazy]: /(.|\\n)*/ {self.start}")
        return name

    def any_call(self, tools: Sequence[Mapping[str, Any]]) -> str:
        calls = " | ".join(self._rule(self._call(tool), "call") for tool in tools)
        end = self._mark(self._syntax.end)
        gap = '"\\n"' if self._syntax.form == "json" and end else ""
        before_end = '"\\n"' if self._syntax.form == "python" and end else gap
        return " ".join(filter(None, (self.start, gap, f"({calls})", before_end, end)))

    def _call(self, tool: Mapping[str, Any]) -> str:
        name, schema = tool["name"], tool.get("parameters") or {}
        if not {*schema} - {"type", "properties", "description"} and not schema.get("properties"):
            schema = _NO_PARAMETERS
        if self._syntax.form == "json":
            return self._json({"const": name}, schema)
        if self._syntax.form == "fc":
            return f'{json.dumps(f"call:{name}{{")} {self._fields(schema, ":")} "}}"'
        return f'{json.dumps(f"{name}(")} {self._fields(schema, "=")} ")"'

    def _json(self, name: Any, schema: Mapping[str, Any]) -> str:
        inner = {k: v for k, v in schema.items() if k not in ("$defs", "definitions")}
        outer = {k: schema[k] for k in ("$defs", "definitions") if k in schema}
        key = self._syntax.arguments
        whole = {
            "x-guidance": GRAMMAR,
            "type": "object",
            "properties": {"name": name, key: inner or {"type": "object"}},
            "required": ["name", key],
            "additionalProperties": False,
            **outer,
        }
        return "%json " + json.dumps(whole)

    # ---- arguments that are not JSON

    def _fields(self, schema: Mapping[str, Any], equals: str) -> str:
        """Required ones first, then each of the others or not."""
        properties: Mapping[str, Any] = schema.get("properties") or {}
        required = [name for name in properties if name in (schema.get("required") or ())]
        optional = [name for name in properties if name not in required]
        quotes = '"' if equals == ":" and self._syntax.form == "python" else ""
        fields = {
            name: f"{json.dumps(quotes + name + quotes + equals)} {self._value(own)}"
            for name, own in properties.items()
        }
        first = ' "," '.join(fields[name] for name in required)
        if required:
            return " ".join([first, *(f'("," {fields[name]})?' for name in optional)])
        return self._listed(self._rule(" | ".join(fields.values()))) if fields else ""

    def _listed(self, item: str) -> str:
        return f'({item} ("," {item})*)?'

    def _value(self, schema: Any) -> str:
        schema = schema if isinstance(schema, dict) else {}
        kind = schema.get("type")
        if values := schema.get("enum") or ([schema["const"]] if "const" in schema else []):
            return self._rule(" | ".join(map(self._literal, values)))
        if kind in ("boolean", "null"):
            return self._rule(" | ".join(self._words(kind)))
        if kind == "array":
            return self._rule(f'"[" {self._listed(self._value(schema.get("items")))} "]"')
        if kind == "object" and schema.get("properties"):
            return self._rule(f'"{{" {self._fields(schema, ":")} "}}"')
        return _NUMBERS[kind] if kind in _NUMBERS else self._any_of(kind)

    def _any_of(self, kind: Any) -> str:
        return self._string if kind == "string" else self._any

    def _words(self, kind: str) -> Iterator[str]:
        is_python = self._syntax.form == "python"
        words = ("null",) if kind == "null" else ("true", "false")
        names = {"null": "None", "true": "True", "false": "False"}
        return (json.dumps(names[word] if is_python else word) for word in words)

    def _literal(self, value: Any) -> str:
        if isinstance(value, bool) or value is None:
            kind = "null" if value is None else "boolean"
            return [*self._words(kind)][value is False]
        if isinstance(value, str) and self._syntax.form == "fc":
            quote = self._mark(self._syntax.quote)
            return " ".join(filter(None, (quote, json.dumps(value) if value else "", quote)))
        return json.dumps(json.dumps(value))

    @property
    def _string(self) -> str:
        if self._syntax.form == "python":
            return self._rule('%json {"type": "string"}')
        quote = self._mark(self._syntax.quote)
        first = self._syntax.quote[:1]
        return self._rule(f"{quote} /[^{first}]*/ {quote}")

    @property
    def _any(self) -> str:
        name = f"any{next(self._numbers)}"
        words = " | ".join([*self._words("boolean"), *self._words("null")])
        pair = f'{"KEY" if self._syntax.form == "fc" else self._string} ":" {name}'
        of = f'"[" {self._listed(name)} "]" | "{{" {self._listed(f"({pair})")} "}}"'
        self.lines.append(f"{name}: {self._string} | NUMBER | {words} | {of}")
        return name
