"""Compiles grammars in the process of child.py. It does not import the package: see there."""

import functools
from typing import Any


class _Bytes:
    """A tokenizer with a token for each byte: what a grammar costs hardly depends on tokens."""

    bos_token_id = None
    eos_token_id = 256
    tokens = (*(bytes([i]) for i in range(256)), b"")
    special_token_ids = (256,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


@functools.cache
def _tokens() -> Any:
    import llguidance  # noqa: PLC0415 (only the child runs it)

    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), eos_token=[256])


def answer(question: dict[str, Any]) -> str:
    """Llguidance's error for a grammar's `text`, by its `kind`, or an empty text.

    `options` are those of grammars that JSON schemas become.
    """
    from llguidance import LLMatcher  # noqa: PLC0415

    if question["kind"] == "json_schema":
        options = question["options"]
        grammar = LLMatcher.grammar_from_json_schema(question["text"], overrides=options)
    elif question["kind"] == "regex":
        grammar = LLMatcher.grammar_from_regex(question["text"])
    else:
        grammar = LLMatcher.grammar_from_lark(question["text"])
    matcher = LLMatcher(_tokens(), grammar, log_level=0)
    matcher.compute_bitmask()  # it checks limits, too
    return str(matcher.get_error())
