"""Training a quantized .tflite and writing it back, by us and by litert-tunner if available.

    python bench/fine_tuning.py --graph=model_ToyCar_quant_fullint.tflite [--steps=200] [--batch=32]
        [--batches=20] [--rates=0.0001,0.001,0.01,0.1] [--judged=32] [--rounds=10]
        [--peer_python=PYTHON] [--backend=jax] [--out=file.jsonl]

For files with one input and one output. The inputs are random, of rank 8, over the range of the
input; the targets are the outputs of the file, as LiteRT computes them. Training starts from the
file with each weight times a random factor from 0.7 to 1.3. All sides read the same file and get
the same examples in the same order. On all sides Adam moves a quantized weight in steps of its
grid, a scale in proportion to itself, and a bias unscaled; each side uses the best of `--rates` for
it.

Sides: `jaxdelegate` trains weights and biases on their grids, `jaxdelegate_learned` scales too,
`litert_tunner` biases and scales of weights (its default), `litert_tunner_weights` weights too.
litert-tunner runs in its own process, with Keras' `fit`, jitted, and with the steps of an epoch as
one call or as many, whichever is faster.

* `loss` and `stock_loss`, before and after: the mean squared error of the side's outputs, and of
  the outputs of LiteRT's reference kernels for the file. The targets' mean has the error 1.
* `apart`: the trained model's outputs against the reference kernels' for the saved file, in steps
  of the output: the largest difference, and how many of the values differ.
* `reloaded`: the trained model against the saved file read by the same side, in such steps.
* `integer_apart`: `quant_mode="integer"` of the saved file against the reference kernels.
* `unchanged`: bytes that differ if the file is read and saved without training.
* `step_ms` and `ratio`: interleaved rounds of one epoch; wall time, so the ratio of a round counts.
"""

import dataclasses
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags
from agreement import stock_outputs
from ai_edge_litert.interpreter import OpResolverType
from harness import AbsentError, append, interleaved, last_line, ratios
from processes import WorkerError
from students import (
    SCALES,
    WEIGHTS,
    JaxStudent,
    Student,
    TunerStudent,
    exact,
    real,
    steps_of,
    stored,
    tuner,
)

import jaxdelegate as jd
from jaxdelegate.model.records import Subgraph, Tensor

FLAGS = flags.FLAGS
flags.DEFINE_string("graph", None, "A quantized .tflite.", required=True)
flags.DEFINE_integer("steps", 200, "Of training.", 1)
flags.DEFINE_integer("batch", 32, "Examples of a step.", 1)
flags.DEFINE_integer("batches", 20, "Of an epoch; all examples.", 1)
flags.DEFINE_list("rates", ["0.0001", "0.001", "0.01", "0.1"], "Adam's learning rates to try.")
flags.DEFINE_integer("judged", 32, "How many of the examples losses are measured with.", 1)
flags.DEFINE_integer("rounds", 10, "Timed epochs.", 1)
flags.DEFINE_string("peer_python", None, "A Python with litert-tunner; unset: only our side runs.")
flags.DEFINE_string("backend", "jax", "Of Keras.")
flags.DEFINE_string("out", None, "A file to append the JSON line to.")

_RANK = 8
_OVER = "litert_tunner_weights"


@dataclasses.dataclass(frozen=True)
class Task:
    """What to learn.

    Attributes:
        start: the file that is trained.
        x: inputs, float32.
        y: targets, float32.
        step: of the output.
    """

    start: Path
    x: np.ndarray
    y: np.ndarray
    step: float


def task_of(graph: Path, start: Path, count: int) -> Task:
    """Generate the examples, and disturb the file.

    Raises:
        AbsentError: several inputs or outputs, or an output that is not quantized.
    """
    main = jd.load(graph).graph.subgraphs[0]
    if len(main.inputs) != 1 or len(main.outputs) != 1:
        raise AbsentError("for files with one input and one output only")
    into, out = _quantized(main, main.inputs[0]), _quantized(main, main.outputs[0])
    if out is None or out.quantization is None:
        raise AbsentError("the output is not quantized")
    (taken,), (given,) = steps_of(graph)
    shape = main.tensors[main.inputs[0]].shape[1:]
    x = real(stored(examples(shape, count, _range(into)), taken), taken)
    disturb(graph, start)
    content, kernels = graph.read_bytes(), OpResolverType.AUTO
    rows = [stock_outputs(content, [stored(x[i : i + 1], taken)], kernels)[0] for i in range(count)]
    return Task(start, x, real(np.concatenate(rows), given), float(out.quantization.scale[0]))


