"""What tools print, without the characters that steer a terminal: names come from model files.

LiteRT's tools print such names as they are. An escape sequence in the name of a tensor could clear
the screen, or rewrite the lines above it.
"""

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO

# Control characters but tab and new line, other ends of lines, what turns the direction of text.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_RETURN = "\r"  # progress bars go back to the beginning of their line


def shown(text: str, allowed: str = "") -> str:
    r"""The text, `\x1b` in the place of an escape character."""

    def escaped(match: re.Match[str]) -> str:
        found = match[0]
        return found if found in allowed else found.encode("unicode_escape").decode()

    return _STEERING.sub(escaped, text)


class Shown:
    """A stream of text that is `shown`; all else is the stream's own."""

    def __init__(self, stream: TextIO, allowed: str = "") -> None:
        """Write to the stream; `allowed` control characters stay."""
        self._stream, self._allowed = stream, allowed

    def write(self, text: str) -> int:
        """Write; answers the length of what was given."""
        self._stream.write(shown(text, self._allowed))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        """As the stream."""
        return getattr(self._stream, name)


@contextlib.contextmanager
def shown_output() -> Iterator[None]:
    """What Python prints or logs meanwhile steers no terminal."""
    out: Any = Shown(sys.stdout)
    err: Any = Shown(sys.stderr, _RETURN)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield
