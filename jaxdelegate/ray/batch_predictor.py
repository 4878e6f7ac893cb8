"""What the callable classes of map_batches share: columns, rows that fail, counts and times."""

import abc
import dataclasses
import functools
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, NoReturn, TypeVar

import numpy as np

from jaxdelegate.cache.programs import ProgramCache
from jaxdelegate.errors import (
    DeviceMemoryError,
    GenerationError,
    InterpreterError,
    OptionError,
    StoppedError,
    TensorError,
)
from jaxdelegate.optional import optional_module
from jaxdelegate.options import DelegateOptions
from jaxdelegate.ray import columns
from jaxdelegate.ray.columns import Batch, PredictionError
from jaxdelegate.ray.resources import assigned_resources, restrict, running_ray

_LOGGER = logging.getLogger("jaxdelegate")
_MAX_NAMED_ROWS = 10  # in an error
_ROW_ERRORS = (InterpreterError, TensorError, GenerationError)  # may be those of some rows only
_SECONDS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100]

OnError = Literal["raise", "skip"]
T = TypeVar("T")  # the inputs of a batch


def _metric(default: float, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"description": text})


@dataclasses.dataclass
class PredictorStats:
    rows: int = _metric(0, "Rows that were predicted.")
    rows_skipped: int = _metric(0, "Rows that were skipped because of an error.")
    rows_padded: int = _metric(0, "Rows that were computed only to fill a batch.")
    input_tokens: int = _metric(0, "Tokens that a language model read.")
    batches: int = _metric(0, "Batches that were predicted.")
    input_wait_seconds: float = _metric(
        0.0, "Time between two batches, in which the device was idle."
    )
    device_seconds: float = _metric(0.0, "Time to run a batch and wait for it.")
    open_seconds: float = 0.0  # in which the model was read and programs compiled or loaded
    programs_loaded: int = 0  # from the cache directory
    programs_stored: int = 0  # compiled, and stored there


def _ray_metrics(model: str) -> dict[str, Callable[[float], None]]:
    """What adds to Ray's metrics `jaxdelegate_<name>`, tagged with the model.

    Ray adds the prefix `ray_`; Prometheus's exporter adds `_total` to the names of counters.
    """
    if running_ray() is None:
        return {}
    module = optional_module("ray.util.metrics", "ray")
    metrics = dict[str, Callable[[float], None]]()
    for field in dataclasses.fields(PredictorStats):
        if not field.metadata:
            continue
        name = field.name
        more: dict[str, Any] = {**field.metadata, "tag_keys": ("model",)}
        if name.endswith("_seconds"):
            add = module.Histogram(f"jaxdelegate_{name}", boundaries=_SECONDS, **more).observe
        else:
            add = module.Counter(f"jaxdelegate_{name}", **more).inc
        metrics[name] = functools.partial(add, tags={"model": model})
    return metrics


