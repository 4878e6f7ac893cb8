"""Calls of tools as each family writes them: read, and constrained by grammars."""

from typing import Any

import numpy as np
import pytest

from jaxdelegate.bundles.tokenizers import TYPES, open_tokenizer
from jaxdelegate.lm.constraints import Constraint, Constraints, Grammar
from jaxdelegate.lm.tool_calls import Call, ToolReader, ToolSyntax, syntax_of
from jaxdelegate.lm.tool_grammars import tool_grammar
from tests.support.bundles import compressed
from tests.support.language_models import SPECIAL, byte_tokenizer

QWEN = ToolSyntax("<tool_call>", "</tool_call>")
FUNCTION_GEMMA = ToolSyntax("<start_function_call>", "<end_function_call>", "fc", "<escape>")
GEMMA_4 = ToolSyntax("<|tool_call>", "<tool_call|>", "fc", '<|"|>')
GEMMA_3 = ToolSyntax("```tool_code\n", "```", "python")
LLAMA = ToolSyntax(arguments="parameters")
SYNTAXES = (QWEN, FUNCTION_GEMMA, GEMMA_4, GEMMA_3, LLAMA)

READ: list[tuple[ToolSyntax, str, list[Call] | None]] = [
    (QWEN, '\n{"name": "f", "arguments": {"a": 1}}\n', [Call("f", {"a": 1})]),
    (QWEN, '{"name": "f", "arguments": "{\\"a\\": 1}"}', [Call("f", {"a": 1})]),
    (QWEN, '{"name": "f"}', [Call("f", {})]),
    (QWEN, '{"name": "f", "arguments": [1]}', None),
    (QWEN, '{"name": "f", "arguments": {"a": 1e999}}', None),
    (QWEN, '{"name": "f", "argum', None),
    (QWEN, "[" * 100_000, None),
    (LLAMA, '[{"name": "f", "parameters": {}}, {"name": "g"}]', [Call("f", {}), Call("g", {})]),
    (LLAMA, '{"name": "f"}; {"name": "g"}', [Call("f", {}), Call("g", {})]),
    (
        FUNCTION_GEMMA,
        'call:f{a:<escape>x, "y": {<escape>,b:-2.5,c:[1,true,null],d:{e:<escape><escape>}}',
        [Call("f", {"a": 'x, "y": {', "b": -2.5, "c": [1, True, None], "d": {"e": ""}})],
    ),
    (FUNCTION_GEMMA, "call:f{}call:g{a:1}", [Call("f", {}), Call("g", {"a": 1})]),
    (FUNCTION_GEMMA, "call:f{a:<escape>x", None),
    (FUNCTION_GEMMA, "f{}", None),
    (FUNCTION_GEMMA, "call:f{a:" + "[" * 1000, None),
    (GEMMA_4, 'call:f{a:<|"|>x<|"|>,b:word}', [Call("f", {"a": "x", "b": "word"})]),
    (GEMMA_3, 'f(a="x", b=[1, {"c": True}])', [Call("f", {"a": "x", "b": [1, {"c": True}]})]),
    (GEMMA_3, "f(d=None)", [Call("f", {"d": None})]),
    (GEMMA_3, "print(f(a=-1))\ng()", [Call("f", {"a": -1}), Call("g", {})]),
    (GEMMA_3, "[f(a=true), g()]", [Call("f", {"a": True}), Call("g", {})]),
    (GEMMA_3, "f(1)", None),
    (GEMMA_3, "f(a=b)", None),
    (GEMMA_3, "f(a=b'x')", None),
    (GEMMA_3, "import os", None),
    (GEMMA_3, "(" * 5000, None),
]  # fmt: skip


@pytest.mark.parametrize(("syntax", "text", "calls"), READ)
def test_calls_are_read(syntax: ToolSyntax, text: str, calls: list[Call] | None) -> None:
    assert syntax.calls(text) == calls


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ('{"name": "f", "parameters": {"a": 1}}', [Call("f", {"a": 1})]),
        ('The call {"name": "f"} is', ["The call ", '{"name": "f"} is']),
        ('{"name": "other"}', ['{"name": "other"}']),
        ("{oops", ["{oops"]),
    ],
)
def test_answers_without_marks(answer: str, found: list[Any]) -> None:
    reader = ToolReader(LLAMA, {"f"})
    half = len("The call ")
    assert [*reader.add(answer[:half]), *reader.add(answer[half:]), *reader.end()] == found


