"""A process that serves requests as JSON lines, for libraries that need another Python.

It needs only the standard library, so that both Pythons can import it.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Request = Mapping[str, Any]


class WorkerError(Exception):
    """A request failed; the message is the reason."""


class Worker:
    """A process that runs `serve`; the first request starts it, the next one restarts a dead one.

    Args:
        command: what to start.
        environment: variables besides those of this process.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None):
        self._command = list(command)
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[str] | None = None

    def ask(self, seconds: float, **request: Any) -> Any:
        """The process's response.

        Raises:
            WorkerError: it failed with an exception, died, or took longer than `seconds`.
        """
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
        except BrokenPipeError:
            raise WorkerError(f"the process ended with status {self.stop()}") from None
        if not select.select([stdout], [], [], seconds)[0]:
            self.stop()
            raise WorkerError(f"no result after {seconds:g} s")
        line = stdout.readline()
        if not line:
            raise WorkerError(f"the process ended with status {self.stop(wait=10)}")
        response = json.loads(line)
        if "error" in response:
            raise WorkerError(response["error"])
        return response["result"]

    def stop(self, wait: float = 0) -> int | None:
        """End the process, giving it `wait` seconds to exit; its exit status."""
        if self._process is None:
            return None
        process, self._process = self._process, None
        try:
            return process.wait(wait)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def serve(commands: Mapping[str, Callable[..., Any]]) -> None:
    """Serve requests from stdin until it ends: `do` names the command, the rest are arguments.

    What the commands print goes to stderr.
    """
    responses = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            response = {"result": commands[request.pop("do")](**request)}
        except Exception as error:  # any error of a library is a response
            passed_on = isinstance(error, WorkerError)
            response = {"error": str(error) if passed_on else f"{type(error).__name__}: {error}"}
        responses.write(json.dumps(response) + "\n")
        responses.flush()


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Wall seconds, and the result."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result
