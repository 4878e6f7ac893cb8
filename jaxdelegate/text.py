"""Escapes text from untrusted files, so that it starts no line and controls no terminal."""

from collections.abc import Iterable


def printable(text: str) -> str:
    r"""The text on one line, with escapes instead of characters that are not printable.

    Names in model files may contain new lines and tabs, which would look like more output, control
    characters, and characters that change the text direction.

    Args:
        text: for example the name of a tensor.

    Returns:
        The text, with escapes such as `\n`, `\x1b` and `\u202e`.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def either(words: Iterable[str]) -> str:
    """`a, b or c`."""
    *first, last = (*words,) or ("",)
    return f"{', '.join(first)} or {last}" if first else last
