"""Decodes files that are untrusted, in a child process and within limits."""

import tempfile
from typing import Any

import numpy as np

from jaxdelegate.errors import GenerationError
from jaxdelegate.lm.child import Child, EndedError, RefusedError
from jaxdelegate.text import printable, shortened

_MOST_REASON = 200  # characters of an error of the decoder


class FileDecoder:
    """A child process that decodes files of a kind."""

    def __init__(self, script: str, noun: str, cpu_seconds: float, remedy: str) -> None:
        """Start nothing yet.

        Args:
            script: see `Child`. Its function gets a question with a file's `path`, and may write
                what it decodes into the file.
            noun: what a file is called in errors.
            cpu_seconds: of the processor for a file, at most.
            remedy: what helps if a file takes longer, or more memory.
        """
        self._noun, self._seconds, self._remedy = noun, cpu_seconds, remedy
        self._child = Child(
            script,
            seconds=10 * cpu_seconds,
            stack_bytes=1 << 23,
            memory_bytes=1 << 30,
            cpu_seconds=cpu_seconds,
        )

    def answer(self, data: bytes, question: dict[str, Any]) -> tuple[Any, np.ndarray]:
        """What the script says of a file, and the bytes that it leaves there: uint8 [n].

        Raises:
            GenerationError: the script refuses the file, takes too long, or crashes.
        """
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            try:
                found = self._child.answer({"path": file.name, **question})
            except RefusedError as error:
                raise GenerationError(shortened(printable(str(error)), _MOST_REASON)) from error
            except EndedError as error:
                problem = f"the {self._noun}: {self._why(error)}: {self._remedy}"
                raise GenerationError(problem) from error
            return found, np.fromfile(file.name, np.uint8)

    def _why(self, error: EndedError) -> str:
        if error.is_late:
            return f"decoding it takes longer than {self._seconds} s"
        return f"decoding it ends the process that does it ({error})"
