"""A model as the callable class that Ray Data's map_batches runs in actors."""

import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn

import numpy as np

from jaxdelegate.errors import (
    DeviceMemoryError,
    InterpreterError,
    OptionError,
    StoppedError,
    TensorError,
)
from jaxdelegate.options import DelegateOptions
from jaxdelegate.ray import columns
from jaxdelegate.ray.batched_model import BatchedModel, Rows, concatenate
from jaxdelegate.ray.errors import PredictionError, running_ray
from jaxdelegate.ray.metrics import Meter, PredictorStats
from jaxdelegate.ray.resources import assigned_resources, restrict

_LOGGER = logging.getLogger("jaxdelegate")
_MAX_NAMED_ROWS = 10  # in an error


class Predictor:
    """Adds a model's outputs to the rows of a data set, as columns.

    ```python
    ds.map_batches(
        jaxdelegate.ray.Predictor,
        fn_constructor_kwargs={"model": "model.tflite", "inputs": {"image": "pixels"}},
        batch_size=8,
        compute=ray.data.ActorPoolStrategy(size=2),
    )
    ```

    Each actor uses only what Ray assigned to it: with `num_gpus=1` its GPU, without a GPU one CPU
    thread for each of its CPUs. Outside of Ray it is a function of dictionaries of numpy arrays.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes | Any,
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | Sequence[str] | None = None,
        *,
        signature: str | None = None,
        options: Mapping[str, Any] | DelegateOptions | None = None,
        batch_sizes: Sequence[int] | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        key: str | None = None,
        num_threads: int | None = None,
    ) -> None:
        """Read the model; programs are compiled when the first batch arrives.

        Args:
            model: a path that every actor can read, a file's content, or the reference of content
                in Ray's object store (`ray.put(content)`).
            inputs: the column of each input; by default the column with the input's name.
            outputs: which outputs to add, or the column of each; None: all, by their names.
            signature: of the model; None: the only one, or the main subgraph of a file without.
            options: JaxDelegate's. With `serialization_dir`, a directory of compiled programs, the
                first actor compiles, the others wait and load.
            batch_sizes: for which programs may be compiled; the largest splits larger batches.
                None: as batches arrive, and smaller ones are padded.
            on_error: what to do with rows that fail: "raise" ends the job and names them, "skip"
                removes them from the data set; the log names them, and a metric counts them.
            key: the column that names rows in errors.
            num_threads: of XLA's CPU client; None: one for each of the actor's CPUs.

        Raises:
            ModelError: the file is not a model, or damaged.
            OptionError: an impossible value, a name that the model does not have, or a device that
                Ray did not assign to this actor.
        """
        if on_error not in ("raise", "skip"):
            raise OptionError(f"on_error: expected 'raise' or 'skip', got {on_error!r}")
        given = options.changed() if isinstance(options, DelegateOptions) else dict(options or {})
        known = restrict(assigned_resources(), given, num_threads)
        self._model = BatchedModel(
            _content(model),
            known,
            signature=signature,
            batch_sizes=batch_sizes,
            trusts_batch=given.get("rebatch") is False,
            compiles_once=True,
        )
        self._inputs = _input_columns(self._model, inputs)
        self._outputs = _output_columns(self._model, outputs)
        self._skips, self._key = on_error == "skip", key
        self._meter = Meter(self._model.name)
        self._ended: float | None = None

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Predict a batch.

        Args:
            batch: columns [n, ...] by name.

        Returns:
            The same columns and those of the outputs, without the rows that were skipped.

        Raises:
            PredictionError: a column is missing, or does not fit its input; or, with
                on_error="raise", a row does not fit, or the model failed on it.
            InterpreterError: the model failed, whatever the rows.
        """
        if self._ended is not None:
            self._meter.observe("input_wait_seconds", time.perf_counter() - self._ended)
        try:
            return self._predicted(batch)
        finally:
            self._ended = time.perf_counter()

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: it has a model that is open in this process.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            "a Predictor cannot be pickled or copied: give Ray the class, ds.map_batches("
            "jaxdelegate.ray.Predictor, fn_constructor_kwargs={'model': path, ...}), so that each "
            "actor creates its own"
        )

    @property
    def stats(self) -> PredictorStats:
        """Its counts and times so far."""
        stats, programs = self._meter.stats, self._model.delegate.programs
        stats.open_seconds = self._model.open_seconds
        if programs is not None:
            stats.programs_loaded = programs.statistics.loaded
            stats.programs_stored = programs.statistics.stored
        return stats

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user may want to know about how the model runs, such as row by row."""
        return self._model.notes

    def _predicted(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        rows, wrong = self._rows(batch)
        count = columns.num_rows(batch)
        if wrong and not self._skips:
            raise self._error(batch, wrong)
        good = [i for i in range(count) if i not in wrong]
        found, failed = self._run(_select(rows, good), batch, good)
        wrong |= failed
        good = [i for i in good if i not in failed]
        self._count(len(good), batch, wrong)
        kept = {n: c if len(good) == count else np.asarray(c)[good] for n, c in batch.items()}
        return kept | {column: found[name] for name, column in self._outputs.items()}

    def _rows(self, batch: Mapping[str, np.ndarray]) -> tuple[Rows, dict[int, str]]:
        rows: dict[str, np.ndarray] = {}
        wrong: dict[int, str] = {}
        if self._key is not None:
            columns.column(batch, self._key, "key")
        for tensor in self._model.signature.inputs:
            name = self._inputs[tensor.name]
            value = columns.column(batch, name, f"input {tensor.name!r}")
            shape = self._model.signature.row_shape(tensor)
            rows[tensor.name], bad = columns.to_array(value, tensor, shape, name)
            wrong = bad | wrong
        taken = [column for column in self._outputs.values() if column in batch]
        if taken:
            raise PredictionError(
                f"output column {taken[0]!r} is already in the batch; give it another name: "
                "outputs={output: column}"
            )
        return rows, wrong

    def _run(
        self, rows: Rows, batch: Mapping[str, np.ndarray], numbers: Sequence[int]
    ) -> tuple[dict[str, np.ndarray], dict[int, str]]:
        """The outputs of the rows on which the model does not fail, and the other rows' errors."""
        if not numbers:
            return self._model.no_rows(), {}
        before, padded = self._model.seconds, self._model.padded
        try:
            return self._model.run(rows), {}
        except (DeviceMemoryError, StoppedError):
            raise
        except (InterpreterError, TensorError) as error:
            return self._one_by_one(rows, batch, numbers, error)
        finally:
            self._meter.observe("device_seconds", self._model.seconds - before)
            self._meter.count("rows_padded", self._model.padded - padded)

    def _one_by_one(
        self,
        rows: Rows,
        batch: Mapping[str, np.ndarray],
        numbers: Sequence[int],
        error: Exception,
    ) -> tuple[dict[str, np.ndarray], dict[int, str]]:
        """After a failure of the batch: find the rows that fail."""
        found: list[dict[str, np.ndarray]] = []
        failed: dict[int, str] = {}
        for at, number in enumerate(numbers):
            try:
                found.append(self._model.run(_select(rows, [at])))
            except (InterpreterError, TensorError) as own:
                failed[number] = str(own)
        if not failed:
            raise error  # no single row fails
        if not self._skips:
            raise self._error(batch, failed) from error
        if not found:
            return self._model.no_rows(), failed
        return {name: concatenate([row[name] for row in found]) for name in found[0]}, failed

    def _count(self, done: int, batch: Mapping[str, np.ndarray], wrong: Mapping[int, str]) -> None:
        self._meter.count("rows", done)
        self._meter.count("batches", 1)
        self._meter.count("rows_skipped", len(wrong))
        if wrong:
            _LOGGER.warning(
                "%s: skipped %d of %d rows: %s",
                self._model.name,
                len(wrong),
                columns.num_rows(batch),
                self._named(batch, wrong, len(wrong)),
            )

    def _error(self, batch: Mapping[str, np.ndarray], wrong: Mapping[int, str]) -> PredictionError:
        count = f"{len(wrong)} of {columns.num_rows(batch)} rows of a batch cannot be predicted"
        named = self._named(batch, wrong, _MAX_NAMED_ROWS)
        return PredictionError(f'{self._model.name}: {count}: {named}; on_error="skip" skips them')

    def _named(self, batch: Mapping[str, np.ndarray], wrong: Mapping[int, str], most: int) -> str:
        rows = sorted(wrong)
        named = [f"{self._name(batch, i)}: {wrong[i]}" for i in rows[:most]]
        return "; ".join([*named, *([f"and {len(rows) - most} more"] if len(rows) > most else [])])

    def _name(self, batch: Mapping[str, np.ndarray], row: int) -> str:
        if self._key is None:
            return f"row {row} of the batch"
        value = batch[self._key][row]
        return f"{self._key}={value.item() if isinstance(value, np.generic) else value!r}"


