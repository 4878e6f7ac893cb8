"""The process that renders chat templates: hostile ones overflow its stack, or fill its memory.

All templates share it. It starts with the first one, and again after a crash.
"""

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxdelegate.errors import InterpreterError
from jaxdelegate.optional import optional_module

_PROGRAM = Path(__file__).with_name("template_program.py")
_MOST_SECONDS = 4  # a template of a page takes a thousandth


class TemplateError(Exception):
    """A template is damaged, or refuses its variables."""


class CrashError(TemplateError):
    """A template ended its process."""

    def __init__(self, code: int) -> None:
        """`code`: the process's return code."""
        self.is_late = code == -signal.SIGKILL
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        super().__init__(
            f"it takes longer than {_MOST_SECONDS} s"
            if self.is_late
            else f"it crashes the process that renders it ({how}): it nests too deeply, or takes "
            "too much memory"
        )


class TemplateProcess:
    """Renders one template at a time, for all threads."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def rendered(self, source: str, variables: Mapping[str, Any] | None) -> str:
        """The text of a template; without variables it is only parsed.

        Raises:
            CrashError: the process crashed, or did not answer in time.
            InterpreterError: the process does not start.
            OptionError: minijinja is not installed.
            TemplateError: it is damaged, or refuses the variables; or they have no form in JSON.
        """
        try:
            line = json.dumps({"source": source, "variables": variables}).encode() + b"\n"
        except (RecursionError, TypeError, ValueError) as error:
            raise TemplateError(f"expected variables with a form in JSON: {error}") from error
        with self._lock:
            was_used = self._process is not None
            try:
                answer = self._answer(line)
            except CrashError as error:
                if error.is_late or not was_used:
                    raise
                answer = self._answer(line)  # another template may have filled the memory
        if "error" in answer:
            raise TemplateError(answer["error"])
        return str(answer["text"])

    def close(self) -> None:
        """End the process; it starts again when it is needed."""
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                process.communicate()

    def forget(self) -> None:
        """Leave the process to another one, from which this one was forked."""
        if self._process is not None:
            self._process.returncode = 0
        self._lock, self._process = threading.Lock(), None

    def _answer(self, line: bytes) -> Any:
        process, self._process = self._process or _started(), None
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(_MOST_SECONDS, process.kill)
        answer = b""
        try:
            timer.start()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(line)
                process.stdin.flush()
            answer = process.stdout.readline()
        finally:
            timer.cancel()
            if answer:
                self._process = process
            else:
                process.kill()
                process.communicate()
        if not answer:
            raise CrashError(process.returncode)
        return json.loads(answer)


def _started() -> subprocess.Popen[bytes]:
    folder = Path(optional_module("minijinja", "lm").__file__).parents[1]
    # Without the site's packages and the user's environment it starts in a tenth of the time.
    command = [sys.executable, "-I", "-S", os.fspath(_PROGRAM), os.fspath(folder)]
    try:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError as error:
        raise InterpreterError(
            f"chat template: expected to start {sys.executable}, which renders it, got: {error}"
        ) from error


PROCESS = TemplateProcess()
atexit.register(PROCESS.close)
os.register_at_fork(after_in_child=PROCESS.forget)
