"""Every operator's error: in the whole program, and the part that the operator itself adds."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
from tqdm import tqdm

from jaxdelegate.comparison.bounds import Bounds
from jaxdelegate.comparison.inputs import InputSettings
from jaxdelegate.comparison.metrics import Comparer, TensorComparison, comparer_for, read_by
from jaxdelegate.comparison.operators import OperatorsAlone, Values, comparable, kept_values
from jaxdelegate.comparison.sides import Reference, Runner, Test
from jaxdelegate.model.records import Model, Operator, read_model
from jaxdelegate.text import plural, printable, shortened

Kind = Literal["operator", "program"]


@dataclasses.dataclass(frozen=True)
class LayerError:
    node: int
    operator: str  # its name
    delegated: bool | None  # whether the delegate under test ran it; None: not known
    # The error in the whole run, which includes errors of earlier operators.
    tensor: TensorComparison
    # The error when the operator gets the reference's inputs; None: not known.
    local: TensorComparison | None
    inputs_agree: bool  # whether the operator's inputs were within the bounds in the whole run
    # Whether the local error is out of bounds, and how the delegate computes does not explain it.
    is_wrong: bool = False

    @property
    def own(self) -> TensorComparison:
        """The local error, or that of the whole run where it is not known."""
        return self.tensor if self.local is None else self.local

    @property
    def label(self) -> str:
        """`#12 CONV_2D 'name'`, a long name without its middle."""
        return f"#{self.node} {printable(self.operator)} {shortened(self.tensor.name)!r}"


@dataclasses.dataclass(frozen=True)
class Divergence:
    """Where the results diverge.

    `kind` is "operator" if the operator is out of bounds on the reference's inputs. It is "program"
    if no operator is, or that is not known; the layer is then the first in execution order whose
    result is out of bounds while all its inputs are within.
    """

    kind: Kind
    layer: LayerError

    def __str__(self) -> str:
        if self.kind == "operator":
            return (
                f"First divergence: {self.layer.label}: wrong on the reference's inputs, "
                f"{self.layer.own.brief()}"
            )
        return (
            f"First divergence: {self.layer.label}: its inputs agree, its output does not, "
            f"{self.layer.tensor.brief()}"
            + ("; alone, on the reference's inputs, it agrees" if self.layer.local else "")
        )


@dataclasses.dataclass(frozen=True)
class LayerReport:
    layers: tuple[LayerError, ...]  # in execution order
    skipped: int  # the number of tensors that a side did not keep
    outputs_agree: bool  # whether the model's outputs are within the bounds in these runs

    def ranked(self) -> list[LayerError]:
        return sorted(self.layers, key=lambda layer: layer.own.severity, reverse=True)

    def wrong_operators(self) -> list[LayerError]:
        wrong = (layer for layer in self.layers if layer.is_wrong)
        return [layer for layer in wrong if layer.local and not layer.local.agrees]

    def first_divergence(self) -> Divergence | None:
        """Where the results diverge; None: no operator is wrong and the outputs agree.

        A wrong operator has priority over the first tensor that is out of bounds: in a deep network
        rounding alone may add up to more than the bound.
        """
        for layer in self.wrong_operators():
            return Divergence("operator", layer)
        for layer in () if self.outputs_agree else self.layers:
            if not layer.tensor.agrees and layer.inputs_agree:
                return Divergence("program", layer)
        return None

    def conclusion(self) -> str:
        """The first divergence, or that no operator is wrong, in one sentence."""
        divergence = self.first_divergence()
        if divergence is not None:
            return str(divergence)
        beyond = [layer for layer in self.layers if not layer.tensor.agrees]
        if not beyond:
            return "No layer is out of bounds."
        return (
            f"No operator is wrong and the outputs agree; between them, rounding adds up to more "
            f"than the bound in {plural(len(beyond), 'layer')}, first in {beyond[0].label}."
        )


def layer_errors(
    test: Test, reference: Reference, layer_runs: int, inputs: InputSettings, bounds: Bounds
) -> LayerReport:
    """Compare every tensor that the main subgraph of the reference's model computes."""
    want = reference.runner(preserve_all_tensors=True)
    got = Runner("test", test.open(preserve_all_tensors=True))
    source = inputs.source(got.interpreter.get_input_details())
    layers = _Layers(read_model(reference.model), test, bounds)
    for _ in tqdm(range(layer_runs), "comparing layers", disable=None, leave=False):
        layers.add(source(), got, want)
    return layers.report()


class _Layers:
    def __init__(self, model: Model, test: Test, bounds: Bounds) -> None:
        self._model, self._test, self._bounds = model, test, bounds
        self._alone: OperatorsAlone | None = None
        self._wrong = set[int]()  # operators
        self._skipped = set[int]()  # tensors
        tensors = model.subgraphs[0].tensors
        self._whole, self._local = ([comparer_for(t, bounds) for t in tensors] for _ in range(2))

    def add(self, arrays: Sequence[np.ndarray], got: Runner, want: Runner) -> None:
        """Run both sides on these inputs, and every operator on the reference's values."""
        got(arrays)
        want(arrays)
        main = self._model.subgraphs[0]
        values, results = kept_values(main, want, arrays), kept_values(main, got, arrays)
        self._compare(self._whole, main.operators, results, values)
        computed = {i for o in main.operators for i in o.outputs} & comparable(main)
        self._skipped |= computed - (results.keys() & values.keys())
        if self._test.can_be_restricted:
            self._alone = self._alone or OperatorsAlone(self._model, self._test, self._bounds)
            self._compare_local(self._alone, values)

    def _compare_local(self, alone: OperatorsAlone, values: Values) -> None:
        alone.run(values)
        for operator in alone.operators:
            self._compare(self._local, [operator], alone.results(operator), values)
            if alone.wrong_results(operator):
                self._wrong.add(operator.index)

    def _compare(
        self,
        comparers: Sequence[Comparer],
        operators: Sequence[Operator],
        results: Values,
        values: Values,
    ) -> None:
        for operator in operators:
            largest = read_by(operator, values)
            for index in operator.outputs:
                if index in results and index in values:
                    comparers[index].add(results[index], values[index], largest)

    def report(self) -> LayerReport:
        whole, local = (
            {i: comparer.result() for i, comparer in enumerate(comparers) if comparer.runs}
            for comparers in (self._whole, self._local)
        )
        wrong = {i for i, comparison in whole.items() if not comparison.agrees}
        delegated = None if self._alone is None else {o.index for o in self._alone.operators}
        layers = [
            LayerError(
                node=operator.index,
                operator=operator.name,
                delegated=None if delegated is None else operator.index in delegated,
                tensor=whole[index],
                local=local.get(index),
                is_wrong=operator.index in self._wrong,
                inputs_agree=not wrong & set(operator.inputs),
            )
            for operator in self._model.subgraphs[0].operators
            for index in operator.outputs
            if index in whole
        ]
        outputs_agree = not wrong & set(self._model.subgraphs[0].outputs)
        return LayerReport(tuple(layers), len(self._skipped), outputs_agree)
