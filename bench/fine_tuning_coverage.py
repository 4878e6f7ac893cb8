"""Which .tflite files can be trained and written back, by us and by litert-tunner.

    python bench/fine_tuning_coverage.py --models=FOLDER --peer_python=PYTHON [--out=file.jsonl]
        [--lines=file.jsonl] [--timeout=120] [--backend=jax]

Each file is read, takes one step of Adam on random inputs and targets, and is saved. It counts as

* trained: a weight changed, and stock LiteRT computes the trained model's outputs from the saved
  file: the root mean square of the difference, less two steps of a quantized output, is at most a
  tenth of that of the values;
* outputs differ: read, but before any step its outputs are not the file's, by the same measure;
* saved file, outputs differ: trained, but stock LiteRT computes something else from what was saved;
* else by the reason.

Files without constants to train, or without an output that is float or quantized, are counted
separately. The summary is appended to `--out`, the line of each file to `--lines`. Each side runs
in its own process, which is restarted after a crash.
"""

import collections
import functools
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags
from agreement import reference
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from harness import append, without_folders
from processes import Worker, WorkerError, serve
from students import WEIGHTS, JaxStudent, Student, TunerStudent, real, steps_of, stored, tuner

from jaxdelegate.model.records import read_model
from jaxdelegate.testing.running import random_inputs

FLAGS = flags.FLAGS
flags.DEFINE_string("models", None, "A folder of .tflite files, and of folders of them.")
flags.DEFINE_string("peer_python", None, "A Python with litert-tunner.")
flags.DEFINE_string("backend", "jax", "Of Keras.")
flags.DEFINE_string("out", None, "A file to append the summary to.")
flags.DEFINE_string("lines", None, "A file to append the line of each file to.")
flags.DEFINE_float("timeout", 120.0, "Seconds that one request may take.")
flags.DEFINE_bool("serve", False, "Serve the requests of another process of this script.")

SIDES = "jaxdelegate", "litert_tunner"
_NEAR = 0.1
_SUFFIXES = ".tflite", ".bin", ".lite"
_FREE = 2.0
_RATE = 1e-3


def scheme(path: str) -> str:
    """How a file is quantized, by its activations and then by its constants."""
    tensors = [t for s in read_model(path).subgraphs for t in s.tensors]
    quantized = [t for t in tensors if t.quantization is not None and len(t.quantization.scale)]
    activations = {str(t.dtype) for t in quantized if t.data is None}
    constants = {str(t.dtype) for t in tensors if t.data is not None}
    for name in ("int16", "int8", "uint8"):
        if name in activations:
            return f"{name} activations"
    if any(t.data is not None for t in quantized) or "int4" in constants:
        return "dynamic range"
    return "float16" if "float16" in constants else "float32"


def begin(path: str, data: str) -> str | None:
    """Write inputs ("x0", "x1"...) and stock LiteRT's outputs ("y0", "y1"...) to a file.

    Returns:
        Why there is nothing to train; None if there is something.
    """
    raw = random_inputs(StockInterpreter(path).get_input_details())
    x = [real(a, step) for a, step in zip(raw, steps_of(Path(path))[0], strict=True)]
    y = computed(Path(path), x)
    arrays: Mapping[str, Any] = {f"x{i}": a for i, a in enumerate(x)}
    np.savez(data, **arrays, **{f"y{i}": a for i, a in enumerate(y)})
    if all(a.dtype.kind != "f" for a in y):
        return "no output is a float or quantized"
    tensors = [t for s in read_model(path).subgraphs for t in s.tensors if t.data is not None]
    if all(t.quantization is None and t.dtype.kind != "f" for t in tensors):
        return "no constants to train"
    return None


def side(path: str, data: str, name: str) -> str:
    """The result of one side for a file."""
    x, y = _read(data)
    graph = Path(path)
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder, "saved.tflite")
        student = _student(name, x, targets(y))
        student.prepare(graph, _RATE)
        if (off := apart(graph, x, student.predict(x))) > _NEAR:
            return f"outputs differ by {off:.2g}"
        student.epoch()
        if not student.moved():
            return "no weight changed"
        student.save(saved)
        off = apart(saved, x, student.predict(x))
        return f"saved file: outputs differ by {off:.2g}" if off > _NEAR else "trained"


def _student(name: str, x: list[np.ndarray], y: list[np.ndarray]) -> Student:
    if name == "jaxdelegate":
        return JaxStudent("learned", x, y, 0)
    return TunerStudent(_peer(), WEIGHTS, x, y, 0, seconds=FLAGS.timeout)