# ---- grammars

TOOLS = [
    {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "unit": {"enum": ["C", "F", True, None]},
                "hours": {"type": "array", "items": {"type": "number"}},
                "place": {"type": "object", "properties": {"far": {"type": "boolean"}}},
                "more": {},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
    {"name": "now"},
]


def constrained(grammar: Grammar) -> tuple[Constraint, Any]:
    pytest.importorskip("llguidance")
    tokenizer = open_tokenizer(TYPES[1], memoryview(compressed(byte_tokenizer())), "a test")
    stops = [SPECIAL.index("<eos>")]
    return Constraints(tokenizer, stops, tokenizer.size).matching(grammar), tokenizer


def written(constraint: Constraint, rng: np.random.Generator, most: int = 400) -> list[int] | None:
    """A random answer of printable characters; None: it gets too long."""
    tokens: list[int] = []
    while not constraint.is_complete:
        bits = np.unpackbits(constraint.allowed().view(np.uint8), bitorder="little")
        allowed = [i for i in np.flatnonzero(bits) if 32 <= i - len(SPECIAL) < 127 or i - 5 == 10]
        if not allowed or (constraint.is_match and rng.random() < 0.5):
            break
        marks = [i for i in allowed if chr(i - len(SPECIAL)) in '"})]<\n`']
        tokens.append(int(rng.choice(marks if marks and rng.random() < 0.5 else allowed)))
        constraint.add(tokens[-1])
        assert constraint.error is None
        if len(tokens) > most:
            return None
    return tokens


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_what_grammars_allow_is_read_as_calls(syntax: ToolSyntax, rng: np.random.Generator) -> None:
    tokenizer = open_tokenizer(TYPES[1], memoryview(compressed(byte_tokenizer())), "a test")
    constraint, _ = constrained(tool_grammar(syntax, TOOLS, tokenizer, has_text=False, most=3))
    answers = [written(constraint.copy(), rng) for _ in range(20)]
    whole = [tokenizer.decode(answer) for answer in answers if answer is not None]
    assert len(whole) >= 5
    for text in whole:
        reader = ToolReader(syntax, {"weather", "now"})
        calls = [*reader.add(text), *reader.end()]
        assert calls, text
        for call in calls:
            assert isinstance(call, Call), text
            if call.name == "now":
                assert call.arguments == {}
                continue
            assert isinstance(call.arguments["city"], str)
            assert call.arguments["unit"] in ("C", "F", True, None)
            assert isinstance(call.arguments.get("days", 0), int)


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_text_may_come_before_calls(syntax: ToolSyntax) -> None:
    tokenizer = open_tokenizer(TYPES[1], memoryview(compressed(byte_tokenizer())), "a test")
    constraint, _ = constrained(tool_grammar(syntax, TOOLS, tokenizer, has_text=True))
    text = f"Hm. {syntax.start}" if syntax.start else "Hm."
    for token in tokenizer.encode(text):
        assert constraint.error is None
        constraint.add(token)
    assert constraint.error is None


# ---- families


class Metadata:
    def __init__(self, kind: str, **declared: str) -> None:
        self.model_type = kind
        values = {"code_fence_start": "", "code_fence_end": "", "open_quote": "", **declared}
        own = type("Own", (), values)
        self.proto = type("Proto", (), {"llm_model_type": type("Type", (), {kind or "none": own})})


@pytest.mark.parametrize(
    ("kind", "template", "syntax"),
    [
        ("qwen3", None, QWEN),
        ("generic_model", "... <tool_call> ...", QWEN),
        ("function_gemma", None, FUNCTION_GEMMA),
        ("gemma4", "<|tool_call>", GEMMA_4),
        ("gemma3", None, GEMMA_3),
        ("generic_model", '{"name": x, "parameters": y}', LLAMA),
        ("generic_model", None, ToolSyntax()),
        ("", "", ToolSyntax()),
    ],
)
def test_syntaxes_of_families(kind: str, template: str | None, syntax: ToolSyntax) -> None:
    metadata: Any = Metadata(kind)
    assert syntax_of(metadata, template) == syntax


def test_a_bundle_declares_its_marks() -> None:
    marks = {"code_fence_start": "<a>", "code_fence_end": "<b>", "open_quote": "<q>"}
    metadata: Any = Metadata("gemma4", **marks)
    assert syntax_of(metadata, None) == ToolSyntax("<a>", "<b>", "fc", "<q>")
