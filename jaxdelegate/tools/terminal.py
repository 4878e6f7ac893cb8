"""What differs in the tools' output: escaped control characters, and commands instead of Python.

Names come from model files. LiteRT's tools print such names unchanged. An escape sequence in the
name of a tensor could clear the screen, or rewrite the lines above it.
"""

import contextlib
import logging
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from jaxdelegate.report.delegation import HINT

# Control characters except tab and new line, other line ends, and what turns the text direction.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_RETURN = "\r"  # progress bars return to the beginning of their line


def escaped(text: str, allowed: str = "") -> str:
    r"""The text with control characters that are not allowed as escapes, such as `\x1b`."""

    def escape(match: re.Match[str]) -> str:
        character = match[0]
        is_allowed = character in allowed
        return character if is_allowed else character.encode("unicode_escape").decode()

    return _CONTROL.sub(escape, text)


class EscapedStream:
    """Writes `escaped` text; the rest is the stream's."""

    def __init__(self, stream: TextIO, allowed: str = "") -> None:
        self._stream, self._allowed = stream, allowed

    def write(self, text: str) -> int:
        """Write; returns the length of the text before escaping."""
        self._stream.write(escaped(text, self._allowed))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def escaped_output() -> Iterator[None]:
    out: Any = EscapedStream(sys.stdout)
    err: Any = EscapedStream(sys.stderr, _RETURN)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield


# A tool's user has no delegate to ask.
_TOOL_HINT = "`jaxdelegate analyze`, with the same model and delegate flags, has every operator."


def _with_commands(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(_TOOL_HINT if value is HINT else value for value in record.args)
    return True


@contextlib.contextmanager
def logged_commands() -> Iterator[None]:
    logger = logging.getLogger("jaxdelegate")
    logger.addFilter(_with_commands)
    try:
        yield
    finally:
        logger.removeFilter(_with_commands)
