"""Compares a delegate with a reference on random or given inputs: errors and latencies."""

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from jaxdelegate.comparison.bounds import Bounds
from jaxdelegate.comparison.inputs import INDEX_RANGES, InputSettings
from jaxdelegate.comparison.layers import LayerDiff, LayerReport
from jaxdelegate.comparison.likeness import Likeness
from jaxdelegate.comparison.metrics import Comparer, TensorComparison
from jaxdelegate.comparison.own_errors import OperatorCheck
from jaxdelegate.comparison.random_numbers import random_outputs
from jaxdelegate.comparison.sides import (
    ModelPath,
    Runner,
    Test,
    open_reference,
    reference_runner,
)
from jaxdelegate.comparison.tensors import comparer_for
from jaxdelegate.comparison.verdict import EndToEnd, Runs, check, precision
from jaxdelegate.errors import InterpreterError, OptionError
from jaxdelegate.measuring.inputs import free_dimensions
from jaxdelegate.measuring.stats import Latency
from jaxdelegate.model.records import read_model
from jaxdelegate.text import plural
from jaxdelegate.waiting import waiting


@dataclasses.dataclass(frozen=True)
class InferenceDiff:
    model: str  # the file, or "<bytes>"
    test: str  # the delegates under test
    reference: str  # the interpreter that they were compared with
    delegation: str  # how many operators the delegates took, as a sentence
    num_runs: int  # the number of sets of inputs
    seed: int  # of the inputs
    reference_latency: Latency  # of the reference's invocations
    test_latency: Latency  # of the test's
    outputs: tuple[TensorComparison, ...]
    layers: LayerReport | None = None  # the comparison of all computed tensors; None: not requested
    # If an output is out of bounds: each operator alone, and how alike the outputs are as a whole.
    operators: OperatorCheck | None = None
    likenesses: tuple[Likeness, ...] = ()
    random: tuple[str, ...] = ()  # outputs that depend on random numbers, and so must differ
    remarks: tuple[str, ...] = ()  # options without effect, sizes that were assumed
    against: str | None = None  # the file that the reference ran instead of the model; None: none

    @property
    def expected(self) -> str:
        """What the outputs were compared with, for people."""
        against = self.against and os.path.basename(self.against)
        return f"{against} ({self.reference})" if against else self.reference

    @property
    def agrees(self) -> bool:
        """Whether all outputs are within the bounds and no operator is wrong."""
        within = all(o.agrees or o.name in self.random for o in self.outputs)
        return within and not self.has_wrong_operators

    @property
    def is_healthy(self) -> bool:
        """Whether everything agrees, or differs by rounding only.

        That is so if no operator is wrong on its own, and the outputs are alike as a whole.
        """
        if self.agrees or self.has_wrong_operators:
            return self.agrees
        return bool(self.likenesses) and all(figure.agrees for figure in self.likenesses)

    @property
    def has_wrong_operators(self) -> bool:
        in_layers = self.layers is not None and bool(self.layers.wrong_operators())
        return in_layers or (self.operators is not None and bool(self.operators.wrong))


def inference_diff(
    model: ModelPath,
    test: Test,
    *,
    reference: str = "numpy",
    num_runs: int = 50,
    invocations_per_run: int = 1,
    inputs: InputSettings | None = None,
    bounds: Bounds | None = None,
    per_layer: bool = False,
    layer_runs: int = 1,
) -> InferenceDiff:
    """Run a model with delegates and in a reference interpreter, and compare.

    `test` is the side under test, e.g. `delegated(model, [JaxDelegate()])`, `reference` a key of
    `sides.REFERENCES`. Each of `num_runs` sets of inputs (None: random ones) is run and timed
    `invocations_per_run` times, 3 in TFLite's tool; the outputs of the last run are compared.
    `per_layer` also compares all intermediate tensors for `layer_runs` sets, in a program that
    returns them all.
    """
    check_counts(num_runs=num_runs, invocations_per_run=invocations_per_run, layer_runs=layer_runs)
    record = read_model(model)
    bounds = (bounds or Bounds()).for_precision(is_reduced=test.is_reduced)
    settings = with_usable_indices(inputs or InputSettings(), model, reference)
    got = Runner("test", test.open())
    source = settings.source(got.interpreter.get_input_details())
    main, random = record.subgraphs[0], random_outputs(record)
    comparers = [comparer_for(main.tensors[i], bounds) for i in main.outputs]
    sides = Sides(got, reference_runner(reference, model), comparers, random)
    with waiting(f"running both sides on {plural(num_runs, 'set')} of inputs (num_runs)"):
        for _ in tqdm(range(num_runs), "comparing", disable=None, leave=False):
            arrays = source()
            sides.run(arrays, arrays, invocations_per_run)
    runs = sides.runs
    of = precision(record, is_reduced=test.is_reduced)
    whole = EndToEnd(model, record, reference, test, runs.arrays, runs.want, of=of, random=random)
    found = sides.result(model, test, reference, settings.seed)
    return dataclasses.replace(
        found,
        layers=layer_errors(model, test, reference, layer_runs, settings, bounds)
        if per_layer
        else None,
        operators=check(model, record, test, reference, bounds, runs) if sides.differ else None,
        likenesses=whole(runs.got) if sides.differ else (),
        remarks=(*test.remarks, *free_dimensions(_unset(got, settings))),
    )


