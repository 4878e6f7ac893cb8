"""The two sides of bench/fine_tuning.py with the same methods, and stock LiteRT.

Inputs, outputs and targets are the floats that a file's integers represent: learned scales change
the integers. Both sides minimize the sum over the outputs of the mean squared error, in
steps of the outputs that are quantized.
"""

import dataclasses
import tempfile
from collections.abc import Mapping
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


class Student(Protocol):
    """A side."""

    def prepare(self, path: Path, rate: float) -> None:
        """Read the file, and choose Adam's learning rate."""

    def epoch(self) -> tuple[float, float]:
        """Train on every batch once; wall seconds and the mean loss."""

    def predict(self, x: Arrays) -> list[np.ndarray]:
        """Outputs."""

    def save(self, path: Path) -> None:
        """Write the .tflite file."""

    def moved(self) -> int:
        """How many weights changed and are finite."""


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
        self._units = [step.scale for step in steps_of(path)[1]]
        self._optimizer = optax.adam(1.0)
        floats = {n for n, p in parameters.items() if p.tensors and jnp.issubdtype(p.dtype, "f")}
        self._trained = sorted(n for n in self._start if n in floats or n in self.model.scales)
        self._step = jax.jit(self._step_of)
        self._run = jax.jit(self._apply)

    def _loss(self, trained: Any, rest: Any, x: Arrays, y: Arrays) -> jax.Array:
        found = self._apply({**rest, **trained}, *x)
        pairs = zip(found, y, self._units, strict=True)
        errors = [jnp.mean(((f - r) / unit) ** 2) for f, r, unit in pairs if f.dtype.kind == "f"]
        if not errors:
            raise AbsentError("no output is a float or quantized")
        return sum(errors[1:], errors[0])

    def _step_of(self, params: Any, memory: Any, rate: Any, x: Arrays, y: Arrays) -> Any:
        trained = {n: params[n] for n in self._trained}
        loss, slopes = jax.value_and_grad(self._loss)(trained, params, x, y)
        updates, memory = self._optimizer.update(slopes, memory)
        updates = {n: rate * self._unit(n, params) * u for n, u in updates.items()}
        return {**params, **optax.apply_updates(trained, updates)}, memory, loss

    def _unit(self, name: str, params: Any) -> Any:
        """How far Adam moves a leaf at the rate 1, as litert-tunner scales its variables.

        A quantized weight by a step of its grid, a scale by its value, all others by 1.
        """
        if name in self.model.scales:
            return params[name]
        parameter = self.model.parameters[name]
        q = parameter.quantization
        if q is None or parameter.stored_dtype.itemsize > 2:  # a bias
            return 1.0
        shape = [1] * len(parameter.shape)
        if q.is_per_channel:
            shape[q.quantized_dimension] = -1
        return q.scale.reshape(shape)

    def epoch(self) -> tuple[float, float]:
        return timed(self._epoch)

    def _epoch(self) -> float:
        losses = []
        for at in self._batches:
            x, y = ([a[at] for a in side] for side in (self._x, self._y))
            self.params, self._memory, loss = self._step(
                self.params, self._memory, self._rate, x, y
            )
            losses.append(loss)
        return float(np.mean(jax.device_get(losses)))

    def predict(self, x: Arrays) -> list[np.ndarray]:
        return [np.asarray(y) for y in self._run(self.params, *x)]

    def save(self, path: Path) -> None:
        # Leaves that no file stores are not trained, and a file without scales has none to learn.
        self.model.save(path, {n: self.params[n] for n in self._trained})

    def moved(self) -> int:
        return sum(
            not np.array_equal(self.params[n], self._start[n]) and bool(np.isfinite(leaf).all())
            for n, leaf in self.params.items()
        )