def examples(shape: Sequence[int], count: int, between: tuple[float, float]) -> np.ndarray:
    """Floats [count, *shape] of a low rank around the middle; the ends are 8 deviations away."""
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(count, _RANK)), rng.normal(size=(_RANK, math.prod(shape)))
    low, high = between
    values = factors[0] @ factors[1] / math.sqrt(_RANK) * (high - low) / 16 + (high + low) / 2
    return np.clip(values, low, high).reshape(count, *shape).astype(np.float32)


def disturb(graph: Path, start: Path) -> None:
    """The file with each of its quantized weights times a random factor, clamped."""
    model, rng = jd.load(graph), np.random.default_rng(1)
    params = model.params
    wide = {n for n, p in model.parameters.items() if p.quantization is not None and p.tensors}
    matrices = sorted(n for n in wide if np.ndim(params[n]) > 1)
    factors = {n: rng.uniform(0.7, 1.3, np.shape(params[n])) for n in matrices}
    model.save(start, {n: np.float32(params[n] * f) for n, f in factors.items()})


def _quantized(main: Subgraph, index: int) -> Tensor | None:
    """A tensor, or the one on the other side of its QUANTIZE or DEQUANTIZE."""
    ends = [index]
    for op in main.operators:
        if op.name in ("QUANTIZE", "DEQUANTIZE") and index in (op.inputs[0], op.outputs[0]):
            ends += [op.inputs[0], op.outputs[0]]
    tensors = [main.tensors[i] for i in ends]
    return next((t for t in tensors if t.quantization is not None), None)


def _range(tensor: Tensor | None) -> tuple[float, float]:
    """The range of floats that a tensor's integers represent; [-1, 1] if unknown."""
    if tensor is None or tensor.quantization is None:
        return -1.0, 1.0
    q, info = tensor.quantization, np.iinfo(tensor.dtype)
    scale, zero = float(q.scale[0]), int(q.zero_point[0])
    return (info.min - zero) * scale, (info.max - zero) * scale


def trained(student: Student, task: Task, folder: Path) -> dict[str, Any]:
    """Train with each rate; the record of the best.

    Raises:
        AbsentError: no rate led to a file that could be saved.
    """
    x, y = task.x[: FLAGS.judged], task.y[: FLAGS.judged]
    runs = [
        with_rate(student, task, float(rate), folder / f"{rate}.tflite") for rate in FLAGS.rates
    ]
    best = min(runs, key=lambda run: np.nan_to_num(run["loss"][1], nan=np.inf))
    if "reason" in best:
        raise AbsentError(best["reason"])
    saved, own = best.pop("saved"), best.pop("own")
    want = exact(saved, x)
    best["first_epoch_s"] = runs[0]["first_epoch_s"]  # the others may find it compiled
    best["failed"] = {str(run["rate"]): run["reason"] for run in runs if "reason" in run}
    best["stock_loss"] = [relative(f, y) for f in (exact(task.start, x), want)]
    off = np.abs(own.astype(np.float64) - want) / task.step
    best["apart"] = {"largest": float(off.max()), "values": float((off > 0.5).mean())}
    student.prepare(saved, 0.0)
    best["reloaded"] = float(np.abs(student.predict([x])[0] - own).max() / task.step)
    if isinstance(student, JaxStudent):
        best["integer_apart"] = integer_apart(saved, x, want)
    return {**best, "unchanged": unchanged(student, task.start, folder / "same.tflite")}


