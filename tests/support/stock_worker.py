"""Stock LiteRT in a child process, which may abort: `StockWorker` restarts it."""

import pickle
import select
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from jaxdelegate.testing.running import invoked, run_once

_LENGTH = struct.Struct("<q")
_SECONDS = 30
_ROOT = Path(__file__).parents[2]
INVOKES = 2  # the second one starts with the states that the first one left
PLAIN = (
    "BUILTIN_WITHOUT_DEFAULT_DELEGATES"  # LiteRT's kernels that are neither reference nor XNNPACK
)


def run_repeatedly(interpreter: Any, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of `INVOKES` invokes on the same inputs, one after the other."""
    outputs = run_once(interpreter, arrays)
    for _ in range(INVOKES - 1):
        outputs += invoked(interpreter, arrays)
    return outputs


class RefusedError(Exception):
    """An engine does not run a graph; the message is the reason."""


class CrashedError(Exception):
    """An engine's process crashed, or was killed because it took too long."""


class StockWorker:
    """Runs models in LiteRT's reference kernels, or in plain ones for operators without them."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(
        self, content: bytes, inputs: Sequence[np.ndarray], kernels: str = "BUILTIN_REF"
    ) -> list[np.ndarray]:
        """The outputs of each invoke; `kernels` is the name of an OpResolverType.

        Raises:
            RefusedError: LiteRT refuses the model when it allocates tensors, or when it runs.
            CrashedError: the process aborted, or took longer than half a minute.
        """
        if self._process is None:
            command = [sys.executable, "-m", "tests.support.stock_worker"]
            pipe, none = subprocess.PIPE, subprocess.DEVNULL
            self._process = subprocess.Popen(
                command, cwd=_ROOT, stdin=pipe, stdout=pipe, stderr=none
            )
        try:
            _send(self._process.stdin, (content, list(inputs), kernels))  # type: ignore[arg-type]
            kind, response = self._response(self._process.stdout)  # type: ignore[arg-type]
        except (EOFError, OSError) as error:
            self.close()
            raise CrashedError(str(error) or "LiteRT ended the process") from error
        if kind == "refused":
            raise RefusedError(response)
        outputs: list[np.ndarray] = response
        return outputs

    def _response(self, stream: BinaryIO) -> tuple[str, Any]:
        ready, _, _ = select.select([stream], [], [], _SECONDS)
        if not ready:
            raise TimeoutError(f"no response after {_SECONDS} s")
        response: tuple[str, Any] = _receive(stream)
        return response

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()
            self._process = None


def _send(stream: BinaryIO, message: object) -> None:
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def _receive(stream: BinaryIO) -> Any:
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        raise EOFError
    data = stream.read(_LENGTH.unpack(header)[0])
    return pickle.loads(data)


def _serve(requests: BinaryIO, responses: BinaryIO) -> None:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    while True:
        try:
            content, inputs, kernels = _receive(requests)
        except EOFError:
            return
        for kind in (kernels, PLAIN):
            try:
                interpreter = Interpreter(
                    model_content=content,
                    experimental_op_resolver_type=getattr(OpResolverType, kind),
                )
                response: tuple[str, Any] = "ran", run_repeatedly(interpreter, inputs)
                break
            except (RuntimeError, ValueError) as error:
                response = "refused", str(error)
                if "Didn't find op" not in response[1]:  # reference kernels lack some operators
                    break
        _send(responses, response)


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
