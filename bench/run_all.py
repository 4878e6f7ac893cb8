"""bench/compare.py over a folder of models and a matrix of settings, each in a process of its own.

    python bench/run_all.py --models=FOLDER --out=bench/results/compare.jsonl [--dry_run]
        [--only=mobilenet_v2,resnet50] [--columns=float32,precision_loss,integer,float_view,float16]
        [--threads=1,2] [--batches=1,8] [--platform=cpu] [--onnx=FOLDER] [--input_ranges=FILE]
        [--rounds=30] [--seconds=60] [--timeout=900] [--again]

What a file is asked for depends on its weights: float32 ones run as they are and with precision
loss allowed, float16 ones as they are, quantized ones as integers and in the float view, beside
the float32 network of the folder whose name begins theirs. `--only` are beginnings of names. ONNX
files have the model's name; `--input_ranges` is a JSON file of beginnings of names to the least and
the largest float of the inputs, such as {"efficientnet": [0, 255]}.

Whatever stands in `--out` already is not measured again, so that an interrupted run goes on where
it was; `--again` measures refused ones anew. A process that fails or takes longer than `--timeout`
leaves a line with the reason. Threads are pinned to the first cores of the machine.
"""

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags
from agreement import file_kind
from harness import append

FLAGS = flags.FLAGS
flags.DEFINE_string("models", None, "A folder of .tflite files.", required=True)
flags.DEFINE_string("out", None, "The file to append JSON lines to.", required=True)
flags.DEFINE_list("only", [], "Beginnings of names; unset: all files.")
flags.DEFINE_list("columns", [], "Of float32, precision_loss, float16, integer, float_view.")
flags.DEFINE_list("threads", ["1", "2"], "How many threads.")
flags.DEFINE_list("batches", ["1", "8"], "How many images.")
flags.DEFINE_string("platform", "cpu", "Of the delegate.")
flags.DEFINE_string("onnx", None, "A folder of the same models for ONNX Runtime.")
flags.DEFINE_string("input_ranges", None, "A JSON file of beginnings of names to two numbers.")
flags.DEFINE_integer("rounds", 30, "Timed rounds.", 3)
flags.DEFINE_float("seconds", 60.0, "No further round after these.", 0.0)
flags.DEFINE_float("timeout", 900.0, "Seconds that one process may take.", 1.0)
flags.DEFINE_bool("again", False, "Measure anew what was refused.")
flags.DEFINE_bool("dry_run", False, "Only print what would run.")

COMPARE = Path(__file__).with_name("compare.py")
# What is asked of a file, by its kind: columns of the matrix and the delegate's options there.
COLUMNS: dict[str, dict[str, dict[str, Any]]] = {
    "float32": {"float32": {}, "precision_loss": {"is_precision_loss_allowed": True}},
    "float16": {"float16": {}},
    "quantized": {
        "integer": {"quant_mode": "integer"},
        "float_view": {"quant_mode": "float_view"},
    },
}
_FLAG_OF = {"is_precision_loss_allowed": "precision_loss"}  # compare.py's name of an option


@dataclasses.dataclass(frozen=True)
class Case:
    """One process: a model and what it is asked for."""

    graph: Path
    kind: str
    column: str
    batch: int
    threads: int
    platform: str

    @property
    def options(self) -> dict[str, Any]:
        return {"platform": self.platform, **COLUMNS[self.kind][self.column]}

    @property
    def key(self) -> tuple[Any, ...]:
        return key_of(
            dataclasses.asdict(self) | {"graph": self.graph.stem, "options": self.options}
        )

    def arguments(self) -> list[str]:
        return [
            f"--graph={self.graph}",
            f"--batch={self.batch}",
            *(f"--{_FLAG_OF.get(name, name)}={value}" for name, value in self.options.items()),
        ]


