"""Text for people: harmless names from untrusted files, counts, and lines that fit a terminal."""

import textwrap
from collections.abc import Iterable

WIDTH = 100  # columns of what the tools print
_GAP = "..."  # not one character: terminals may not have it


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


def listed(text: str) -> tuple[str, ...]:
    """The parts of `a, b,c`."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def either(words: Iterable[str]) -> str:
    """`a, b or c`."""
    *first, last = (*words,) or ("",)
    return f"{', '.join(first)} or {last}" if first else last


def plural(count: int, noun: str) -> str:
    """A count and its noun: "1 operator", "2 operators"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def shortened(name: str, most: int = 40) -> str:
    """A name of at most `most` characters: without its middle, since both ends tell names apart."""
    if len(name) <= most:
        return name
    end = (most - len(_GAP)) // 2
    return f"{name[: most - len(_GAP) - end]}{_GAP}{name[-end:]}"


def wrapped(text: str, width: int = WIDTH) -> str:
    """The text with lines of at most `width` columns, the continued ones indented further.

    Words stay whole, and longer lines with them: a path or a flag must be copied.
    """
    return "\n".join(_wrapped_line(line, width) for line in text.splitlines())


def _wrapped_line(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.fill(
        line.lstrip(),
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_on_hyphens=False,
        break_long_words=False,
    )
