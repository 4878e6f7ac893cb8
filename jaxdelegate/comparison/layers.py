"""Every operator's error: in the whole program, and the part that the operator itself adds."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from jaxdelegate.comparison.bounds import Bounds
from jaxdelegate.comparison.metrics import Comparer, TensorComparison
from jaxdelegate.comparison.own_errors import OperatorsAlone, agree
from jaxdelegate.comparison.sides import Runner, Test
from jaxdelegate.comparison.tensors import comparable, comparer_for, read_by
from jaxdelegate.model.records import Model, Operator
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
        """The layers by their own error, the largest first."""
        return sorted(self.layers, key=lambda layer: layer.own.severity, reverse=True)

    def wrong_operators(self) -> list[LayerError]:
        """The layers that are wrong on the reference's inputs, in execution order."""
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


class LayerDiff:
    """Compares every tensor that the main subgraph computes, over any number of runs."""

    def __init__(self, model: Model, test: Runner, sides: Test, want: Runner, bounds: Bounds):
        """Compare `test` with `want`, which preserve all tensors; `sides` has the delegates."""
        self._model, self._bounds = model, bounds
        self._test, self._want, self._sides = test, want, sides
        self._can_sever = sides.can_be_restricted
        self._comparable = comparable(model.subgraphs[0])
        self._alone: OperatorsAlone | None = None
        self._wrong: set[int] = set()  # operators
        self._whole: dict[int, Comparer] = {}
        self._local: dict[int, Comparer] = {}
        self._skipped: set[int] = set()

    def add(self, arrays: Sequence[np.ndarray]) -> None:
        """Run both sides on these inputs, and every operator on the reference's values."""
        self._test(arrays)
        self._want(arrays)
        subgraph = self._model.subgraphs[0]
        values = {i: np.asarray(a) for i, a in zip(subgraph.inputs, arrays, strict=True)}
        for operator in subgraph.operators:
            for index in filter(self._comparable.__contains__, operator.outputs):
                self._compare_whole(operator, index, values)
        self._compare_local(values)

    def _compare_whole(self, operator: Operator, index: int, values: dict[int, np.ndarray]) -> None:
        got, want = self._test.value(index), self._want.value(index)
        if want is not None:
            values[index] = want
        if got is None or want is None:
            self._skipped.add(index)
            return
        self._comparer(self._whole, index).add(got, want, read_by(operator, values))

    def _compare_local(self, values: dict[int, np.ndarray]) -> None:
        if not self._can_sever:
            return
        if self._alone is None:
            self._alone = OperatorsAlone(self._model, self._sides, values)
        self._alone.run(values)
        for operator in self._alone.operators:
            results = self._alone.results(operator)
            known = {i: result for i, result in results.items() if i in values}
            for index, result in known.items():
                largest = read_by(operator, values)
                self._comparer(self._local, index).add(result, values[index], largest)
            if not self._is_right(operator, known, values):
                self._wrong.add(operator.index)

    def _is_right(
        self,
        operator: Operator,
        results: Mapping[int, np.ndarray],
        values: Mapping[int, np.ndarray],
    ) -> bool:
        """In this run: within the bounds, or explained by how the delegate computes."""
        assert self._alone is not None
        return agree(operator, self._model, results, values, self._bounds) or self._alone.explains(
            operator, results, self._bounds
        )

    def _comparer(self, where: dict[int, Comparer], index: int) -> Comparer:
        if index not in where:
            where[index] = comparer_for(self._model.subgraphs[0].tensors[index], self._bounds)
        return where[index]

    def report(self) -> LayerReport:
        whole = {i: comparer.result() for i, comparer in self._whole.items()}
        local = {i: comparer.result() for i, comparer in self._local.items()}
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
