"""bench/compare.py in a separate process for each setting, without repeating what was measured."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import append

from jaxdelegate.kernels.processor import core_count

COMPARE = Path(__file__).with_name("compare.py")
# Where processes cannot be pinned (macOS), all of them.
CORES = getattr(os, "sched_getaffinity", lambda _: {*range(core_count())})(0)
_FLAG_OF = {"is_precision_loss_allowed": "precision_loss"}  # compare.py's name of an option


@dataclasses.dataclass(frozen=True)
class Case:
    """One process: a model and its settings.

    Attributes:
        graph: the .tflite.
        kind: of its weights, from agreement.file_kind.
        batch: takes the place of a first dimension of 1.
        threads: of the engines that compute on the CPU.
        options: of JaxDelegate, its platform among them.
        engines: those measured in addition to XNNPACK and ours; empty: the device's.
    """

    graph: Path
    kind: str
    batch: int
    threads: int
    options: Mapping[str, Any]
    engines: tuple[str, ...] = ()

    @property
    def platform(self) -> str:
        found: str = self.options["platform"]
        return found

    @property
    def record(self) -> dict[str, Any]:
        """The fields of its case in every line."""
        return {
            "bench": "compare",
            "graph": self.graph.stem,
            "batch": self.batch,
            "threads": self.threads,
            "device": self.platform,
            "options": dict(self.options),
            "kind": self.kind,
            "engines": list(self.engines),
        }

    def arguments(self) -> list[str]:
        found = [
            f"--graph={self.graph}",
            f"--batch={self.batch}",
            *(f"--{_FLAG_OF.get(name, name)}={value}" for name, value in self.options.items()),
        ]
        return [*found, f"--engines={','.join(self.engines)}"] if self.engines else found


def key_of(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """The fields that distinguish measurements."""
    options = tuple(sorted(record["options"].items()))
    engines = tuple(sorted(record.get("engines") or ()))
    return record["graph"], record["batch"], record["threads"], options, engines


def lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines; none if it does not exist."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def pending(cases: Iterable[Case], path: Path, *, again: bool = False) -> list[Case]:
    """The cases without a line in `path`, or with `again` those without times."""
    compared = [r for r in lines(path) if r["bench"] == "compare"]
    known = {key_of(r) for r in compared if not (again and "refused" in r)}
    return [case for case in cases if key_of(case.record) not in known]


def measure(
    cases: Sequence[Case],
    extra: Callable[[Case], Sequence[str]],
    out: Path,
    *,
    timeout: float,
    until: float = float("inf"),
) -> list[Case]:
    """Measure one after the other; a refusal leaves a line with the reason.

    Args:
        cases: what to measure.
        extra: more arguments of bench/compare.py than those of the case.
        out: the file of JSON lines.
        timeout: seconds that one process may take.
        until: when no further case starts, by time.perf_counter.

    Returns:
        The cases that there was no time for.
    """
    for i, case in enumerate(cases):
        start = time.perf_counter()
        if start >= until:
            return list(cases[i:])
        print(f"{i + 1}/{len(cases)}", case.graph.stem, *case.arguments()[1:], case.threads)
        refused = _run(case, [*extra(case), f"--out={out}"], timeout)
        print(f"    {time.perf_counter() - start:.0f} s", refused or "", flush=True)
        if refused is not None:
            append({**case.record, "refused": refused}, str(out), echo=False)
    return []


def _pin(cores: Iterable[int]) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def _run(case: Case, extra: Sequence[str], timeout: float) -> str | None:
    """Measure in a child process; return the reason if that failed."""
    script = [sys.executable, str(COMPARE), *case.arguments(), *extra]
    cores = sorted(CORES)[: case.threads] if case.platform == "cpu" else sorted(CORES)
    _pin(cores)  # the process inherits it
    environment = {**os.environ, "NPROC": str(case.threads)}
    try:
        ended = subprocess.run(
            script, env=environment, timeout=timeout, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no result after {timeout:.0f} s"
    finally:
        _pin(CORES)
    if ended.returncode == 0:
        return None
    said = [line for line in ended.stderr.splitlines() if line.strip()]
    return f"exit code {ended.returncode}: {said[-1] if said else 'no message'}"
