"""What LiteRT-LM answers, in a process of its own: its crashes and endless runs are errors here."""

import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxdelegate.errors import InterpreterError, OptionError
from jaxdelegate.optional import install
from jaxdelegate.text import printable

LITERT_LM = "litert_lm"
_CAUSE = "\u2514 "  # before a cause in LiteRT-LM's log
_PROGRAM = Path(__file__).with_name("litert_lm_program.py")


@dataclasses.dataclass(frozen=True)
class Texts:
    version: str  # LiteRT-LM's
    texts: list[str]  # what follows each prompt


@dataclasses.dataclass(frozen=True)
class Process:
    python: str | None = None  # the Python that has litert_lm; None: this one
    timeout_s: float = 600  # the most seconds that it may take


def litert_lm_texts(
    model: str, prompts: Sequence[str], max_output_tokens: int, process: Process | None = None
) -> Texts:
    """Let LiteRT-LM continue prompts greedily on the CPU, without a chat template.

    An OptionError if it is not installed; an InterpreterError if it fails or takes too long.
    """
    process = process or Process()
    if process.python is None and importlib.util.find_spec(LITERT_LM) is None:
        raise OptionError(
            f"reference: litert_lm is not installed: {install('litert-lm')}, or choose another "
            "reference"
        )
    request = {"model": model, "prompts": [*prompts], "max_output_tokens": max_output_tokens}
    # -P: the modules next to the program, such as bisect.py, must not shadow the library's.
    command = [process.python or sys.executable, "-P", os.fspath(_PROGRAM)]
    try:
        ran = subprocess.run(
            command,
            input=json.dumps(request),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=process.timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InterpreterError(
            f"reference (litert_lm): no answers after {process.timeout_s:g} s; allow more seconds, "
            "or request fewer tokens"
        ) from error
    if ran.returncode != 0:
        raise InterpreterError(f"reference (litert_lm): {_reason(ran)}")
    return Texts(**json.loads(ran.stdout))


def _reason(ran: subprocess.CompletedProcess[str]) -> str:
    """How a process ended, the last line that it printed, and LiteRT-LM's innermost cause."""
    lines = [line.strip() for line in ran.stderr.splitlines() if line.strip()]
    causes = [line.removeprefix(_CAUSE) for line in lines if line.startswith(_CAUSE)]
    text = printable(": ".join([*lines[-1:], *causes[-1:]])) or "it printed nothing"
    if ran.returncode > 0:
        return text
    return f"the process crashed with {signal.Signals(-ran.returncode).name}: {text}"
