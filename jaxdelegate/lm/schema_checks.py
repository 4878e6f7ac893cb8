"""Compiles JSON schemas in a child process before this one does: some crash llguidance.

Others take minutes or gigabytes, and no bound on a schema's size, depth or patterns finds them all.
"""

import atexit
import functools
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from jaxdelegate.errors import InterpreterError, OptionError
from jaxdelegate.lru_cache import LruCache

SECONDS = 5  # of compiling a schema
MEMORY_BYTES = 1 << 30
# A fourth of the stack that compiles the schema afterwards: about 2,000 references in a chain.
STACK_BYTES = 1 << 24
# A weak model would write endless blanks. A schema cannot change these (`x-guidance`).
GRAMMAR = {"whitespace_pattern": "[ ]?", "item_separator": ",", "key_separator": ":"}
_KNOWN: LruCache[bytes, None] = LruCache(1024)  # digests of schemas that compile


def check_schema(text: str) -> None:
    """Raise an OptionError unless llguidance compiles a schema, in JSON, within the limits."""
    _KNOWN.get(hashlib.sha256(text.encode()).digest(), lambda: _check(text))


def _check(text: str) -> None:
    error = _child().error(text)
    if error:
        raise OptionError(refused(error))


def refused(error: str) -> str:
    """The message for an error of llguidance, without the state that it appends."""
    return f"change the schema, which llguidance refuses: {error.partition(chr(10) + '<')[0]}"


class _Child:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def error(self, text: str) -> str:
        """Llguidance's error, or an empty text. An OptionError if the child ends."""
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self.close()  # someone has ended it
            process = self._process = self._process or _started()
            try:
                return str(json.loads(_answered(process, text)))
            except BaseException as error:
                self.close()  # it may have an answer that belongs to no one
                if isinstance(error, ValueError | OSError):  # no answer: it had ended
                    raise _ended(process.returncode) from None
                raise

    def close(self) -> None:
        """End the process; the next schema starts another one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def _answered(process: "subprocess.Popen[str]", text: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(text + "\n")
    process.stdin.flush()
    return process.stdout.readline()


def _started() -> "subprocess.Popen[str]":
    given: dict[str, Any] = {
        "path": [*map(str, sys.path)],
        "options": GRAMMAR,
        "seconds": SECONDS,
        "memory_bytes": MEMORY_BYTES,
        "stack_bytes": STACK_BYTES,
    }
    script = str(Path(__file__).with_name("schema_child.py"))
    return subprocess.Popen(
        [sys.executable, "-I", "-S", script, json.dumps(given)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C is for this process
    )


def _ended(status: int) -> Exception:
    if status == -signal.SIGALRM:
        return OptionError(refused(f"compiling it takes longer than {SECONDS} s"))
    if status < 0:
        limits = f"{STACK_BYTES >> 20} MiB of stack or {MEMORY_BYTES >> 30} GiB of memory"
        return OptionError(refused(f"compiling it takes more than {limits}"))
    return InterpreterError(f"the process that compiles schemas ended with status {status}")


@functools.cache
def _child() -> _Child:
    return _Child()


atexit.register(lambda: _child().close())
# A forked process would share the pipes.
os.register_at_fork(after_in_child=_child.cache_clear)
