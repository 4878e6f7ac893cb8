"""Compiles JSON schemas in a child process before this one does: some crash llguidance.

Others take minutes or gigabytes, and no bound on a schema's size, depth or patterns finds them all.
"""

import hashlib

from jaxdelegate.errors import OptionError
from jaxdelegate.lm.child import Child, EndedError, RefusedError
from jaxdelegate.lru_cache import LruCache

_MEMORY_BYTES = 1 << 30
# A fourth of the stack that compiles the schema afterwards: about 2,000 references in a chain.
_STACK_BYTES = 1 << 24
# A weak model would write endless blanks. A schema cannot change these (`x-guidance`).
GRAMMAR = {"whitespace_pattern": "[ ]?", "item_separator": ",", "key_separator": ":"}
CHILD = Child("schema_script.py", seconds=5, stack_bytes=_STACK_BYTES, memory_bytes=_MEMORY_BYTES)
_KNOWN: LruCache[bytes, None] = LruCache(1024)  # digests of schemas that compile


def check_schema(text: str) -> None:
    """Raise an OptionError unless llguidance compiles a schema, in JSON, within the limits."""
    _KNOWN.get(hashlib.sha256(text.encode()).digest(), lambda: _check(text))


def _check(text: str) -> None:
    error = _error(text)
    if error:
        raise OptionError(refused(error))


def _error(text: str) -> str:
    try:
        return str(CHILD.answer({"schema": text, "options": GRAMMAR}))
    except RefusedError as error:
        return str(error)
    except EndedError as error:
        if error.is_late:
            return f"compiling it takes longer than {CHILD.seconds} s"
        limits = f"{_STACK_BYTES >> 20} MiB of stack or {_MEMORY_BYTES >> 30} GiB of memory"
        return f"compiling it takes more than {limits} ({error})"


def refused(error: str) -> str:
    """The message for an error of llguidance, without the state that it appends."""
    return f"change the schema, which llguidance refuses: {error.partition(chr(10) + '<')[0]}"