class TunerStudent:
    """litert-tunner in a child process."""

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
        self._x, self._y = x, y
        self._batches = len(x[0]) // batch if batch else 1

    def _file(self, name: str, x: Arrays, y: Arrays = ()) -> str:
        path = Path(self._folder.name, name)
        arrays: Mapping[str, Any] = {f"x{i}": a for i, a in enumerate(x)}
        np.savez(path, **arrays, **{f"y{i}": a for i, a in enumerate(y)})
        return str(path)

    def _integers(self, x: Arrays) -> list[np.ndarray]:
        """Integers as floats, which its models take."""
        return [stored(a, step) for a, step in zip(x, self._inputs, strict=True)]

    def _ask(self, command: str, **arguments: Any) -> Any:
        return self._worker.ask(self._seconds, do=command, **arguments)

    def prepare(self, path: Path, rate: float) -> None:
        if not self._per_call:
            self._per_call = self._faster(path) if self._batches > 1 else 1
        self._load(path, rate, self._per_call)

    def _load(self, path: Path, rate: float, per_call: int) -> None:
        self._inputs, self._outputs = steps_of(path)
        y = [a / s.scale + s.zero for a, s in zip(self._y, self._outputs, strict=True)]
        data = self._file("data.npz", self._integers(self._x), y)
        self._ask("load", path=str(path), data=data, batch=self._batch)
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
        """The libraries' versions, and the steps of a call."""
        return {**self._ask("versions"), "steps_per_execution": self._per_call}

    def stop(self) -> None:
        """End the process."""
        self._worker.stop()

    def epoch(self) -> tuple[float, float]:
        seconds, loss = self._ask("epoch")
        return seconds, loss

    def predict(self, x: Arrays) -> list[np.ndarray]:
        out = Path(self._folder.name, "out.npz")
        self._ask("predict", data=self._file("inputs.npz", self._integers(x)), out=str(out))
        with np.load(out) as file:
            found = [file[name] for name in file.files]
        return [real(y, step) for y, step in zip(found, self._outputs, strict=True)]

    def save(self, path: Path) -> None:
        self._ask("save", path=str(path))

    def moved(self) -> int:
        return int(self._ask("moved"))


@dataclasses.dataclass(frozen=True)
class Step:
    """How an input or output stores floats; unquantized ones have scale 1 and zero point 0."""

    scale: float
    zero: float
    dtype: np.dtype
    is_quantized: bool


def steps_of(path: Path) -> tuple[list[Step], list[Step]]:
    """The steps of each input and each output of a file."""
    interpreter = StockInterpreter(str(path))
    details = interpreter.get_input_details(), interpreter.get_output_details()
    inputs, outputs = ([_step(d) for d in side] for side in details)
    return inputs, outputs


def _step(detail: Mapping[str, Any]) -> Step:
    scale, zero = detail["quantization"]
    return Step(float(scale) or 1.0, float(zero), np.dtype(detail["dtype"]), bool(scale))


def real(x: np.ndarray, step: Step) -> np.ndarray:
    """The floats that integers represent; arrays without a scale are unchanged."""
    if not step.is_quantized:
        return x
    return np.float32(step.scale) * (x.astype(np.float32) - np.float32(step.zero))


def stored(x: np.ndarray, step: Step) -> np.ndarray:
    """Floats as a file's input stores them."""
    if not step.is_quantized:
        return x
    info = np.iinfo(step.dtype)
    return np.clip(np.rint(x / step.scale) + step.zero, info.min, info.max).astype(step.dtype)


def exact(path: Path, x: np.ndarray) -> np.ndarray:
    """The outputs of LiteRT's reference kernels for a file's one input, one example at a time."""
    (into,), (out,) = steps_of(path)
    content, given = path.read_bytes(), stored(x, into)
    kernels = OpResolverType.BUILTIN_REF
    rows = [stock_outputs(content, [given[i : i + 1]], kernels)[0] for i in range(len(given))]
    return real(np.concatenate(rows), out)


def tuner(python: str, backend: str) -> Worker:
    """litert-tunner's process."""
    return Worker([python, str(WORKER)], {"KERAS_BACKEND": backend})
