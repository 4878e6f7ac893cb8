"""Schemas that crash llguidance, or take minutes or gigabytes, end a child process only."""

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from jaxdelegate.bundles.tokenizers import TYPES, open_tokenizer
from jaxdelegate.errors import OptionError
from jaxdelegate.lm.constraints import Constraint, Constraints, Grammar
from jaxdelegate.lm.schema_checks import CHILD, check_grammar
from tests.support.bundles import compressed
from tests.support.language_models import SPECIAL, byte_tokenizer

pytest.importorskip("llguidance", reason="the package llguidance is not installed")


@pytest.fixture
def one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CHILD, "seconds", 1)


def chain(link: Callable[[Any], Any], count: int) -> dict[str, Any]:
    links = {str(n): link({"$ref": f"#/$defs/{n + 1}"}) for n in range(count)}
    return {"$defs": {**links, str(count): {"type": "null"}}, "$ref": "#/$defs/0"}


def nested(link: Callable[[Any], Any], count: int) -> Any:
    found: Any = {"type": "null"}
    for _ in range(count):
        found = link(found)
    return found


def patterns(count: int) -> dict[str, Any]:
    return {"allOf": [{"type": "string", "pattern": f"a{n}"} for n in range(count)]}


TIME, STACK, DEPTH = "takes longer than 1 s", "takes more than 16 MiB", "recursion limit exceeded"
HOSTILE: dict[str, tuple[Any, str]] = {
    "references": (chain(lambda x: x, 20_000), STACK),
    "items": (chain(lambda x: {"type": "array", "items": x}, 20_000), STACK),
    "properties": (chain(lambda x: {"properties": {"a": x}}, 20_000), STACK),
    "anyOf": (chain(lambda x: {"anyOf": [x, {"type": "null"}]}, 20_000), STACK),
    "allOf": (chain(lambda x: {"allOf": [x, {"title": "a"}]}, 20_000), STACK),
    "nested items": (nested(lambda x: {"items": x}, 400), DEPTH),
    "nested anyOf": (nested(lambda x: {"anyOf": [x]}, 200), DEPTH),
    "required": ({"type": "object", "required": [str(n) for n in range(50_000)]}, TIME),
    "alternatives": ({"anyOf": [{"$ref": "#"}] * 4000}, TIME),
    "patterns of one string": (patterns(50), TIME),
    "patterns of names": (
        {"patternProperties": {f"^a{n}$": {"type": "integer"} for n in range(600)}},
        TIME,
    ),
    "parts of a pattern": ({"type": "string", "pattern": f"^{'a?' * 100_000}$"}, "compiling it"),
}


@pytest.mark.usefixtures("one_second")
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_schemas(kind: str) -> None:
    schema, said = HOSTILE[kind]
    with pytest.raises(OptionError, match=f"change the schema, which llguidance refuses.*{said}"):
        check_grammar(*Grammar.json(schema))
    check_grammar(*Grammar.json({"title": kind}))  # the next one has a new child


def constraints() -> Constraints:
    tokenizer = open_tokenizer(TYPES[1], memoryview(compressed(byte_tokenizer())), "a test")
    return Constraints(tokenizer, [SPECIAL.index("<eos>")], tokenizer.size)


def test_an_ordinary_schema_of_many_definitions_compiles() -> None:
    """It has 100 kB and definitions that refer to others, as an OpenAPI document has."""
    kinds = [
        {"type": "string", "description": "what the field is about, in a sentence or two"},
        {"type": "integer", "minimum": 0},
        {"type": ["number", "null"], "default": None},
        {"enum": ["alpha", "beta", "gamma"]},
    ]
    names = [f"Model{n}" for n in range(150)]
    models = {
        name: {
            "type": "object",
            "properties": {
                **{f"{name}_{n}": kinds[n % len(kinds)] for n in range(8)},
                "next": {"type": "array", "items": {"$ref": f"#/$defs/{after}"}},
            },
            "required": [f"{name}_0"],
            "additionalProperties": False,
        }
        for name, after in zip(names, [*names[1:], names[0]], strict=True)
    }
    schema = {"$defs": models, "$ref": "#/$defs/Model0"}
    assert len(json.dumps(schema)) > 90_000
    assert isinstance(constraints().matching(Grammar.json(schema)), Constraint)


def test_the_stack_of_this_process_is_larger() -> None:
    """What the child can compile, a thread of a small stack could not."""
    grammar = Grammar.json(chain(lambda x: {"items": x}, 1200))
    assert not constraints().matching(grammar).is_complete


@pytest.mark.parametrize(
    "schema", [{"const": {1, 2}}, nested(lambda x: {"items": x}, 100_000), {"const": object()}]
)
def test_what_is_no_json(schema: Any) -> None:
    with pytest.raises(OptionError, match="expected an object of JSON"):
        Grammar.json(schema)


def test_schemas_that_compile_are_remembered() -> None:
    text = json.dumps({"title": str(os.getpid()), "type": "null"})
    check_grammar("json_schema", text)
    CHILD.close()
    check_grammar("json_schema", text)
    assert CHILD._process is None
    check_grammar("json_schema", text.replace("null", "string"))
    assert CHILD._process is not None
