"""RE2's regular expressions (github.com/google/re2/wiki/Syntax), by its own package.

Their time is linear in the text. Python's module re takes exponential time for some.
"""

import re
from typing import Any

from jaxdelegate.optional import optional_module

_EXTRA = "text"


def compiled(pattern: bytes) -> Any:
    """The pattern as the package's object, for texts of bytes."""
    re2 = optional_module("re2", _EXTRA)
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0]
        said = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
        raise ValueError(
            f"the regular expression {pattern.decode(errors='replace')!r}: {said}"
        ) from error


def replaced(pattern: Any, rewrite: bytes, text: bytes, *, all_: bool) -> bytes:
    """The text with the rewrite, in which a backslash and 1 stand for the first group.

    As RE2::GlobalReplace: an empty match does not follow another one directly. With a group that
    the pattern does not have, the text stays as it is.
    """
    parts = re.findall(rb"\\[0-9\\]|[^\\]+|\\", rewrite)
    if b"\\" in parts:
        raise ValueError(f"the rewrite {rewrite!r}: expected a digit or a backslash after each one")
    groups = [int(p[1:]) for p in parts if p[:1] == b"\\" and p != b"\\\\"]
    if max(groups, default=0) > pattern.groups:
        return text
    made: list[bytes] = []
    place, end = 0, -1
    while place <= len(text) and (found := pattern.search(text, place)):
        made.append(text[place : found.start()])
        if found.start() == found.end() == end:
            following = place + _width(text[place : place + 4])
            made.append(text[place:following])
            place = following
            continue
        made += (_part(found, part) for part in parts)
        place = end = found.end()
        if not all_:
            break
    return b"".join([*made, text[place:]])


def _width(text: bytes) -> int:
    """Bytes of the first character; 1 if they are not UTF-8, and at the end."""
    first = text.decode(errors="surrogateescape")[:1]
    return max(len(first.encode(errors="surrogateescape")), 1)


def _part(found: Any, part: bytes) -> bytes:
    if part[:1] != b"\\":
        return part
    return b"\\" if part == b"\\\\" else found[int(part[1:])] or b""
