"""Whether outputs out of bounds are wrong or rounded, for every delegate and reference."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence

import numpy as np

from jaxdelegate.comparison.bounds import SHORT_FLOATS, Bounds
from jaxdelegate.comparison.likeness import Likeness, Precision, Rows, figures
from jaxdelegate.comparison.metrics import TensorComparison
from jaxdelegate.comparison.own_errors import OperatorCheck, check_operators
from jaxdelegate.comparison.rounding import round_to, rounded_file
from jaxdelegate.comparison.sides import REFERENCES, ModelPath, Test, reference_runner
from jaxdelegate.errors import InterpreterError, ModelError
from jaxdelegate.model.records import Model
from jaxdelegate.model.source import open_source

_RUNS = 10  # enough to measure how alike outputs are


@dataclasses.dataclass
class Runs:
    """The inputs and outputs of the first runs, and of the first one that is out of bounds.

    Operators are checked in the first one out of bounds, and in the one that differs most.
    """

    arrays: list[Sequence[np.ndarray]] = dataclasses.field(default_factory=list)
    got: list[Sequence[np.ndarray]] = dataclasses.field(default_factory=list)
    want: list[Sequence[np.ndarray]] = dataclasses.field(default_factory=list)
    numbers: list[int] = dataclasses.field(default_factory=list)  # of these runs
    differing: Sequence[np.ndarray] | None = None  # inputs of the first one out of bounds
    farthest: Sequence[np.ndarray] | None = None  # inputs of the one that differs most
    _largest: float = 0.0
    _count: int = 0

    def add(
        self,
        arrays: Sequence[np.ndarray],
        got: Sequence[np.ndarray],
        want: Sequence[np.ndarray],
        compared: Sequence[TensorComparison],
    ) -> None:
        """Add a run; `compared`: its outputs, or those of all runs until now."""
        errors = (c.relative_to_largest for c in compared)
        error = max((e for e in errors if e is not None), default=0.0)
        agrees = all(c.agrees for c in compared)
        is_first = not agrees and self.differing is None
        if is_first:
            self.differing = arrays
        if not agrees and error > self._largest:
            self.farthest, self._largest = arrays, error
        if is_first or len(self.arrays) < _RUNS:
            self.arrays.append(arrays)
            self.got.append(got)
            self.want.append(want)
            self.numbers.append(self._count)
        self._count += 1


def check(
    model: ModelPath, record: Model, test: Test, reference: str, bounds: Bounds, runs: Runs
) -> OperatorCheck:
    """Each operator on the values of the named reference, in runs that are out of bounds."""
    assert runs.differing is not None, "every run is within the bounds"
    if not test.can_be_restricted:
        return OperatorCheck(0, (), 0, "the delegate is not written in Python")
    want = reference_runner(reference, model, preserve_all_tensors=True)
    others = (a for a in (runs.farthest,) if a is not None and a is not runs.differing)
    try:
        return check_operators(record, test, want, bounds, [runs.differing, *others])
    except InterpreterError as error:  # stock interpreters cannot keep all tensors of some models
        return OperatorCheck(0, (), 0, str(error))


@dataclasses.dataclass
class EndToEnd:
    """How alike outputs are to the reference's, next to those of LiteRT's other kernels."""

    model: ModelPath
    record: Model
    reference: str
    test: Test
    arrays: Sequence[Sequence[np.ndarray]]  # the inputs of each run
    want: Rows  # the reference's outputs, as they are compared
    of: Precision
    random: Collection[int]  # tensors that are not compared
    # From the outputs of an interpreter to what is compared.
    read: Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]] = list

    def __call__(self, got: Rows) -> tuple[Likeness, ...]:
        main = self.record.subgraphs[0]
        names = [main.tensors[i].name for i in main.outputs]
        return tuple(
            figure.likeness(names, got, self.want, self._others, self._rounded, self.of)
            for figure in figures(main, self.want[0])
            if not any(main.outputs[p] in self.random for p in figure.positions)
        )

    @functools.cached_property
    def _others(self) -> list[Rows]:
        kinds = (k for k, resolver in REFERENCES.items() if resolver and k != self.reference)
        return [rows for kind in kinds if (rows := self._rows(kind, self.model, self.arrays))]

    @functools.cached_property
    def _rounded(self) -> Rows:
        """The reference's outputs if weights and inputs are rounded as factors of products are."""
        short = self.test.operand
        if short is None:
            return ()
        content = bytes(open_source(self.model).content)
        arrays = [[round_to(a, short) for a in row] for row in self.arrays]
        return self._rows(self.reference, rounded_file(content, short), arrays)

    def _rows(self, kind: str, model: ModelPath, inputs: Sequence[Sequence[np.ndarray]]) -> Rows:
        """A reference's outputs; empty if it cannot run the model."""
        try:
            runner, rows = reference_runner(kind, model), []
            for arrays in inputs:
                runner(arrays)
                rows.append(self.read(runner.outputs()))
        except (InterpreterError, ModelError):
            return ()
        return rows


def precision(*records: Model, is_reduced: bool) -> Precision:
    """The least precise that models have; of two models, also that of the weights that one stores.

    `is_reduced`: whether one is computed in reduced precision.
    """
    tensors = [t for record in records for graph in record.subgraphs for t in graph.tensors]
    if any(t.spec().is_quantized for t in tensors):
        return "quantized"
    is_short = any(t.stored is not None and t.dtype in SHORT_FLOATS for t in tensors)
    return "reduced" if is_reduced or (is_short and len(records) > 1) else "float"
