"""RE2's regular expressions, by Python's module re (github.com/google/re2/wiki/Syntax).

What re has too but reads differently is translated; what it lacks is a ValueError. Strings are
characters of UTF-8; bytes that are none are a character each.
"""

import functools
import re
from collections.abc import Iterator

_CLASSES = {
    "d": "0-9",
    "s": "\\t\\n\\f\\r ",  # without the vertical tab, which is a space for re
    "w": "0-9A-Za-z_",
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": "\\x00-\\x7f",
    "blank": "\\t ",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-/:-@\\[-`{-~",
    "space": "\\t\\n\\v\\f\\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_TOKENS = re.compile(
    r"""\\Q(?P<literal>.*?)(?:\\E|\Z)
    | \\x\{(?P<code>[0-9a-fA-F]{1,6})\}
    | \\x(?P<byte>[0-9a-fA-F]{2})
    | \\(?P<escaped>.)
    | \[(?P<class>\^?\]?(?:\[:\^?\w+:\]|\\x\{\w+\}|\\.|[^\]\\])*)\]
    | (?P<flags>\(\?[a-zA-Z-]+\))
    | (?P<group>\(\?P<\w+>|\(\?[ims-]*:)
    | (?P<lacking>\(\?|[*+?}]\+)
    | (?P<end>\$)
    | (?P<brace>\{,)
    | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_IN_CLASS = re.compile(
    r"\[:(?P<not>\^?)(?P<name>\w+):\]|\\x\{(?P<code>\w+)\}|\\(?P<e>.)|.", re.DOTALL
)
_AS_IN_RE = "AabfnrtvBD"


@functools.lru_cache(maxsize=256)
def compiled(pattern: bytes) -> re.Pattern[str]:
    text = pattern.decode(errors="surrogateescape")
    flags = re.match(r"\(\?([ims]+)\)", text)  # only those at the start
    lines = flags is not None and "m" in flags[1]
    try:
        body = "".join(_translated(text[flags.end() if flags else 0 :], lines=lines))
        return re.compile((flags[0] if flags else "") + body)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"the regular expression {text!r}: {error}") from error


def _translated(text: str, *, lines: bool) -> Iterator[str]:
    for found in _TOKENS.finditer(text):
        kind, token = found.lastgroup, found[0]
        if kind == "literal":
            yield re.escape(found["literal"])
        elif kind in ("code", "byte"):
            yield re.escape(chr(int(found[kind], 16)))
        elif kind == "escaped":
            yield _escaped(found["escaped"], text)
        elif kind == "class":
            yield _class(found["class"], text)
        elif kind in ("flags", "lacking"):
            raise ValueError(f"the regular expression {text!r}: {token!r} is not supported here")
        elif kind == "end":
            yield "$" if lines else "\\Z"
        else:
            yield "\\{," if kind == "brace" else token


def _escaped(letter: str, text: str) -> str:
    if letter in "dsw":
        return f"[{_CLASSES[letter]}]"
    if letter in "DSW":
        return f"[^{_CLASSES[letter.lower()]}]"
    if letter in "bB":
        return f"(?a:\\{letter})"
    if letter == "z":
        return "\\Z"
    if letter.isalnum() and letter not in _AS_IN_RE:
        raise ValueError(f"the regular expression {text!r}: '\\{letter}' is not supported")
    return f"\\{letter}"


def _class(content: str, text: str) -> str:
    negated = content.startswith("^")
    parts = []
    for found in _IN_CLASS.finditer(content[negated:]):
        letter = found["e"]
        if found["name"]:
            if found["not"] or found["name"] not in _CLASSES:
                raise ValueError(f"the regular expression {text!r}: {found[0]!r} is not supported")
            parts.append(_CLASSES[found["name"]])
        elif found["code"]:
            parts.append(re.escape(chr(int(found["code"], 16))))
        elif letter and letter in "dsw":
            parts.append(_CLASSES[letter])
        elif letter and letter.isalnum() and letter not in "abfnrtvx":
            raise ValueError(f"the regular expression {text!r}: '\\{letter}' is not supported")
        else:
            parts.append(f"\\{found[0]}" if found[0] in "[]&|~" else found[0])
    return f"[{'^' * negated}{''.join(parts)}]"


def replaced(pattern: re.Pattern[str], rewrite: bytes, text: bytes, *, all_: bool) -> bytes:
    """The text with the rewrite, in which a backslash and 1 stand for the first group.

    A match that is empty does not follow another one directly.
    """
    parts = re.findall(r"\\[0-9\\]|[^\\]+|\\", rewrite.decode(errors="surrogateescape"), re.DOTALL)
    if "\\" in parts:
        raise ValueError(f"the rewrite {rewrite!r}: expected a digit or a backslash after each one")
    groups = [int(p[1:]) for p in parts if p[0] == "\\" and p != "\\\\"]
    if max(groups, default=0) > pattern.groups:
        return text
    whole, end = text.decode(errors="surrogateescape"), 0
    made: list[str] = []
    for found in pattern.finditer(whole):
        if found.end() == found.start() == end and made:
            continue
        made += whole[end : found.start()], *(_part(found, p) for p in parts)
        end = found.end()
        if not all_:
            break
    return "".join([*made, whole[end:]]).encode(errors="surrogateescape")


def _part(found: re.Match[str], part: str) -> str:
    if part[0] != "\\":
        return part
    return "\\" if part == "\\\\" else found[int(part[1])] or ""
