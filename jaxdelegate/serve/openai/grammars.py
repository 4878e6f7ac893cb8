"""The fields of OpenAI's and vLLM's APIs that say what answers match, as grammars."""

import json
from collections.abc import Mapping
from typing import Any

from jaxdelegate.errors import OptionError
from jaxdelegate.lm.constraints import Grammar
from jaxdelegate.serve.clients import shown
from jaxdelegate.serve.openai.fields import ANY, FLAG, OBJECT, STRING, ApiError, Kind, one_of

_MOST_CHOICES = 1024
_CHOICES = Kind(
    f"a list of 1 to {_MOST_CHOICES} strings",
    lambda v: (
        isinstance(v, list)
        and 0 < len(v) <= _MOST_CHOICES
        and all(isinstance(text, str) for text in v)
    ),
)
_FORMAT = one_of("text", "json_object", "json_schema", "regex")
_STRUCTURED = {"json": ANY, "regex": STRING, "choice": _CHOICES, "grammar": STRING}
_STRUCTURED["json_object"] = FLAG
# `guided_*` were vLLM's names of what is in `structured_outputs` now.
FIELDS: Mapping[str, Kind] = {
    "guided_choice": _CHOICES,
    "guided_grammar": STRING,
    "guided_json": ANY,
    "guided_regex": STRING,
    "response_format": OBJECT,
    "structured_outputs": OBJECT,
}


def grammar(fields: Mapping[str, Any]) -> tuple[str, Grammar | None]:
    """The field that says what answers match, and that; None: any text."""
    asked = {name: fields[name] for name in FIELDS if name in fields}
    asked = {name: v for name, v in asked.items() if v != {"type": "text"}}
    if len(asked) > 1:
        raise ApiError("expected one of them", param=" and ".join(asked))
    for name, value in asked.items():
        if name == "response_format":
            return name, _of_response_format(value)
        if name == "structured_outputs":
            return name, _structured(value)
        return name, _constrained(name.removeprefix("guided_"), value, name)
    return "", None


def _structured(value: Mapping[str, Any]) -> Grammar | None:
    asked = {name: v for name, v in value.items() if name in _STRUCTURED and v is not None}
    other = next((n for n, v in value.items() if n not in _STRUCTURED and v is not None), None)
    if other is not None or len(asked) != 1:
        got = shown(other) if other is not None else f"{len(asked)} of them"
        expected = f"expected one of {', '.join(_STRUCTURED)}, got {got}"
        raise ApiError(expected, param="structured_outputs")
    ((name, what),) = asked.items()
    return _constrained(name, what, f"structured_outputs.{name}")


def _constrained(kind: str, value: Any, where: str) -> Grammar | None:
    value = _STRUCTURED[kind].checked(value, where)
    if kind == "regex":
        return Grammar("regex", value)
    if kind == "choice":
        return Grammar.choice(value)
    if kind == "grammar":
        return Grammar("lark", value)
    if kind == "json_object":
        return Grammar.json({"type": "object"}) if value else None
    return _of_schema(value, where)


def _of_response_format(value: Mapping[str, Any]) -> Grammar | None:
    kind = _FORMAT.checked(value.get("type"), "response_format.type")
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar.json({"type": "object"})
    if kind == "regex":
        where = "response_format.regex"
        return Grammar("regex", STRING.checked(value.get("regex", value.get("pattern")), where))
    where = "response_format.json_schema"
    schema = OBJECT.checked(value.get("json_schema"), where).get("schema")
    return Grammar.json({}) if schema is None else _of_schema(schema, f"{where}.schema")


def _of_schema(schema: Any, where: str) -> Grammar:
    if isinstance(schema, str):  # the JSON of a schema, which vLLM takes, too
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            raise ApiError("expected the JSON of a schema", param=where) from None
    try:
        return Grammar.json(OBJECT.checked(schema, where))
    except OptionError as error:
        raise ApiError(str(error), param=where) from None