def _select(rows: Rows, numbers: Sequence[int]) -> Rows:
    if not rows or len(numbers) == len(next(iter(rows.values()))):
        return rows
    return {name: array[list(numbers)] for name, array in rows.items()}


def _content(model: Any) -> str | bytes:
    """A path, or a file's content, fetched from the object store if `model` is a reference.

    Nothing is unpickled: only bytes are a model.
    """
    ray = running_ray()
    if ray is not None and isinstance(model, ray.ObjectRef):
        content = ray.get(model)
        if not isinstance(content, bytes):
            raise OptionError(
                f"model: expected a reference of bytes, the content of a .tflite file, got one of "
                f"{type(content).__name__}"
            )
        return content
    if isinstance(model, bytes):
        return model
    if isinstance(model, str | os.PathLike):
        return str(os.fspath(model))
    raise OptionError(
        "model: expected a path, bytes, or a Ray object reference of bytes, got "
        f"{type(model).__name__}"
    )


def _input_columns(model: BatchedModel, given: Mapping[str, str] | None) -> dict[str, str]:
    names = [tensor.name for tensor in model.signature.inputs]
    given = given or {}
    _check_names("input", given, names)
    return {name: given.get(name, name) for name in names}


def _output_columns(
    model: BatchedModel, given: Mapping[str, str] | Sequence[str] | None
) -> dict[str, str]:
    names = [tensor.name for tensor in model.signature.outputs]
    if given is None:
        return {name: name for name in names}
    if isinstance(given, str):
        raise OptionError(f"outputs: expected a list of names or a mapping, got the text {given!r}")
    chosen = dict(given) if isinstance(given, Mapping) else {name: name for name in given}
    _check_names("output", chosen, names)
    if not chosen or len({*chosen.values()}) < len(chosen):
        raise OptionError(
            f"outputs: expected at least one, and another column for each, got {chosen}"
        )
    return chosen


def _check_names(kind: str, given: Mapping[str, str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            listed = ", ".join(map(repr, known))
            raise OptionError(f"{kind}s: {name!r} is not an {kind} of the model; it has {listed}")
