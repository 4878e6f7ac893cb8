"""Every operator's error: in the whole program, and the part that the operator itself adds."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from jaxdelegate.comparison.bounds import Bounds
from jaxdelegate.comparison.metrics import Comparer, TensorComparison
from jaxdelegate.comparison.severed import SeveredRunner
from jaxdelegate.comparison.sides import Restricted, Runner, Test
from jaxdelegate.comparison.tensors import comparable, comparer_for, computed, read_by
from jaxdelegate.model.records import Model, Operator
from jaxdelegate.text import printable

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

    @property
    def own(self) -> TensorComparison:
        """The local error, or that of the whole run where it is not known."""
        return self.tensor if self.local is None else self.local

    @property
    def label(self) -> str:
        """`#12 CONV_2D 'name'`."""
        return f"#{self.node} {printable(self.operator)} {self.tensor.name!r}"


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
        """The layers that are out of bounds on the reference's inputs, in execution order."""
        return [layer for layer in self.layers if layer.local and not layer.local.agrees]

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
            f"than the bound in {len(beyond)} layers, first in {beyond[0].label}."
        )


class LayerDiff:
    """Compares every tensor that the main subgraph computes, over any number of runs."""

    def __init__(self, model: Model, test: Runner, sides: Test, want: Runner, bounds: Bounds):
        """Compare `test` with `want`, which preserve all tensors; `sides` has the delegates."""
        self._model, self._bounds = model, bounds
        self._test, self._want, self._sides = test, want, sides
        self._can_sever = sides.can_be_restricted
        self._taken = {delegate: sides.nodes(delegate) for delegate in sides.own_delegates()}
        self._comparable = comparable(model.subgraphs[0])
        self._severed: SeveredRunner | None = None
        self._whole: dict[int, Comparer] = {}
        self._local: dict[int, Comparer] = {}
        self._skipped: set[int] = set()

    def add(self, arrays: Sequence[np.ndarray]) -> None:
        """Run both sides on these inputs, and every operator on the reference's values."""
        self._test(arrays)
        self._want(arrays)
        self._taken.update((d, self._sides.nodes(d)) for d in self._taken)  # shapes are known now
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
        subgraph = self._model.subgraphs[0]
        if self._severed is None:
            delegates = [Restricted(d, nodes) for d, nodes in self._taken.items()]
            self._severed = SeveredRunner(
                self._model.subgraphs, delegates, computed(self._model, values)
            )
        self._severed(values)
        for operator in subgraph.operators:
            if not self._is_delegated(operator):
                continue
            for index in filter(self._comparable.__contains__, operator.outputs):
                got = self._severed.value(index)
                if got is not None and index in values:
                    comparer = self._comparer(self._local, index)
                    comparer.add(got, values[index], read_by(operator, values))

    def _is_delegated(self, operator: Operator) -> bool:
        return any(operator.index in nodes for nodes in self._taken.values())

    def _comparer(self, where: dict[int, Comparer], index: int) -> Comparer:
        if index not in where:
            where[index] = comparer_for(self._model.subgraphs[0].tensors[index], self._bounds)
        return where[index]

    def report(self) -> LayerReport:
        whole = {i: comparer.result() for i, comparer in self._whole.items()}
        local = {i: comparer.result() for i, comparer in self._local.items()}
        wrong = {i for i, comparison in whole.items() if not comparison.agrees}
        layers = [
            LayerError(
                node=operator.index,
                operator=operator.name,
                delegated=self._is_delegated(operator) if self._can_sever else None,
                tensor=whole[index],
                local=local.get(index),
                inputs_agree=not wrong & set(operator.inputs),
            )
            for operator in self._model.subgraphs[0].operators
            for index in operator.outputs
            if index in whole
        ]
        outputs_agree = not wrong & set(self._model.subgraphs[0].outputs)
        return LayerReport(tuple(layers), len(self._skipped), outputs_agree)
