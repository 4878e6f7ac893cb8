"""Compiles grammars in a child process before this one does: some crash llguidance.

Others take minutes or gigabytes, and no bound on size, depth or patterns finds them all.
"""

import hashlib

from jaxdelegate.errors import OptionError
from jaxdelegate.lm.child import Child, EndedError, RefusedError
from jaxdelegate.lru_cache import LruCache

_MEMORY_BYTES = 1 << 30
# A fourth of the stack that compiles the grammar afterwards: about 2,000 references in a chain.
_STACK_BYTES = 1 << 24
# A weak model would write endless blanks. A schema cannot change these (`x-guidance`).
GRAMMAR = {"whitespace_pattern": "[ ]?", "item_separator": ",", "key_separator": ":"}
CHILD = Child("schema_script.py", seconds=5, stack_bytes=_STACK_BYTES, memory_bytes=_MEMORY_BYTES)
_KNOWN: LruCache[bytes, None] = LruCache(1024)  # digests of grammars that compile


def check_grammar(kind: str, text: str) -> None:
    """Raise an OptionError unless llguidance compiles a grammar within the limits.

    Args:
        kind: "json_schema", "regex" or "lark".
        text: the schema in JSON, the pattern, or the grammar.
    """
    digest = hashlib.sha256(f"{kind} {text}".encode()).digest()
    _KNOWN.get(digest, lambda: _check(kind, text))


def _check(kind: str, text: str) -> None:
    error = _error(kind, text)
    if error:
        raise OptionError(refused(kind, error))


def _error(kind: str, text: str) -> str:
    try:
        return str(CHILD.answer({"kind": kind, "text": text, "options": GRAMMAR}))
    except RefusedError as error:
        return str(error)
    except EndedError as error:
        if error.is_late:
            return f"compiling it takes longer than {CHILD.seconds} s"
        limits = f"{_STACK_BYTES >> 20} MiB of stack or {_MEMORY_BYTES >> 30} GiB of memory"
        return f"compiling it takes more than {limits} ({error})"


def refused(kind: str, error: str) -> str:
    """The message for an error of llguidance, without the state that it appends."""
    what = {"json_schema": "schema", "regex": "regular expression"}.get(kind, "grammar")
    return f"change the {what}, which llguidance refuses: {error.partition(chr(10) + '<')[0]}"
