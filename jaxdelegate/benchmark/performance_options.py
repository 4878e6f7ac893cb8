"""Compares performance options: platforms, dtypes, threads and batch sizes.

XLA's CPU threads are fixed when it starts, and the first process claims a GPU's memory; therefore
every configuration runs in a new process.
"""

import dataclasses
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from jaxdelegate.benchmark import results
from jaxdelegate.benchmark.options import parse_names
from jaxdelegate.compile.precision_policy import policy_here
from jaxdelegate.errors import InterpreterError, OptionError
from jaxdelegate.op_lowering.precision import PrecisionPolicy
from jaxdelegate.options import DelegateOptions
from jaxdelegate.text import printable

OPTIONS = ("all", "cpu", "gpu", "tpu", "none")
DTYPES = ("float32", "tensorfloat32", "float16", "bfloat16")
_NAMES = {"float32": "fp32", "tensorfloat32": "tf32", "float16": "fp16", "bfloat16": "bf16"}


@dataclasses.dataclass(frozen=True)
class Configuration:
    name: str
    flags: tuple[str, ...]
    batch_size: int = 0  # 0: that of the model, or of the flags

    @property
    def label(self) -> str:
        return f"{self.name}, batch {self.batch_size}" if self.batch_size else self.name

    @property
    def all_flags(self) -> tuple[str, ...]:
        batch = (f"--batch_size={self.batch_size}",) if self.batch_size else ()
        return (*self.flags, *batch)


@dataclasses.dataclass(frozen=True)
class Outcome:
    configuration: Configuration
    result: dict[str, Any] | None
    error: str = ""

    @property
    def milliseconds(self) -> dict[str, Any]:
        """The statistics of the latency; the median of a failure is infinite."""
        return self.result["inference_ms"] if self.result else {"median": math.inf, "p95": 0.0}

    def per_sample(self, figure: str) -> float:
        """A statistic of the latency, divided by the batch size: what ranks."""
        return float(self.milliseconds[figure]) / max(self.configuration.batch_size, 1)


def parse_options(text: str) -> tuple[str, ...]:
    chosen = parse_names("perf_options_list", text, OPTIONS)
    if "none" in chosen and len(chosen) > 1:
        raise OptionError("perf_options_list: 'none' cannot be used together with other options")
    return chosen


def configurations(
    chosen: Sequence[str],
    platforms: Sequence[str],
    threads: Sequence[int],
    dtypes: Sequence[str],
    batch_sizes: Sequence[int] = (),
) -> list[Configuration]:
    """Every combination that makes a difference; `platforms` are those that JAX has."""
    rows = _options(chosen, platforms, threads, dtypes)
    sizes = sorted({*batch_sizes}) or [0]
    return [dataclasses.replace(row, batch_size=size) for row in rows for size in sizes]


def _options(
    chosen: Sequence[str], platforms: Sequence[str], threads: Sequence[int], dtypes: Sequence[str]
) -> list[Configuration]:
    if "none" in chosen:
        return [Configuration("as given", ())]
    requested = ("cpu", "gpu", "tpu") if "all" in chosen else tuple(chosen)
    absent = [p for p in requested if p != "cpu" and p not in platforms]
    if absent and "all" not in chosen:
        raise OptionError(
            f"perf_options_list: {absent[0]!r} is not available; JAX has: {', '.join(platforms)}"
        )
    rows = []
    for platform in (p for p in requested if p not in absent):
        if platform == "cpu":
            rows += _on_cpu(threads, dtypes)
        else:
            programs = _by_program(platform, dtypes)
            rows += [Configuration(f"{platform} (jax-{names})", flags) for names, flags in programs]
    return rows


def _on_cpu(threads: Sequence[int], dtypes: Sequence[str]) -> list[Configuration]:
    rows = []
    for n in threads:
        name = f"cpu w/ {n} threads"
        count = f"--num_threads={n}"
        rows.append(Configuration(f"{name} (litert)", ("--use_xnnpack=false", count)))
        rows.append(Configuration(f"{name} (xnnpack)", ("--use_xnnpack=true", count)))
        for names, flags in _by_program("cpu", dtypes):
            rows.append(Configuration(f"{name} (jax-{names})", (*flags, count)))
    return rows


