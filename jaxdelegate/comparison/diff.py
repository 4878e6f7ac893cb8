"""Compares a delegate with a reference on random or given inputs: errors and latencies."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

from jaxdelegate.comparison.bounds import Bounds
from jaxdelegate.comparison.inputs import INDEX_RANGES, InputSettings
from jaxdelegate.comparison.layers import LayerDiff, LayerReport
from jaxdelegate.comparison.likeness import Likeness
from jaxdelegate.comparison.metrics import TensorComparison
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
from jaxdelegate.comparison.verdict import EndToEnd, Runs, check
from jaxdelegate.errors import InterpreterError, OptionError
from jaxdelegate.measuring.inputs import free_dimensions
from jaxdelegate.measuring.stats import Latency
from jaxdelegate.model.records import read_model


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
    _check_counts(num_runs=num_runs, invocations_per_run=invocations_per_run, layer_runs=layer_runs)
    record = read_model(model)
    bounds = (bounds or Bounds()).for_precision(is_reduced=test.is_reduced)
    settings = with_usable_indices(inputs or InputSettings(), model, reference)
    want = reference_runner(reference, model)
    got = Runner("test", test.open())
    source = settings.source(got.interpreter.get_input_details())
    main = record.subgraphs[0]
    comparers = [comparer_for(main.tensors[i], bounds) for i in main.outputs]
    random = random_outputs(record)
    runs = Runs()
    for _ in tqdm(range(num_runs), "comparing", disable=None, leave=False):
        arrays = source()
        got(arrays, invocations_per_run)
        want(arrays, invocations_per_run)
        results = got.outputs(), want.outputs()
        for comparer, g, w in zip(comparers, *results, strict=True):
            comparer.add(g, w)
        outputs = tuple(comparer.result() for comparer in comparers)
        differs = any(not o.agrees and o.index not in random for o in outputs)
        runs.add(arrays, *results, agrees=not differs)
    whole = EndToEnd(model, record, reference, test, runs.arrays, runs.want)
    return InferenceDiff(
        model="<bytes>" if isinstance(model, bytes) else os.fspath(model),
        test=test.name,
        reference=reference,
        delegation=_delegation(test),
        num_runs=num_runs,
        seed=settings.seed,
        reference_latency=Latency.of(want.latencies),
        test_latency=Latency.of(got.latencies),
        outputs=outputs,
        layers=layer_errors(model, test, reference, layer_runs, settings, bounds)
        if per_layer
        else None,
        operators=check(model, record, test, reference, bounds, runs) if differs else None,
        likenesses=whole(runs.got) if differs else (),
        random=tuple(main.tensors[i].name for i in main.outputs if i in random),
        remarks=(*test.remarks, *free_dimensions(_unset(got, settings))),
    )


def _unset(runner: Runner, settings: InputSettings) -> list[Mapping[str, Any]]:
    """The details of the inputs without a shape in the settings."""
    details = runner.interpreter.get_input_details()
    return [d for d in details if d["name"] not in settings.shapes]


def _check_counts(**counts: int) -> None:
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