@functools.cache
def _peer() -> Worker:
    return tuner(FLAGS.peer_python, FLAGS.backend)


def computed(path: Path, x: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Stock LiteRT's outputs."""
    inputs, outputs = steps_of(path)
    given = [stored(a, step) for a, step in zip(x, inputs, strict=True)]
    found = reference(path.read_bytes(), given)
    return [real(y, step) for y, step in zip(found, outputs, strict=True)]


def apart(path: Path, x: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> float:
    """The root mean square of the difference from stock LiteRT's outputs, over that of the outputs.

    Two steps of a quantized output are free.
    """
    worst = 0.0
    for y, w, step in zip(found, computed(path, x), steps_of(path)[1], strict=True):
        if y.shape != w.shape:
            raise ValueError(f"an output of shape {y.shape} for {w.shape}")
        a, b = (v.astype(np.float64) for v in (y, w))
        free = _FREE * step.scale if step.is_quantized else 0.0
        off = (_rms(a - b) - free) / (_rms(b) or 1.0)
        worst = max(worst, off if np.isfinite(off) else np.inf)
    return worst


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0


def targets(y: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Random floats around the outputs, so that every one of them has a gradient."""
    rng = np.random.default_rng(0)
    wide = [a.astype(np.float32) for a in y]
    return [a + (a.std() or np.float32(1)) * np.float32(rng.normal(size=a.shape)) for a in wide]


def _read(data: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    with np.load(data) as file:
        x = [file[n] for n in file.files if n.startswith("x")]
        return x, [file[n] for n in file.files if n.startswith("y")]


def of_file(path: Path, worker: Worker) -> dict[str, Any]:
    """The results of both sides for a file."""
    row: dict[str, Any] = {"model": path.name}
    with tempfile.TemporaryDirectory() as folder:
        files = {"path": str(path), "data": str(Path(folder, "data.npz"))}
        try:
            row["scheme"] = worker.ask(FLAGS.timeout, do="scheme", path=str(path))
            left_out = worker.ask(FLAGS.timeout, do="begin", **files)
        except WorkerError as error:
            left_out = f"not run by LiteRT: {_short(error)}"
        if left_out is not None:
            return {**row, "left_out": left_out}
        for name in SIDES:
            try:
                row[name] = worker.ask(2 * FLAGS.timeout, do="side", **files, name=name)
            except WorkerError as error:
                row[name] = _short(error)
    return row


def _short(error: Exception) -> str:
    """The first line, without lists of alternatives."""
    line = without_folders(str(error).splitlines()[0])
    return re.sub(r"Registered ops.*", "", line)[:160].strip(" '\"")


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts by scheme and side, and the files of each reason."""
    kept = [row for row in rows if "left_out" not in row]
    counts: dict[str, Any] = {}
    for row in kept:
        of_scheme = counts.setdefault(row["scheme"], {"files": 0, **dict.fromkeys(SIDES, 0)})
        of_scheme["files"] += 1
        for name in SIDES:
            of_scheme[name] += row[name] == "trained"
    reasons = {
        name: dict(collections.Counter(kind_of(row[name]) for row in kept).most_common())
        for name in SIDES
    }
    left_out = collections.Counter(kind_of(row["left_out"]) for row in rows if "left_out" in row)
    return {"files": len(rows), "left_out": dict(left_out), "trained": counts, "reasons": reasons}


def kind_of(reason: str) -> str:
    """A result without its numbers and names."""
    if (operator := re.search(r"Unsupported op type '(\w+)", reason)) is not None:
        return f"no {operator[1]}"
    for kind in ("trained", "saved file: outputs differ", "outputs differ", "not run by LiteRT"):
        if reason.startswith(kind):
            return kind
    return re.sub(r"\d[\d., x()]*", "n ", reason)[:80].strip()


def main(_argv: Sequence[str]) -> None:
    """Process the files, or serve requests for single ones."""
    if FLAGS.serve:
        serve({"scheme": scheme, "begin": begin, "side": side})
        return
    paths = sorted(p for p in Path(FLAGS.models).rglob("*") if p.suffix in _SUFFIXES)
    own = [f"--{n}={getattr(FLAGS, n)}" for n in ("peer_python", "backend", "timeout")]
    worker = Worker([sys.executable, __file__, "--serve", *own])
    rows = []
    for path in paths:
        rows.append(of_file(path, worker))
        append({"bench": "fine_tuning_coverage", **rows[-1]}, FLAGS.lines)
    worker.stop()
    append({"bench": "fine_tuning_coverage", **summary(rows)}, FLAGS.out)


if __name__ == "__main__":
    app.run(main)
