"""What all benchmarks share: interleaved timing, spread, and the machine's description."""

import importlib.metadata
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdelegate.kernels import library
from jaxdelegate.kernels.processor import core_count

# So that scripts can import tests.support where jaxdelegate is not an editable install.
sys.path.append(str(Path(__file__).parents[1]))

PACKAGES = (
    "jaxdelegate",
    "jax",
    "jaxlib",
    "numpy",
    "ai-edge-litert",
    "openvino",
    "onnxruntime",
    "onnxruntime-gpu",
    "tensorrt",
    "torch",
    "jax-cuda12-plugin",
    "jax-cuda13-plugin",
    "libtpu",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
)
_GPU_FACTS = (
    "name",
    "driver_version",
    "memory.total",
    "mig.mode.current",
    "ecc.mode.current",
    "power.limit",
    "clocks.max.sm",
    "clocks.current.sm",
    "clocks.max.memory",
    "temperature.gpu",
    "pcie.link.gen.current",
    "pcie.link.width.current",
)

_FOLDERS = re.compile(r"(?<![\w./])/(?:[\w.+-]+/)+")


class AbsentError(Exception):
    """A measurement is impossible here; the message is the reason."""


def threads() -> int:
    """The number of threads of XLA:CPU, which the other engines get, too."""
    return int(os.environ.get("NPROC", core_count()))


def last_line(error: BaseException) -> str:
    """The last non-empty line of a message, its paths reduced to file names."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return without_folders(lines[-1]) if lines else type(error).__name__


def without_folders(text: str) -> str:
    """Reduce each path to its file name."""
    return _FOLDERS.sub("", text)


_FEWEST_ROUNDS = 5
_LONG_SECONDS = 0.1


def interleaved(
    candidates: Mapping[str, Callable[[], Any]],
    *,
    rounds: int,
    warmup: int = 2,
    settle: int = 0,
    seconds: float = math.inf,
) -> dict[str, list[float]]:
    """Seconds of each candidate, called in turn in every round, so that drift affects all alike.

    Args:
        candidates: what to call.
        rounds: timed calls of each.
        warmup: rounds that are not timed.
        settle: calls of a candidate before each timed one: engines leave each other cold caches,
            threads that still spin, and unmapped memory, which long calls do not notice.
        seconds: no round starts after these, once five are done.
    """
    for _ in range(warmup):
        for call in candidates.values():
            call()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    begin = time.perf_counter()
    for done in range(rounds):
        if done >= _FEWEST_ROUNDS and time.perf_counter() - begin > seconds:
            break
        for name, call in candidates.items():
            is_long = times[name] and times[name][-1] > _LONG_SECONDS
            for _ in range(0 if is_long else settle):
                call()
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return times


def repeated(call: Callable[[], Any], times: int) -> Callable[[], None]:
    """Time many calls as one, for calls of microseconds."""

    def all_calls() -> None:
        for _ in range(times):
            call()

    return all_calls


def percentile_ms(seconds: Sequence[float], percent: float) -> float:
    return 1e3 * float(np.percentile(seconds or [np.nan], percent))


def spread(values: list[float]) -> dict[str, float]:
    """Median and the tenth and ninetieth percentile."""
    ordered = sorted(values)
    return {
        "median": statistics.median(ordered),
        "p10": ordered[len(ordered) // 10],
        "p90": ordered[-1 - len(ordered) // 10],
    }


def ratios(times: Mapping[str, list[float]], over: str) -> dict[str, dict[str, float]]:
    """Each candidate's time over `over`'s, round by round."""
    return {
        name: spread([t / base for t, base in zip(own, times[over], strict=True)])
        for name, own in times.items()
    }


def machine() -> dict[str, Any]:
    """The processor, its cores for this process, its load, and the packages' versions."""
    return {
        "cpu": _cpu_model(),
        "instruction_set": library.in_use() if library.why_not() is None else None,
        "bfloat16_gain": round(library.bfloat16_gain(), 2),
        "cores": core_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "commit": _commit(),
    }


def gpu_facts() -> list[dict[str, str]] | None:
    """What nvidia-smi reports of each GPU; None without nvidia-smi."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_GPU_FACTS)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [line.split(", ") for line in done.stdout.splitlines()]
    return [dict(zip(_GPU_FACTS, row, strict=True)) for row in rows]


def append(result: Mapping[str, Any], path: str | None, *, echo: bool = True) -> None:
    """Print a result as one JSON line, and append it to the file if one is given."""
    line = json.dumps({**result, "machine": machine()})
    if echo:
        print(line)
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def rss_anon_mb(process: int | str = "self") -> float:
    """Anonymous resident memory of this process, or of one by its number, in MB."""
    status = Path(f"/proc/{process}/status")
    for line in status.read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise OSError(f"{status} has no RssAnon line")


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    return next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown"
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # git is not installed
        return None
    return done.stdout.strip() or None