def with_rate(student: Student, task: Task, rate: float, saved: Path) -> dict[str, Any]:
    """Train from the start with one rate, and save."""
    x, y = task.x[: FLAGS.judged], task.y[: FLAGS.judged]
    student.prepare(task.start, rate)
    before = relative(student.predict([x])[0], y)
    epochs = [student.epoch() for _ in range(max(1, FLAGS.steps // FLAGS.batches))]
    row: dict[str, Any] = {"rate": rate, "first_epoch_s": round(epochs[0][0], 2)}
    own = student.predict([x])[0]
    try:
        student.save(saved)
    except (
        WorkerError,
        jd.JaxDelegateError,
    ) as error:  # the rate was so high that training diverged
        return {**row, "loss": [before, np.inf], "reason": last_line(error)}
    return {**row, "loss": [before, relative(own, y)], "saved": saved, "own": own}


def relative(found: np.ndarray, wanted: np.ndarray) -> float:
    """The mean squared error over the variance of the targets between examples."""
    wide = wanted.astype(np.float64)
    return float(np.mean((found - wide) ** 2) / wide.var(axis=0).mean())


def integer_apart(saved: Path, x: np.ndarray, want: np.ndarray) -> float:
    """The largest difference of our exact evaluation from LiteRT's reference kernels."""
    apply, params = jd.load(saved, quant_mode="integer").function()
    (taken,), (given,) = steps_of(saved)
    found = real(np.asarray(apply(params, stored(x, taken))[0]), given)
    return float(np.abs(found.astype(np.float64) - want).max())


def unchanged(student: Student, start: Path, out: Path) -> int:
    """How many bytes differ if the file is saved without training."""
    student.prepare(start, 0.0)
    student.save(out)
    a, b = (np.frombuffer(p.read_bytes(), np.uint8) for p in (start, out))
    return abs(len(a) - len(b)) + int((a[: len(b)] != b[: len(a)]).sum())


def sides(task: Task) -> dict[str, Student]:
    """All sides that take part."""
    data = [task.x], [task.y], FLAGS.batch
    found: dict[str, Student] = {
        "jaxdelegate": JaxStudent("kept", *data),
        "jaxdelegate_learned": JaxStudent("learned", *data),
    }
    if FLAGS.peer_python:
        for name, pattern in (("litert_tunner", SCALES), (_OVER, WEIGHTS)):
            found[name] = TunerStudent(tuner(FLAGS.peer_python, FLAGS.backend), pattern, *data)
    return found


def timings(students: Mapping[str, Student]) -> dict[str, Any]:
    """Time epochs of all sides in turn."""
    times = interleaved({n: s.epoch for n, s in students.items()}, rounds=FLAGS.rounds)
    steps = {n: round(1e3 * float(np.median(t)) / FLAGS.batches, 2) for n, t in times.items()}
    over = _OVER if _OVER in times else "jaxdelegate"
    shown = {
        n: {key: round(v, 3) for key, v in row.items()} for n, row in ratios(times, over).items()
    }
    return {"step_ms": steps, "over": over, "ratio": shown}


def measure(folder: Path) -> dict[str, Any]:
    """One line: every side trained, or the reason; then the times."""
    count = FLAGS.batch * FLAGS.batches
    task = task_of(Path(FLAGS.graph), folder / "start.tflite", count)
    students, rows = sides(task), {}
    for name, student in students.items():
        place = folder / name
        place.mkdir()
        try:
            rows[name] = trained(student, task, place)
        except (AbsentError, WorkerError, jd.JaxDelegateError) as error:
            rows[name] = {"reason": last_line(error)}
    ready = {n: s for n, s in students.items() if "reason" not in rows[n]}
    found = {"sides": rows, **timings(ready)}
    peers = [s for s in students.values() if isinstance(s, TunerStudent)]
    if peers:
        found["peer"] = peers[0].versions()
    for peer in peers:
        peer.stop()
    return found


def main(_argv: Sequence[str]) -> None:
    """Train, compare, measure, print."""
    row = {"bench": "fine_tuning", "model": Path(FLAGS.graph).name}
    settings = {n: getattr(FLAGS, n) for n in ("steps", "batch", "batches", "judged")}
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = measure(Path(folder))
        except AbsentError as error:
            found = {"reason": last_line(error)}
    append({**row, **settings, **found}, FLAGS.out)


if __name__ == "__main__":
    app.run(main)
