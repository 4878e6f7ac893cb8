"""The two sides of bench/fine_tuning.py, each with the same methods, and stock LiteRT beside them.

Inputs are in the dtypes of the .tflite file. Outputs and targets are in steps: floats on the scale
of the file's integers, where an output is quantized. Both sides minimize the sum over the outputs
of the mean squared error of that.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from agreement import Arrays, stock_outputs
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from ai_edge_litert.interpreter import OpResolverType
from harness import AbsentError
from processes import Worker, timed

import jaxdelegate as jd

# The two that litert-tunner's notebook and default train: without and with integers of weights.
SCALES = r".*(bias|weight_scale)$"
WEIGHTS = r".*(bias|weight_scale|weight_int8|kernel)$"
WORKER = Path(__file__).with_name("litert_tunner_worker.py")
_SCALES_RATE = 10.0  # by the scale itself: docs/fine_tuning.md


class Student(Protocol):
    """A side."""

    def prepare(self, path: Path, rate: float) -> None:
        """Read the file, and choose Adam's learning rate."""

    def epoch(self) -> tuple[float, float]:
        """Train with every batch once: wall seconds, and the mean loss."""

    def predict(self, x: Arrays) -> list[np.ndarray]:
        """Outputs in steps."""

    def save(self, path: Path) -> None:
        """Write the .tflite file."""

    def moved(self) -> int:
        """How many weights training changed; those that are not finite do not count."""


class JaxStudent:
    """jaxdelegate with optax: weights on their grids, biases, and scales if they are learned."""

    def __init__(self, ranges: str, x: Arrays, y: Arrays, batch: int) -> None:
        """Take examples in batches; 0: all at once."""
        self._ranges, self._x, self._y = ranges, x, y
        self._batches: list[Any] = [...]
        if batch:
            self._batches = [slice(i, i + batch) for i in range(0, len(x[0]), batch)]
        self._path: Path | None = None

    def prepare(self, path: Path, rate: float) -> None:
        if self._path != path:
            self._read(path)
        self.params, self._rate = dict(self._start), np.float32(rate)
        self._memory = self._optimizer.init({n: self.params[n] for n in self._trained})

    def _read(self, path: Path) -> None:
        self.model, self._path = jd.load(path), path
        parameters = self.model.parameters
        is_quantized = any(p.quantization is not None for p in parameters.values())
        weights = "fake_quantized" if is_quantized else "file"
        ranges = self._ranges if self.model.scales else "kept"
        self._apply, self._start = self.model.function(io="float", weights=weights, ranges=ranges)
        self._inputs, self._outputs = steps_of(path)
        self._optimizer = optax.adam(1.0)
        floats = {n for n, p in parameters.items() if p.tensors and jnp.issubdtype(p.dtype, "f")}
        self._trained = sorted(n for n in self._start if n in floats or n in self.model.scales)
        self._step = jax.jit(self._step_of)
        self._run = jax.jit(self._apply)

    def _loss(self, trained: Any, rest: Any, x: Arrays, y: Arrays) -> jax.Array:
        found = self._apply({**rest, **trained}, *x)
        pairs = zip(found, y, self._outputs, strict=True)
        errors = [jnp.mean(((f - r) / s) ** 2) for f, r, (s, _) in pairs if f.dtype.kind == "f"]
        if not errors:
            raise AbsentError("no output is a float or quantized")
        return sum(errors[1:], errors[0])

    def _step_of(self, params: Any, memory: Any, rate: Any, x: Arrays, y: Arrays) -> Any:
        trained = {n: params[n] for n in self._trained}
        loss, slopes = jax.value_and_grad(self._loss)(trained, params, x, y)
        updates, memory = self._optimizer.update(slopes, memory)
        updates = {
            n: rate * u * (_SCALES_RATE * params[n] if n in self.model.scales else 1)
            for n, u in updates.items()
        }
        return {**params, **optax.apply_updates(trained, updates)}, memory, loss

    def epoch(self) -> tuple[float, float]:
        return timed(self._epoch)

    def _epoch(self) -> float:
        losses = []
        for at in self._batches:
            x = self._reals([a[at] for a in self._x])
            y = [(a[at] - z) * s for a, (s, z) in zip(self._y, self._outputs, strict=True)]
            self.params, self._memory, loss = self._step(
                self.params, self._memory, self._rate, x, y
            )
            losses.append(loss)
        return float(np.mean(jax.device_get(losses)))

    def _reals(self, x: Arrays) -> list[np.ndarray]:
        return [real(a, step) for a, step in zip(x, self._inputs, strict=True)]

    def predict(self, x: Arrays) -> list[np.ndarray]:
        found = self._run(self.params, *self._reals(x))
        pairs = zip(found, self._outputs, strict=True)
        return [np.asarray(y) / s + z if s != 1 or z else np.asarray(y) for y, (s, z) in pairs]

    def save(self, path: Path) -> None:
        # Leaves that no file stores stay as they are, and a file without scales takes none.
        self.model.save(path, {n: self.params[n] for n in self._trained})

    def moved(self) -> int:
        return sum(
            not np.array_equal(self.params[n], self._start[n]) and bool(np.isfinite(leaf).all())
            for n, leaf in self.params.items()
        )


