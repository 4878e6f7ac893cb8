"""bench/compare.py over a folder of models and a matrix of settings, each in its own process.

    python bench/run_all.py --models=FOLDER --out=bench/results/compare.jsonl [--dry_run]
        [--only=mobilenet_v2,resnet50] [--columns=float32,precision_loss,float16,quantized]
        [--threads=1,2] [--batches=1,8] [--platform=cpu] [--onnx=FOLDER] [--input_ranges=FILE]
        [--rounds=30] [--seconds=60] [--timeout=900] [--again]

The settings of a file depend on its weights: float32 ones run as they are and with precision loss
allowed, float16 ones as they are. Quantized ones run by default, next to integers, the float view
and the float32 network of the folder whose name is a prefix of theirs. `--only` are prefixes of
names. ONNX files have the model's name; `--input_ranges` is a JSON file that maps prefixes of names
to the least and the largest float of the inputs, such as {"efficientnet": [0, 255]}.

What has a line in `--out` is not measured again, so an interrupted run can be continued; `--again`
repeats refused measurements. A process that fails or takes longer than `--timeout` leaves a line
with the reason. Threads are pinned to the first cores of the machine. On a GPU only the peers on
the CPU have threads: the largest of `--threads`, or one for each core.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags
from agreement import QUANTIZED, file_kind
from matrix import CORES, Case, measure, pending

FLAGS = flags.FLAGS
flags.DEFINE_string("models", None, "A folder of .tflite files.", required=True)
flags.DEFINE_string("out", None, "The file to append JSON lines to.", required=True)
flags.DEFINE_list("only", [], "Prefixes of names; unset: all files.")
flags.DEFINE_list("columns", [], "Of float32, precision_loss, float16, quantized.")
flags.DEFINE_list("threads", [], "How many threads; unset: 1,2 on a CPU, else all cores.")
flags.DEFINE_list("batches", ["1", "8"], "How many images.")
flags.DEFINE_string("platform", "cpu", "Of the delegate.")
flags.DEFINE_string("onnx", None, "A folder of the same models for ONNX Runtime.")
flags.DEFINE_string("input_ranges", None, "A JSON file: prefixes of names to two numbers.")
flags.DEFINE_integer("rounds", 30, "Timed rounds.", 3)
flags.DEFINE_float("seconds", 60.0, "No further round after these.", 0.0)
flags.DEFINE_float("timeout", 900.0, "Seconds that one process may take.", 1.0)
flags.DEFINE_bool("again", False, "Repeat refused measurements.")
flags.DEFINE_bool("dry_run", False, "Only print what would run.")

# By the kind of a file: columns of the matrix and the delegate's options there.
COLUMNS: dict[str, dict[str, dict[str, Any]]] = {
    "float32": {"float32": {}, "precision_loss": {"is_precision_loss_allowed": True}},
    "float16": {"float16": {}},
    **{kind: {"quantized": {}} for kind in QUANTIZED},
}


def cases(
    kinds: Mapping[Path, str],
    columns: Sequence[str],
    batches: Sequence[int],
    threads: Sequence[int],
    platform: str,
) -> Iterator[Case]:
    """The matrix, one column of all models after the other, most important first."""
    wanted = columns or [column for row in COLUMNS.values() for column in row]
    unknown = {*wanted} - {column for row in COLUMNS.values() for column in row}
    if unknown:
        raise app.UsageError(f"--columns: no {', '.join(sorted(unknown))}")
    for batch in batches:
        for n in threads:
            for column in wanted:
                for graph, kind in kinds.items():
                    if column in COLUMNS[kind]:
                        options = {"platform": platform, **COLUMNS[kind][column]}
                        yield Case(graph, kind, batch, n, options)


def thread_counts(given: Sequence[str], platform: str) -> list[int]:
    """The numbers of threads of the matrix; an accelerator has a single one."""
    if platform == "cpu":
        return [int(n) for n in given or ("1", "2")]
    return [max((int(n) for n in given), default=len(CORES))]


def float_counterpart(graph: Path, kinds: Mapping[Path, str]) -> Path | None:
    """The float32 file whose name is the longest prefix of this one's."""
    found = [
        g for g, kind in kinds.items() if kind == "float32" and graph.stem.startswith(g.stem + "_")
    ]
    return max(found, key=lambda g: len(g.stem), default=None)


def extra_arguments(case: Case, kinds: Mapping[Path, str], ranges: Mapping[str, Any]) -> list[str]:
    """Arguments for the model's files and inputs."""
    found = [f"--rounds={FLAGS.rounds}", f"--seconds={FLAGS.seconds}"]
    onnx = Path(FLAGS.onnx or "", f"{case.graph.stem}.onnx")
    if FLAGS.onnx and onnx.exists():
        found.append(f"--onnx={onnx}")
    float_graph = float_counterpart(case.graph, kinds)
    if case.kind in QUANTIZED and float_graph is not None:
        found.append(f"--float_graph={float_graph}")
    for beginning, (low, high) in ranges.items():
        if case.graph.stem.startswith(beginning):
            found.append(f"--input_range={low},{high}")
    if FLAGS.platform != "cpu":
        found.append("--roofline=measured")
    return found


def main(_argv: list[str]) -> None:
    graphs = sorted(Path(FLAGS.models).glob("*.tflite"))
    kinds = {g: file_kind(g.read_bytes()) for g in graphs}
    chosen = {g: k for g, k in kinds.items() if not FLAGS.only or g.stem.startswith((*FLAGS.only,))}
    ranges = json.loads(Path(FLAGS.input_ranges).read_text()) if FLAGS.input_ranges else {}
    threads = thread_counts(FLAGS.threads, FLAGS.platform)
    batches = [int(n) for n in FLAGS.batches]
    matrix = cases(chosen, FLAGS.columns, batches, threads, FLAGS.platform)
    left = pending(matrix, Path(FLAGS.out), again=FLAGS.again)
    if FLAGS.dry_run:
        for i, case in enumerate(left):
            print(f"{i + 1}/{len(left)}", case.graph.stem, *case.arguments()[1:], case.threads)
        return
    extra = lambda case: extra_arguments(case, kinds, ranges)  # noqa: E731
    measure(left, extra, Path(FLAGS.out), timeout=FLAGS.timeout)


if __name__ == "__main__":
    app.run(main)