def _by_program(platform: str, dtypes: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """The names of dtypes and the flags of the first; dtypes with equal policies share a program.

    A CPU without bfloat16 products computes every dtype in float32: one row, `fp32=fp16=bf16`.
    """
    named: dict[PrecisionPolicy, list[str]] = {}
    for dtype in (d for d in dtypes if platform == "gpu" or d != "tensorfloat32"):
        options = DelegateOptions.of({"compute_dtype": dtype})
        named.setdefault(policy_here(options, platform), []).append(dtype)
    return [
        (
            "=".join(_NAMES[dtype] for dtype in same),
            ("--use_jax=true", f"--jax_platform={platform}", f"--jax_compute_dtype={same[0]}"),
        )
        for same in named.values()
    ]


def find_platforms() -> tuple[str, ...]:
    """JAX's available platforms, from another process so that this one claims no device."""
    code = (
        "import jax\nfor p in ('cpu', 'gpu', 'tpu'):\n try: jax.devices(p); print(p)\n"
        " except RuntimeError: pass"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InterpreterError(f"jax does not start: {_last_line(done.stderr)}")
    return tuple(done.stdout.split())


def run_all(
    rows: Sequence[Configuration],
    flags: Sequence[str],
    *,
    delay: float = -1.0,
    shuffle: bool = True,
    seed: int | None = None,
) -> list[Outcome]:
    """Run `benchmark_model` for each configuration; returns the fastest first.

    The order is random, unless `shuffle` is false, so that a drift of the machine affects all.
    """
    order = list(rows)
    if shuffle:
        random.Random(seed).shuffle(order)
    outcomes: list[Outcome] = []
    for row in tqdm(order, desc="configurations", unit="run", disable=None):
        if outcomes and delay > 0:
            time.sleep(delay)
        outcomes.append(_run(row, flags))
    return sorted(outcomes, key=lambda row: (row.per_sample("median"), row.configuration.label))


def _run(row: Configuration, flags: Sequence[str]) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        command = [sys.executable, "-m", "jaxdelegate", "benchmark_model", *flags, *row.all_flags]
        command.append(f"--result_json={path}")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not path.exists():
            return Outcome(row, None, _last_line(done.stderr))
        return Outcome(row, json.loads(path.read_text()))


def _last_line(text: str) -> str:
    lines = [line for line in text.split("\n") if line.strip()]
    return printable(lines[-1]) if lines else "no message"


def summary(outcomes: Sequence[Outcome]) -> str:
    """The table by median latency, of a sample if batch sizes are compared, as TFLite prints it.

    Runs share a rank if their medians are below the 95th percentile of the best of them.
    """
    title = "==============Summary of All Runs w/ Different Performance Options=============="
    return "\n".join([title, *map(_line, outcomes, ranks(outcomes))])


def to_csv(outcomes: Sequence[Outcome]) -> str:
    rows: list[dict[str, Any]] = []
    for outcome, rank in zip(outcomes, ranks(outcomes), strict=True):
        row: dict[str, Any] = {"configuration": outcome.configuration.label}
        if outcome.result is None:
            rows.append({**row, "error": outcome.error})
        else:
            rows.append({**row, "rank": rank, **results.row_of(outcome.result)})
    return results.to_csv(rows)


def ranks(outcomes: Sequence[Outcome]) -> list[int]:
    """The rank of each outcome; the outcomes are sorted, the fastest first.

    A median within the spread of a better one, up to its 95th percentile, has the rank of that one:
    their order is noise.
    """
    places: list[int] = []
    best = 0
    for position, outcome in enumerate(outcomes):
        if outcome.per_sample("median") > outcomes[best].per_sample("p95"):
            best = position
        places.append(best + 1)
    return places


def _line(outcome: Outcome, rank: int) -> str:
    name = f"{outcome.configuration.label:>26}: "
    if outcome.result is None:
        return f"{name} failed! {outcome.error}"
    stat = {key: 1e3 * x for key, x in outcome.milliseconds.items() if key != "values"}
    return (
        f"{name}count={outcome.milliseconds['count']} first={stat['first']:.0f} "
        f"curr={stat['newest']:.0f} min={stat['min']:.0f} max={stat['max']:.0f} "
        f"avg={stat['avg']:g} std={stat['std']:.0f} p5={stat['p5']:.0f} "
        f"median={stat['median']:.0f} p95={stat['p95']:.0f} rank={rank}"
    )