class TunerStudent:
    """litert-tunner in a process of its own."""

    def __init__(
        self,
        worker: Worker,
        pattern: str,
        x: Arrays,
        y: Arrays,
        batch: int,
        seconds: float = 1200.0,
    ) -> None:
        """Take examples in batches; 0: all at once.

        Args:
            worker: the process.
            pattern: names the variables to train.
            x: inputs.
            y: targets.
            batch: how many at once.
            seconds: that one request may take.
        """
        self._worker, self._pattern, self._batch = worker, pattern, batch
        self._seconds = seconds
        self._per_call = 0
        self._folder = tempfile.TemporaryDirectory()
        self._data = self._file("data.npz", x, y)
        self._batches = len(x[0]) // batch if batch else 1

    def _file(self, name: str, x: Arrays, y: Arrays = ()) -> str:
        path = Path(self._folder.name, name)
        arrays: Mapping[str, Any] = {f"x{i}": a for i, a in enumerate(x)}
        np.savez(path, **arrays, **{f"y{i}": a for i, a in enumerate(y)})
        return str(path)

    def _ask(self, command: str, **arguments: Any) -> Any:
        return self._worker.ask(self._seconds, do=command, **arguments)

    def prepare(self, path: Path, rate: float) -> None:
        if not self._per_call:
            self._per_call = self._faster(path) if self._batches > 1 else 1
        self._load(path, rate, self._per_call)

    def _load(self, path: Path, rate: float, per_call: int) -> None:
        self._ask("load", path=str(path), data=self._data, batch=self._batch)
        self._ask("prepare", rate=rate, pattern=self._pattern, steps_per_execution=per_call)

    def _faster(self, path: Path) -> int:
        """Keras' steps_per_execution: 1 or an epoch's, by the second epoch of each."""
        seconds = {}
        for per_call in (1, self._batches):
            self._load(path, 0.0, per_call)
            self.epoch()
            seconds[per_call] = min(self.epoch()[0] for _ in range(2))
        return min(seconds, key=lambda per_call: seconds[per_call])

    def versions(self) -> dict[str, Any]:
        """Of the libraries, and the steps of a call."""
        return {**self._ask("versions"), "steps_per_execution": self._per_call}

    def stop(self) -> None:
        """End the process."""
        self._worker.stop()

    def epoch(self) -> tuple[float, float]:
        seconds, loss = self._ask("epoch")
        return seconds, loss

    def predict(self, x: Arrays) -> list[np.ndarray]:
        out = Path(self._folder.name, "out.npz")
        self._ask("predict", data=self._file("inputs.npz", x), out=str(out))
        with np.load(out) as file:
            return [file[name] for name in file.files]

    def save(self, path: Path) -> None:
        self._ask("save", path=str(path))

    def moved(self) -> int:
        return int(self._ask("moved"))


Step = tuple[float, float]


def steps_of(path: Path) -> tuple[list[Step], list[Step]]:
    """Scale and zero point of each input and output of a file; 1 and 0 where there are none."""
    interpreter = StockInterpreter(str(path))
    details = interpreter.get_input_details(), interpreter.get_output_details()
    inputs, outputs = ([_step(d) for d in side] for side in details)
    return inputs, outputs


def _step(detail: Mapping[str, Any]) -> Step:
    scale, zero = detail["quantization"]
    return (float(scale), float(zero)) if scale else (1.0, 0.0)


def real(x: np.ndarray, step: Step) -> np.ndarray:
    """The floats that integers stand for; what has no scale stays as it is."""
    if step == (1.0, 0.0):
        return x
    return np.float32(step[0]) * (x.astype(np.float32) - np.float32(step[1]))


def exact(path: Path, x: Arrays) -> list[np.ndarray]:
    """What LiteRT's reference kernels compute, one example at a time, as the file stores it."""
    content = path.read_bytes()
    rows = [
        stock_outputs(content, [a[i : i + 1] for a in x], OpResolverType.BUILTIN_REF)
        for i in range(len(x[0]))
    ]
    return [np.concatenate(parts) for parts in zip(*rows, strict=True)]


def furthest(got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> float:
    """The largest difference of any value."""
    pairs = zip(got, want, strict=True)
    return max(float(np.abs(g.astype(np.float64) - w).max(initial=0)) for g, w in pairs)


def tuner(python: str, backend: str) -> Worker:
    """litert-tunner's process."""
    return Worker([python, str(WORKER)], {"KERAS_BACKEND": backend})