def _unset(runner: Runner, settings: InputSettings) -> list[Mapping[str, Any]]:
    """The details of the inputs without a shape in the settings."""
    details = runner.interpreter.get_input_details()
    return [d for d in details if d["name"] not in settings.shapes]


Results = tuple[Sequence[np.ndarray], Sequence[np.ndarray]]  # of the test and the reference


class Sides:
    """Runs the test and the reference, and compares their outputs over all runs."""

    def __init__(
        self, got: Runner, want: Runner, comparers: Sequence[Comparer], random: Collection[int]
    ) -> None:
        """`comparers` are of the reference's outputs; `random` are tensors that may differ."""
        self._got, self._want, self._comparers, self._random = got, want, comparers, random
        self.runs = Runs()
        self._outputs: tuple[TensorComparison, ...] = ()
        self._count = 0

    @property
    def _compared(self) -> list[TensorComparison]:
        return [o for o in self._outputs if o.index not in self._random]

    @property
    def differ(self) -> bool:
        return any(not o.agrees for o in self._compared)

    def run(
        self,
        given: Sequence[np.ndarray],
        wanted: Sequence[np.ndarray],
        invocations: int,
        read: Callable[..., Results] = lambda got, want: (got, want),
    ) -> None:
        """Run on the inputs of the test and of the reference.

        `read` makes of the outputs of both what is compared.
        """
        self._got(given, invocations)
        self._want(wanted, invocations)
        got, want = read(self._got.outputs(), self._want.outputs())
        for comparer, g, w in zip(self._comparers, got, want, strict=True):
            comparer.add(g, w)
        self._outputs = tuple(comparer.result() for comparer in self._comparers)
        self._count += 1
        self.runs.add(wanted, got, want, self._compared)

    def result(self, model: ModelPath, test: Test, reference: str, seed: int) -> InferenceDiff:
        """The record of the runs so far; the delegates have not run anything since."""
        return InferenceDiff(
            model=name_of(model),
            test=test.name,
            reference=reference,
            delegation=_delegation(test),
            num_runs=self._count,
            seed=seed,
            reference_latency=Latency.of(self._want.latencies),
            test_latency=Latency.of(self._got.latencies),
            outputs=self._outputs,
            random=tuple(o.name for o in self._outputs if o.index in self._random),
        )


def name_of(model: ModelPath) -> str:
    """The file's path, or "<bytes>"."""
    return "<bytes>" if isinstance(model, bytes) else os.fspath(model)


def check_counts(**counts: int) -> None:
    """Check that each is at least 1; an OptionError names the one that is not."""
    for name, value in counts.items():
        if value < 1:
            raise OptionError(f"{name}: must be at least 1, got {value}")


def layer_errors(
    model: ModelPath,
    test: Test,
    reference: str,
    layer_runs: int,
    inputs: InputSettings,
    bounds: Bounds,
) -> LayerReport:
    """Compare every computed tensor; the arguments are those of `inference_diff`."""
    record = read_model(model)
    want = reference_runner(reference, model, preserve_all_tensors=True)
    got = Runner("test", test.open(preserve_all_tensors=True))
    source = inputs.source(got.interpreter.get_input_details())
    layers = LayerDiff(record, got, test, want, bounds)
    for _ in tqdm(range(layer_runs), "comparing layers", disable=None, leave=False):
        layers.add(source())
    return layers.report()


def with_usable_indices(settings: InputSettings, model: ModelPath, reference: str) -> InputSettings:
    """The settings with a range of integer inputs, which may be indices, that the model can run."""
    details = open_reference(reference, model).get_input_details()
    if settings.index_range is not None or not settings.draws_indices(details):
        return settings
    for index_range in INDEX_RANGES:
        settled = dataclasses.replace(settings, index_range=index_range)
        try:
            reference_runner(reference, model)(settled.source(details)())
        except InterpreterError as error:
            failure = error
        else:
            return settled
    raise InterpreterError(f"{failure}; set the range of integer inputs: --input_layer_value_range")


def _delegation(test: Test) -> str:
    lines = [d.report().summary() for d in test.own_delegates() if test.nodes(d)]
    return " ".join(lines) or ("No operations were delegated." if test.delegates else "")