class BatchPredictor(abc.ABC, Generic[T]):
    """Adds a model's outputs to the rows of a batch, as columns."""

    _outputs: Mapping[str, str]  # the column of each output
    _programs: ProgramCache | None  # where compiled programs are stored

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes,
        options: Mapping[str, Any] | DelegateOptions | None,
        on_error: OnError,
        key: str | None,
        num_threads: int | None,
    ) -> None:
        """Restrict this process to what Ray assigned to it; the subclass opens the model."""
        if on_error not in ("raise", "skip"):
            raise OptionError(f"on_error: expected 'raise' or 'skip', got {on_error!r}")
        self._options = restrict(assigned_resources(), options or {}, num_threads)
        self._name = "<bytes>" if isinstance(model, bytes) else os.path.basename(os.fspath(model))
        self._skips, self._key = on_error == "skip", key
        self._stats, self._metrics = PredictorStats(), _ray_metrics(self._name)
        self._ended: float | None = None
        self._begun = time.perf_counter()

    def _opened(self, programs: ProgramCache | None) -> None:
        """The model is open. While another process compiles a program, this one waits for it."""
        self._programs = programs
        if programs is not None:
            programs.compiles_once = True
        self._stats.open_seconds = time.perf_counter() - self._begun

    def __call__(self, batch: Batch) -> dict[str, np.ndarray]:
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
            self._add("input_wait_seconds", time.perf_counter() - self._ended)
        try:
            return self._predicted(batch)
        finally:
            self._ended = time.perf_counter()

    def __reduce__(self) -> NoReturn:
        """A TypeError: it has a model that is open in this process."""
        name = type(self).__name__
        raise TypeError(
            f"a {name} cannot be pickled or copied: give Ray the class, ds.map_batches("
            f"jaxdelegate.ray.{name}, fn_constructor_kwargs={{'model': path, ...}}), so that each "
            "actor creates its own"
        )

    @property
    def stats(self) -> PredictorStats:
        if self._programs is not None:
            self._stats.programs_loaded = self._programs.statistics.loaded
            self._stats.programs_stored = self._programs.statistics.stored
        return self._stats

    @abc.abstractmethod
    def _inputs_of(self, batch: Batch) -> tuple[T, dict[int, str]]:
        """The inputs of all rows, and why some of the rows do not fit."""

    @abc.abstractmethod
    def _run(self, inputs: T, rows: Sequence[int]) -> dict[str, np.ndarray]:
        """The outputs of some rows, [rows, ...]."""

    def _add(self, name: str, amount: float) -> None:
        setattr(self._stats, name, getattr(self._stats, name) + amount)
        if amount and name in self._metrics:  # Ray's counters refuse 0
            self._metrics[name](amount)

    def _predicted(self, batch: Batch) -> dict[str, np.ndarray]:
        inputs, wrong = self._inputs_of(batch)
        self._check_columns(batch)
        count = columns.num_rows(batch)
        if wrong and not self._skips:
            raise self._error(batch, wrong)
        good = [i for i in range(count) if i not in wrong]
        opened, begun = self._stats.open_seconds, time.perf_counter()
        outputs, failed = self._run_or_fail(batch, inputs, good)
        compiled = self._stats.open_seconds - opened
        self._add("device_seconds", time.perf_counter() - begun - compiled)
        wrong |= failed
        good = [i for i in good if i not in failed]
        for name, number in (("rows", len(good)), ("batches", 1), ("rows_skipped", len(wrong))):
            self._add(name, number)
        if wrong:
            named = self._named(batch, wrong, len(wrong))
            _LOGGER.warning("%s: skipped %d of %d rows: %s", self._name, len(wrong), count, named)
        kept = {n: c if len(good) == count else np.asarray(c)[good] for n, c in batch.items()}
        return kept | {column: outputs[name] for name, column in self._outputs.items()}

    def _run_or_fail(
        self, batch: Batch, inputs: T, rows: Sequence[int]
    ) -> tuple[dict[str, np.ndarray], dict[int, str]]:
        """The outputs of the rows on which the model does not fail, and why it fails on others."""
        try:
            return self._run(inputs, rows), {}
        except (DeviceMemoryError, StoppedError):
            raise
        except _ROW_ERRORS as error:
            parts: list[dict[str, np.ndarray]] = []
            failed: dict[int, str] = {}
            for row in rows:
                try:
                    parts.append(self._run(inputs, [row]))
                except _ROW_ERRORS as reason:
                    failed[row] = str(reason)
            if not failed:
                raise
            if not self._skips:
                raise self._error(batch, failed) from error
        parts = parts or [self._run(inputs, [])]
        return {name: concatenate([part[name] for part in parts]) for name in parts[0]}, failed

    def _check_columns(self, batch: Batch) -> None:
        if self._key is not None:
            columns.column(batch, self._key, "key")
        taken = [column for column in self._outputs.values() if column in batch]
        if taken:
            raise PredictionError(
                f"output column {taken[0]!r} is already in the batch; give it another name: "
                "outputs={output: column}"
            )

    def _error(self, batch: Batch, wrong: Mapping[int, str]) -> PredictionError:
        count = f"{len(wrong)} of {columns.num_rows(batch)} rows of a batch cannot be predicted"
        named = self._named(batch, wrong, _MAX_NAMED_ROWS)
        return PredictionError(f'{self._name}: {count}: {named}; on_error="skip" skips them')

    def _named(self, batch: Batch, wrong: Mapping[int, str], most: int) -> str:
        named = [f"{self._row_name(batch, i)}: {wrong[i]}" for i in sorted(wrong)[:most]]
        return "; ".join(named + ([f"and {len(wrong) - most} more"] if len(wrong) > most else []))

    def _row_name(self, batch: Batch, row: int) -> str:
        if self._key is None:
            return f"row {row} of the batch"
        value = batch[self._key][row]
        return f"{self._key}={value.item() if isinstance(value, np.generic) else value!r}"


def concatenate(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate arrays [k, ...]; object [n] of arrays if their rows differ in shape."""
    if len({part.shape[1:] for part in parts}) == 1:
        return np.concatenate(parts) if len(parts) > 1 else parts[0]
    rows = [row for part in parts for row in part]
    array = np.empty(len(rows), object)
    array[:] = rows
    return array
