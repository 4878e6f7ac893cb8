"""A child process that does what may crash a process, or fill its memory, or not end.

Packages in Rust overflow their stack at templates and schemas that a file or a client chooses, and
no bound on size or depth finds all of these. Files of images and sounds can take hours.
"""

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from jaxdelegate.errors import InterpreterError

_PROGRAM = Path(__file__).with_name("child_program.py")


class RefusedError(Exception):
    """The child refuses a question, for this reason."""


class EndedError(Exception):
    """The child ended before it answered.

    Its text is the name of the signal that ended it, or the exit code.

    Attributes:
        is_late: it took more than its seconds, or those of the processor.
    """

    def __init__(self, status: int) -> None:
        """`status`: the process's return code."""
        self.is_late = status in (-signal.SIGALRM, -signal.SIGPROF)
        super().__init__(signal.Signals(-status).name if status < 0 else f"exit code {status}")


class Child:
    """A process that answers one question at a time, for all threads.

    It starts with the first question, and again after it has ended.

    Attributes:
        seconds: of an answer, at most.
    """

    def __init__(
        self,
        script: str,
        *,
        seconds: float,
        stack_bytes: int,
        memory_bytes: int,
        cpu_seconds: float = 0,
    ) -> None:
        """Start nothing yet.

        Args:
            script: next to this file. Its function `answer` takes a question and returns an answer;
                both have a form in JSON.
            seconds: of an answer, at most.
            stack_bytes: of the thread that answers.
            memory_bytes: of the process.
            cpu_seconds: of the processor for an answer, at most; 0: no other limit than `seconds`.
        """
        self.seconds, self._cpu_seconds = seconds, cpu_seconds
        self._settings = {
            "script": os.fspath(_PROGRAM.parent / script),
            "stack_bytes": stack_bytes,
            "memory_bytes": memory_bytes,
        }
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)

    def answer(self, question: Any) -> Any:
        """What the script's function returns.

        Raises:
            EndedError: the child crashed, or did not answer in time.
            InterpreterError: it does not start.
            RefusedError: the function raised an error.
            ValueError, TypeError, RecursionError: the question has no form in JSON.
        """
        limits = {"seconds": self.seconds, "cpu_seconds": self._cpu_seconds}
        asked = json.dumps({"question": question, **limits}).encode() + b"\n"
        with self._lock:
            was_used = self._process is not None
            try:
                found = json.loads(self._line(asked))
            except EndedError as error:
                if error.is_late or not was_used:
                    raise
                # Someone may have ended it, or other questions may have filled its memory.
                found = json.loads(self._line(asked))
        if "error" in found:
            raise RefusedError(found["error"])
        return found["answer"]

    def close(self) -> None:
        """End the process; the next question starts another one."""
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                process.communicate()

    def _forget(self) -> None:
        """Leave the process to the one from which this one was forked."""
        if self._process is not None:
            self._process.returncode = 0
        self._lock, self._process = threading.Lock(), None

    def _line(self, asked: bytes) -> bytes:
        process, self._process = self._process or self._started(), None
        assert process.stdin is not None
        assert process.stdout is not None
        line = b""
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(asked)
                process.stdin.flush()
            line = process.stdout.readline()
        finally:
            if line:
                self._process = process
            else:  # it ended, or Ctrl-C leaves an answer that belongs to no question
                process.kill()
                process.communicate()
        if not line:
            raise EndedError(process.returncode)
        return line

    def _started(self) -> "subprocess.Popen[bytes]":
        settings = json.dumps({**self._settings, "path": [*map(str, sys.path)]})
        # Without the site's packages and the user's environment it starts in a tenth of the time.
        command = [sys.executable, "-I", "-S", os.fspath(_PROGRAM), settings]
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for this process
            )
        except OSError as error:
            raise InterpreterError(
                f"expected to start {sys.executable} for templates, schemas, images and sounds, "
                f"got: {error}"
            ) from error
