"""What the callable classes of map_batches share: columns, rows that fail, counts and times."""

import abc
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, NoReturn, TypeVar

import numpy as np

from jaxdelegate.cache.programs import ProgramCache
from jaxdelegate.errors import OptionError
from jaxdelegate.ray import columns
from jaxdelegate.ray.errors import PredictionError
from jaxdelegate.ray.metrics import Meter, PredictorStats

_LOGGER = logging.getLogger("jaxdelegate")
_MAX_NAMED_ROWS = 10  # in an error

OnError = Literal["raise", "skip"]
Batch = Mapping[str, np.ndarray]
T = TypeVar("T")  # the inputs of a batch


class BatchPredictor(abc.ABC, Generic[T]):
    """Adds a model's outputs to the rows of a batch, as columns."""

    def __init__(self, name: str, outputs: Mapping[str, str], on_error: OnError, key: str | None):
        """`name`: of the model, for messages and metrics; `outputs`: the column of each."""
        if on_error not in ("raise", "skip"):
            raise OptionError(f"on_error: expected 'raise' or 'skip', got {on_error!r}")
        self._name, self._outputs = name, outputs
        self._skips, self._key = on_error == "skip", key
        self._meter = Meter(name)
        self._ended: float | None = None

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
        name = type(self).__name__
        raise TypeError(
            f"a {name} cannot be pickled or copied: give Ray the class, ds.map_batches("
            f"jaxdelegate.ray.{name}, fn_constructor_kwargs={{'model': path, ...}}), so that each "
            "actor creates its own"
        )

    @property
    def stats(self) -> PredictorStats:
        """Its counts and times so far."""
        stats, (seconds, programs) = self._meter.stats, self._opening
        stats.open_seconds = seconds
        if programs is not None:
            stats.programs_loaded = programs.statistics.loaded
            stats.programs_stored = programs.statistics.stored
        return stats

    @property
    @abc.abstractmethod
    def _opening(self) -> tuple[float, ProgramCache | None]:
        """How long opening the model took, and where programs are stored."""

    @abc.abstractmethod
    def _inputs_of(self, batch: Batch) -> tuple[T, dict[int, str]]:
        """The inputs of all rows, and why some of the rows do not fit."""

    @abc.abstractmethod
    def _run(
        self, inputs: T, batch: Batch, rows: Sequence[int]
    ) -> tuple[dict[str, np.ndarray], dict[int, str]]:
        """The outputs of those of these rows on which the model does not fail, and the others."""

    def _predicted(self, batch: Batch) -> dict[str, np.ndarray]:
        inputs, wrong = self._inputs_of(batch)
        self._check_columns(batch)
        count = columns.num_rows(batch)
        if wrong and not self._skips:
            raise self._error(batch, wrong)
        good = [i for i in range(count) if i not in wrong]
        found, failed = self._run(inputs, batch, good)
        wrong |= failed
        good = [i for i in good if i not in failed]
        self._count(len(good), batch, wrong)
        kept = {n: c if len(good) == count else np.asarray(c)[good] for n, c in batch.items()}
        return kept | {column: found[name] for name, column in self._outputs.items()}

    def _check_columns(self, batch: Batch) -> None:
        if self._key is not None:
            columns.column(batch, self._key, "key")
        taken = [column for column in self._outputs.values() if column in batch]
        if taken:
            raise PredictionError(
                f"output column {taken[0]!r} is already in the batch; give it another name: "
                "outputs={output: column}"
            )

    def _count(self, done: int, batch: Batch, wrong: Mapping[int, str]) -> None:
        self._meter.count("rows", done)
        self._meter.count("batches", 1)
        self._meter.count("rows_skipped", len(wrong))
        if wrong:
            _LOGGER.warning(
                "%s: skipped %d of %d rows: %s",
                self._name,
                len(wrong),
                columns.num_rows(batch),
                self._named(batch, wrong, len(wrong)),
            )

    def _error(self, batch: Batch, wrong: Mapping[int, str]) -> PredictionError:
        count = f"{len(wrong)} of {columns.num_rows(batch)} rows of a batch cannot be predicted"
        named = self._named(batch, wrong, _MAX_NAMED_ROWS)
        return PredictionError(f'{self._name}: {count}: {named}; on_error="skip" skips them')

    def _named(self, batch: Batch, wrong: Mapping[int, str], most: int) -> str:
        rows = sorted(wrong)
        named = [f"{self._row_name(batch, i)}: {wrong[i]}" for i in rows[:most]]
        return "; ".join([*named, *([f"and {len(rows) - most} more"] if len(rows) > most else [])])

    def _row_name(self, batch: Batch, row: int) -> str:
        if self._key is None:
            return f"row {row} of the batch"
        value = batch[self._key][row]
        return f"{self._key}={value.item() if isinstance(value, np.generic) else value!r}"


def output_columns(
    known: Sequence[str],
    given: Mapping[str, str] | Sequence[str] | None,
    default: Sequence[str] | None = None,
) -> dict[str, str]:
    """The column of each chosen output; by default of all, or of some."""
    if given is None:
        return {name: name for name in (known if default is None else default)}
    if isinstance(given, str):
        raise OptionError(f"outputs: expected a list of names or a mapping, got the text {given!r}")
    chosen = dict(given) if isinstance(given, Mapping) else {name: name for name in given}
    check_names("output", chosen, known)
    if not chosen or len({*chosen.values()}) < len(chosen):
        raise OptionError(
            f"outputs: expected at least one, and another column for each, got {chosen}"
        )
    return chosen


def check_names(kind: str, given: Any, known: Sequence[str]) -> None:
    """An OptionError for a name that the model does not have; `kind`: "input" or "output"."""
    for name in given:
        if name not in known:
            listed = ", ".join(map(repr, known))
            raise OptionError(f"{kind}s: {name!r} is not an {kind} of the model; it has {listed}")
