"""Whether outputs out of bounds are wrong or rounded, for every delegate and reference."""

import dataclasses
import functools
from collections.abc import Collection, Sequence
from typing import NamedTuple

from jaxdelegate.comparison.bounds import Bounds, Precision
from jaxdelegate.comparison.figures import Likeness, Rows, figures
from jaxdelegate.comparison.metrics import Comparer, TensorComparison
from jaxdelegate.comparison.operators import OperatorCheck, check_operators
from jaxdelegate.comparison.sides import Arrays, Reference, Test
from jaxdelegate.errors import InterpreterError, ModelError
from jaxdelegate.model.records import Model

_RUNS = 10  # enough to measure how alike outputs are


class Run(NamedTuple):
    number: int  # from 0
    arrays: Arrays  # the inputs of both sides
    got: Arrays  # the outputs of the test
    want: Arrays  # the outputs of the reference


class Runs:
    """Compares the outputs of both sides over all runs, and keeps the runs that a verdict needs."""

    def __init__(self, comparers: Sequence[Comparer], random: Collection[int]) -> None:
        """`comparers` are of the reference's outputs; `random` are tensors that may differ."""
        self._comparers, self.random = comparers, random
        self.outputs: tuple[TensorComparison, ...] = ()  # over the runs so far
        self.kept = list[Run]()  # the first runs, and the first one that is out of bounds
        # The inputs of the first run out of bounds, and of the one that differs most: there
        # operators are checked.
        self.differing = list[Arrays]()
        self.count, self._largest = 0, 0.0

    @property
    def compared(self) -> tuple[TensorComparison, ...]:
        return tuple(o for o in self.outputs if o.index not in self.random)

    @property
    def differ(self) -> bool:
        return any(not output.agrees for output in self.compared)

    def add(self, arrays: Arrays, got: Arrays, want: Arrays) -> None:
        for comparer, g, w in zip(self._comparers, got, want, strict=True):
            comparer.add(g, w)
        self.outputs = tuple(comparer.result() for comparer in self._comparers)
        is_first = self.differ and not self.differing
        if is_first or len(self.kept) < _RUNS:
            self.kept.append(Run(self.count, arrays, got, want))
        if is_first:
            self.differing.append(arrays)
        errors = (output.relative_to_largest for output in self.compared)
        error = max((e for e in errors if e is not None), default=0.0)
        if self.differ and error > self._largest:
            self._largest = error
            self.differing[1:] = [] if is_first else [arrays]
        self.count += 1


def check(
    record: Model, test: Test, reference: Reference, bounds: Bounds, runs: Runs
) -> OperatorCheck:
    """Each operator on the values of the named reference, in runs that are out of bounds."""
    assert runs.differing, "every run is within the bounds"
    if not test.can_be_restricted:
        return OperatorCheck(0, (), 0, "the delegate is not written in Python")
    want = reference.runner(preserve_all_tensors=True)
    try:
        return check_operators(record, test, want, bounds, runs.differing)
    except InterpreterError as error:  # stock interpreters cannot keep all tensors of some models
        return OperatorCheck(0, (), 0, str(error))


@dataclasses.dataclass
class EndToEnd:
    """How alike outputs are to the reference's, next to those of LiteRT's other kernels."""

    record: Model  # of the reference
    test: Test
    reference: Reference
    runs: Runs
    of: Precision

    def __call__(self, got: Rows | None = None) -> tuple[Likeness, ...]:
        """Compare the test's outputs in the runs that were kept, or others for their inputs."""
        main, want = self.record.subgraphs[0], [run.want for run in self.runs.kept]
        got = [run.got for run in self.runs.kept] if got is None else got
        names = [main.tensors[i].name for i in main.outputs]
        return tuple(
            figure.likeness(names, got, want, self._others, self._rounded, self.of)
            for figure in figures(main, want[0])
            if not any(main.outputs[p] in self.runs.random for p in figure.positions)
        )

    @functools.cached_property
    def _others(self) -> list[Rows]:
        return [rows for other in self.reference.others() if (rows := self._rows(other))]

    @functools.cached_property
    def _rounded(self) -> Rows:
        """The reference's outputs if weights and inputs are rounded as factors of products are."""
        short = self.test.operand
        return () if short is None else self._rows(self.reference.rounded(short))

    def _rows(self, reference: Reference) -> Rows:
        """A reference's outputs; empty if it cannot run the model."""
        try:
            return reference.runner().all(run.arrays for run in self.runs.kept)
        except (InterpreterError, ModelError):
            return ()
