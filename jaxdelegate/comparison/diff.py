"""Compares a delegate with a reference on random inputs or those of files: errors, latencies."""

import dataclasses
import os

from tqdm import tqdm

from jaxdelegate.comparison.bounds import Bounds, precision
from jaxdelegate.comparison.figures import Likeness
from jaxdelegate.comparison.inputs import InputSettings, with_usable_indices
from jaxdelegate.comparison.layers import LayerReport, layer_errors
from jaxdelegate.comparison.metrics import TensorComparison, comparer_for
from jaxdelegate.comparison.operators import OperatorCheck
from jaxdelegate.comparison.random_numbers import random_outputs
from jaxdelegate.comparison.sides import ModelPath, Reference, Runner, Test
from jaxdelegate.comparison.verdict import EndToEnd, Runs, check
from jaxdelegate.errors import check_least
from jaxdelegate.measuring.inputs import InputSource, free_dimensions
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
        against = self.against and os.path.basename(self.against)
        return f"{against} ({self.reference})" if against else self.reference

    @property
    def agrees(self) -> bool:
        """Whether all outputs are within the bounds and no operator is wrong."""
        within = all(o.agrees or o.name in self.random for o in self.outputs)
        return within and not self.has_wrong_operators

    @property
    def is_healthy(self) -> bool:
        """Whether everything agrees, or differs by rounding only."""
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
    per_layer: int = 0,
) -> InferenceDiff:
    """Run a model with delegates and in a reference interpreter, and compare.

    `test` is the side under test, e.g. `delegated(model, [JaxDelegate()])`, `reference` a key of
    `sides.REFERENCES`. Each of `num_runs` sets of inputs (None: random ones) is run and timed
    `invocations_per_run` times, 3 in TFLite's tool; the outputs of the last run are compared.
    For `per_layer` of these sets (True: one) all intermediate tensors are compared, too, in a
    program that returns them all.

    Raises:
        OptionError: a number of runs is less than 1.
    """
    check_least(1, num_runs=num_runs, invocations_per_run=invocations_per_run)
    if per_layer:
        check_least(1, per_layer=per_layer)
    record, side = read_model(model), Reference(reference, model)
    bounds = (bounds or Bounds()).for_precision(is_reduced=test.is_reduced)
    settings = with_usable_indices(inputs or InputSettings(), model, reference)
    got = Runner("test", test.open())
    details = got.interpreter.get_input_details()
    main = record.subgraphs[0]
    comparers = [comparer_for(main.tensors[i], bounds) for i in main.outputs]
    runs = Runs(comparers, random_outputs(record))
    both = Sides(test, got, side.runner(), runs)
    both.run(settings.source(details), num_runs, invocations_per_run)
    whole = EndToEnd(record, test, side, runs, precision(record, is_reduced=test.is_reduced))
    result = both.result(model, reference, settings.seed)
    unset = [d for d in details if d["name"] not in settings.shapes]
    return dataclasses.replace(
        result,
        layers=layer_errors(test, side, per_layer, settings, bounds) if per_layer else None,
        operators=check(record, test, side, bounds, runs) if runs.differ else None,
        likenesses=whole() if runs.differ else (),
        remarks=(*test.remarks, *free_dimensions(unset)),
    )


@dataclasses.dataclass
class Sides:
    test: Test
    got: Runner
    want: Runner
    runs: Runs

    def run(self, source: InputSource, num_runs: int, invocations: int) -> None:
        with waiting(f"running both sides on {plural(num_runs, 'set')} of inputs (num_runs)"):
            for _ in tqdm(range(num_runs), "comparing", disable=None, leave=False):
                arrays = source()
                self.got(arrays, invocations)
                self.want(arrays, invocations)
                self.runs.add(arrays, self.got.outputs(), self.want.outputs())

    def result(self, model: ModelPath, reference: str, seed: int) -> InferenceDiff:
        """The record of the runs so far; the delegates have not run anything since."""
        runs = self.runs
        return InferenceDiff(
            model=name_of(model),
            test=self.test.name,
            reference=reference,
            delegation=_delegation(self.test),
            num_runs=runs.count,
            seed=seed,
            reference_latency=Latency.of(self.want.latencies),
            test_latency=Latency.of(self.got.latencies),
            outputs=runs.outputs,
            random=tuple(o.name for o in runs.outputs if o.index in runs.random),
        )


def name_of(model: ModelPath) -> str:
    """The file's path, or "<bytes>"."""
    return "<bytes>" if isinstance(model, bytes) else os.fspath(model)


def _delegation(test: Test) -> str:
    lines = [d.report().summary() for d in test.own_delegates() if test.nodes(d)]
    return " ".join(lines) or ("No operations were delegated." if test.delegates else "")