def key_of(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells measurements apart."""
    options = tuple(sorted(record["options"].items()))
    return record["graph"], record["batch"], record["threads"], options


def cases(
    kinds: Mapping[Path, str],
    columns: Sequence[str],
    batches: Sequence[int],
    threads: Sequence[int],
    platform: str,
) -> Iterator[Case]:
    """The matrix; one column of all models before the next, the most wanted first."""
    wanted = columns or [column for row in COLUMNS.values() for column in row]
    unknown = {*wanted} - {column for row in COLUMNS.values() for column in row}
    if unknown:
        raise app.UsageError(f"--columns: no {', '.join(sorted(unknown))}")
    for batch in batches:
        for n in threads:
            for column in wanted:
                for graph, kind in kinds.items():
                    if column in COLUMNS[kind]:
                        yield Case(graph, kind, column, batch, n, platform)


def float_twin(graph: Path, kinds: Mapping[Path, str]) -> Path | None:
    """The float32 file whose name is the longest beginning of this one's."""
    twins = [
        g for g, kind in kinds.items() if kind == "float32" and graph.stem.startswith(g.stem + "_")
    ]
    return max(twins, key=lambda g: len(g.stem), default=None)


def done(path: Path, *, again: bool) -> set[tuple[Any, ...]]:
    """The keys of the lines that `path` has; `again`: only those with times."""
    if not path.exists():
        return set()
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    compared = [r for r in records if r["bench"] == "compare"]
    return {key_of(r) for r in compared if not (again and "refused" in r)}


def extra_arguments(case: Case, kinds: Mapping[Path, str], ranges: Mapping[str, Any]) -> list[str]:
    """Files and inputs that belong to the model."""
    found = [f"--rounds={FLAGS.rounds}", f"--seconds={FLAGS.seconds}", f"--out={FLAGS.out}"]
    onnx = Path(FLAGS.onnx or "", f"{case.graph.stem}.onnx")
    if FLAGS.onnx and onnx.exists():
        found.append(f"--onnx={onnx}")
    twin = float_twin(case.graph, kinds)
    if case.kind == "quantized" and twin is not None:
        found.append(f"--float_graph={twin}")
    for beginning, (low, high) in ranges.items():
        if case.graph.stem.startswith(beginning):
            found.append(f"--input_range={low},{high}")
    if FLAGS.platform != "cpu":
        found.append("--roofline")
    return found


def run(case: Case, extra: Sequence[str], timeout: float) -> str | None:
    """Measure in a process of its own; why it came to nothing, if it did."""
    script = [sys.executable, str(COMPARE), *case.arguments(), *extra]
    cores = sorted(_CORES)[: case.threads] if case.platform == "cpu" else sorted(_CORES)
    os.sched_setaffinity(0, cores)  # the process inherits it
    environment = {**os.environ, "NPROC": str(case.threads)}
    try:
        ended = subprocess.run(
            script, env=environment, timeout=timeout, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no result after {timeout:.0f} s"
    finally:
        os.sched_setaffinity(0, _CORES)
    if ended.returncode == 0:
        return None
    said = [line for line in ended.stderr.splitlines() if line.strip()]
    return f"exit code {ended.returncode}: {said[-1] if said else 'no message'}"


_CORES = os.sched_getaffinity(0)


def main(_argv: list[str]) -> None:
    graphs = sorted(Path(FLAGS.models).glob("*.tflite"))
    kinds = {g: file_kind(g.read_bytes()) for g in graphs}
    chosen = {g: k for g, k in kinds.items() if not FLAGS.only or g.stem.startswith((*FLAGS.only,))}
    ranges = json.loads(Path(FLAGS.input_ranges).read_text()) if FLAGS.input_ranges else {}
    batches, threads = [int(n) for n in FLAGS.batches], [int(n) for n in FLAGS.threads]
    known = done(Path(FLAGS.out), again=FLAGS.again)
    matrix = cases(chosen, FLAGS.columns, batches, threads, FLAGS.platform)
    pending = [case for case in matrix if case.key not in known]
    for i, case in enumerate(pending):
        print(f"{i + 1}/{len(pending)}", case.graph.stem, *case.arguments()[1:], case.threads)
        if FLAGS.dry_run:
            continue
        start = time.perf_counter()
        refused = run(case, extra_arguments(case, kinds, ranges), FLAGS.timeout)
        print(f"    {time.perf_counter() - start:.0f} s", refused or "", flush=True)
        if refused is not None:
            append(
                {
                    "bench": "compare",
                    "graph": case.graph.stem,
                    "batch": case.batch,
                    "threads": case.threads,
                    "device": case.platform,
                    "options": case.options,
                    "kind": case.kind,
                    "refused": refused,
                },
                FLAGS.out,
            )


if __name__ == "__main__":
    app.run(main)
