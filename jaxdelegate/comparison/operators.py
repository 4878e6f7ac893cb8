"""Each delegated operator alone, on the reference's values: which one makes an output wrong.

A quantized operator may round to the neighboring step, and later operators propagate that. So the
outputs do not show whether an operator is wrong; its own result for the reference's inputs does.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np

from jaxdelegate.comparison.bounds import Bounds
from jaxdelegate.comparison.metrics import (
    Comparer,
    TensorComparison,
    comparer_for,
    read_by,
    real_values,
)
from jaxdelegate.comparison.random_numbers import drawing_operators
from jaxdelegate.comparison.rounding import round_to, rounded_tensor
from jaxdelegate.comparison.sides import Restricted, Runner, Test
from jaxdelegate.errors import InterpreterError
from jaxdelegate.model.records import Model, Operator, Subgraph, Tensor
from jaxdelegate.op_lowering.dtypes import HANDLES
from jaxdelegate.op_lowering.options import TensorType
from jaxdelegate.passes.propagation import declared_specs, propagate
from jaxdelegate.runtime.subgraph import ModelStore, SubgraphRunner
from jaxdelegate.runtime.tensor_details import from_api_dtype, to_api_dtype
from jaxdelegate.simple_delegate import SimpleDelegate
from jaxdelegate.text import printable, shortened

Values = Mapping[int, np.ndarray]  # by tensor of the main subgraph


@dataclasses.dataclass(frozen=True)
class WrongOperator:
    node: int
    operator: str
    tensor: TensorComparison

    def __str__(self) -> str:
        """`#12 CONV_2D 'name': max_abs=7 ...`."""
        name = shortened(self.tensor.name)
        return f"#{self.node} {printable(self.operator)} {name!r}: {self.tensor.brief()}"


@dataclasses.dataclass(frozen=True)
class OperatorCheck:
    operators: int  # the number of delegated operators that were checked
    wrong: tuple[WrongOperator, ...]  # those that differ by more than rounding, in execution order
    unseen: int  # the number of those for which a side did not keep an input or a result
    problem: str = ""  # why no operator could be checked


def check_operators(
    model: Model, test: Test, want: Runner, bounds: Bounds, runs: Sequence[Sequence[np.ndarray]]
) -> OperatorCheck:
    """Compare every delegated operator of the main subgraph with the reference in each run.

    `want` keeps all tensors; `runs` are the inputs of one run or more.
    """
    Runner("test", test.open())(runs[0])  # with these shapes the delegates take their operators
    alone, seen = OperatorsAlone(model, test, bounds), set[int]()
    wrong = dict[tuple[int, int], WrongOperator]()  # by operator and result; the first run's
    for arrays in runs:
        want(arrays)
        alone.run(kept_values(model.subgraphs[0], want, arrays))
        for operator in filter(alone.is_complete, alone.operators):
            seen.add(operator.index)
            for comparison in alone.wrong_results(operator):
                row = WrongOperator(operator.index, operator.name, comparison)
                wrong.setdefault((operator.index, comparison.index), row)
    rows = tuple(row for _, row in sorted(wrong.items()))
    return OperatorCheck(len(seen), rows, len(alone.operators) - len(seen))


def comparable(subgraph: Subgraph) -> frozenset[int]:
    """The tensors with readers and values.

    Stock interpreters do not write results of control flow that have no reader.
    """
    read = {i for operator in subgraph.operators for i in operator.inputs if i >= 0}
    read.update(subgraph.outputs)
    return frozenset(i for i in read if subgraph.tensors[i].dtype not in HANDLES)


def kept_values(
    subgraph: Subgraph, runner: Runner, arrays: Sequence[np.ndarray]
) -> dict[int, np.ndarray]:
    """The inputs of a runner's latest run, and all results that it kept and that have readers."""
    values = {i: np.asarray(a) for i, a in zip(subgraph.inputs, arrays, strict=True)}
    results = (i for operator in subgraph.operators for i in operator.outputs)
    for index in filter(comparable(subgraph).__contains__, results):
        value = runner.value(index)
        if value is not None:
            values[index] = value
    return values


class OperatorsAlone:
    """Runs each operator that a side's delegates took on the reference's values, and judges it."""

    def __init__(self, model: Model, test: Test, bounds: Bounds) -> None:
        """The delegates have taken their operators."""
        self._model, self._test, self._bounds = model, test, bounds
        self._taken = {d: test.nodes(d) for d in test.own_delegates()}
        taken = frozenset[int]().union(*self._taken.values()) - drawing_operators(model)
        # Those that the delegates took, without those that draw random numbers, in order.
        self.operators = [o for o in model.subgraphs[0].operators if o.index in taken]
        self._compared = comparable(model.subgraphs[0])
        self._runner: _CutRunner | None = None
        self._values: Values = {}
        self._unknown: set[int] = set()

    def run(self, values: Values) -> None:
        self._values = values
        results = {i for o in self._model.subgraphs[0].operators for i in o.outputs}
        self._unknown = results - values.keys()
        cuts = _computed(self._model, values) if self._runner is None else self._runner.cuts
        if self._runner is None:
            delegates = [Restricted(d, nodes) for d, nodes in self._taken.items()]
            self._runner = _CutRunner(self._model.subgraphs, delegates, cuts)
        self._explanations = _Explanations(self._model, self._test, values, cuts, self._bounds)
        self._runner.run(values)

    def is_complete(self, operator: Operator) -> bool:
        """Whether both sides kept all that an operator reads and all results with readers."""
        results = {i for i in operator.outputs if i in self._compared}
        return results == self.results(operator).keys() and self._are_known(operator.inputs)

    def results(self, operator: Operator) -> dict[int, np.ndarray]:
        """The results that both sides kept and that have readers, by tensor."""
        assert self._runner is not None, "run before"
        indices = [i for i in operator.outputs if i in self._compared and i in self._values]
        return {i: y for i in indices if (y := self._runner.value(i)) is not None}

    def wrong_results(self, operator: Operator) -> list[TensorComparison]:
        """Results out of bounds in this run, unless the delegate's arithmetic explains them all."""
        results, largest = self.results(operator), read_by(operator, self._values)
        wrong = []
        for index, result in results.items():
            comparer = comparer_for(self._model.subgraphs[0].tensors[index], self._bounds)
            comparer.add(result, self._values[index], largest)
            if not comparer.result().agrees:
                wrong.append(comparer.result())
        may_explain = wrong and self._are_known(operator.inputs)
        return [] if may_explain and self._explanations.hold(operator, results) else wrong

    def _are_known(self, tensors: Iterable[int]) -> bool:
        return self._unknown.isdisjoint(tensors)


# ---- every operator on values of its own


def cut(subgraph: Subgraph, tensors: Collection[int]) -> tuple[Subgraph, dict[int, int]]:
    """Let every operator read inputs instead of computed tensors; returns also these inputs."""
    read = {i for operator in subgraph.operators for i in operator.inputs}
    first = len(subgraph.tensors)
    copies = {i: first + n for n, i in enumerate(i for i in tensors if i in read)}
    added = (
        dataclasses.replace(subgraph.tensors[index], index=new, shape_signature=None)
        for index, new in copies.items()
    )
    operators = (
        dataclasses.replace(operator, inputs=tuple(copies.get(i, i) for i in operator.inputs))
        for operator in subgraph.operators
    )
    changed = dataclasses.replace(
        subgraph,
        tensors=(*subgraph.tensors, *added),
        inputs=(*subgraph.inputs, *copies.values()),
        operators=tuple(operators),
    )
    return changed, copies


def _computed(model: Model, values: Values) -> list[int]:
    """The tensors in `values`, which include the inputs, that operators compute at run time."""
    subgraph = model.subgraphs[0]
    specs = declared_specs(subgraph)
    for i in subgraph.inputs:
        specs[i] = dataclasses.replace(specs[i], shape=values[i].shape)
    specs = propagate(subgraph.operators, specs, model.subgraphs)
    kept = {*subgraph.inputs, *(i for i, s in enumerate(specs) if s.is_variable)}
    return [i for i in values if i not in kept and specs[i].const is None]


class _CutRunner:
    """Runs all operators of a cut graph at once: errors do not propagate from one to another."""

    def __init__(
        self,
        subgraphs: Sequence[Subgraph],
        delegates: Sequence[SimpleDelegate],
        cuts: Collection[int],
    ) -> None:
        self.cuts, self._tensors = cuts, subgraphs[0].tensors
        self._graph, self._copies = cut(subgraphs[0], cuts)
        store = ModelStore(subgraphs, delegates)
        self._host = SubgraphRunner(self._graph, delegates, preserve_all_tensors=True, model=store)

    def run(self, values: Values) -> None:
        tensors, host = self._graph.tensors, self._host
        inputs = {i: values[i] for i in self._graph.inputs if i in values}
        inputs.update((new, values[i]) for i, new in self._copies.items())
        arrays = {i: from_api_dtype(tensors[i], array) for i, array in inputs.items()}
        for index, array in arrays.items():
            host.resize(index, array.shape)
        if not host.is_allocated:
            host.allocate()
        for index, array in arrays.items():
            host.assign(index, array)
        host.invoke()

    def value(self, index: int) -> np.ndarray | None:
        """What the tensor's operator computed; None: no value was kept."""
        value = self._host.value(index)
        return None if value is None else to_api_dtype(self._tensors[index], np.asarray(value))


# ---- results out of bounds that are right, for how the delegate computes


@dataclasses.dataclass(frozen=True)
class _Explanations:
    """The reference's values of one run, also as the delegate's arithmetic sees them."""

    model: Model
    test: Test
    values: Values
    cuts: Collection[int]
    bounds: Bounds

    def hold(self, operator: Operator, results: Values) -> bool:
        return self._are_of_floats(operator, results) or self._are_of_rounded(operator, results)

    def _are_of_floats(self, operator: Operator, results: Values) -> bool:
        """Whether results are those of the float operator on dequantized inputs.

        That is the definition of fake-quantized execution. The reference's own result may be
        further from it than a step: dynamic range kernels round inputs to 127 steps at run time,
        and integer kernels have the positions of RESIZE_BILINEAR only to 1/1024. Two dynamic range
        kernels that round differently are within twice the reference's distance.
        """
        if not self._is_quantized((*operator.inputs, *operator.outputs)):
            return False  # only the named reference decides
        modes = {context.quant_mode for context in self.test.contexts}
        may_use_floats = any(context.program.may_use_floats for context in self.test.contexts)
        in_floats = "float_view" in modes or may_use_floats
        may_round = "integer" in modes and not self._is_quantized(operator.outputs)
        if not (may_round or in_floats):
            return False
        real = self._by_numpy(operator, self._real_values, _as_float)
        return results.keys() <= real.keys() and all(
            self._is_near_floats(operator, index, result, real[index], may_round)
            for index, result in results.items()
        )

    def _is_near_floats(
        self, operator: Operator, index: int, result: np.ndarray, real: np.ndarray, may_round: bool
    ) -> bool:
        tensor = self.model.subgraphs[0].tensors[index]
        bounds = self.bounds.of_real_values(tensor)
        if may_round:
            bounds = bounds.by_rounding(self._real_values[index], real)
        comparer = Comparer(index, tensor.name, real.dtype, bounds)
        comparer.add(real_values(tensor, result), real, read_by(operator, self._real_values))
        return comparer.result().agrees

    def _are_of_rounded(self, operator: Operator, results: Values) -> bool:
        """Whether results are as near as rounding the operands brings the reference's own kernel.

        Terms that cancel leave an error of any size. Rounding the results as well is within twice
        that distance.
        """
        short = self.test.operand
        if short is None or any(self.values[i].dtype.kind != "f" for i in results):
            return False
        convert = functools.partial(rounded_tensor, dtype=short)
        rounded = self._by_numpy(operator, self._rounded_values, convert)
        return results.keys() <= rounded.keys() and all(
            self._is_near_rounded(index, result, rounded[index])
            for index, result in results.items()
        )

    def _is_near_rounded(self, index: int, result: np.ndarray, rounded: np.ndarray) -> bool:
        want = self.values[index]
        bounds = self.bounds.by_rounding(rounded, want)
        comparer = comparer_for(self.model.subgraphs[0].tensors[index], bounds)
        comparer.add(result, want)
        return comparer.result().agrees

    def _by_numpy(
        self, operator: Operator, values: Values, convert: Callable[[Tensor], Tensor]
    ) -> dict[int, np.ndarray]:
        """An operator's results by numpy, with converted tensors; empty without such a kernel."""
        subgraph = self.model.subgraphs[0]
        tensors = tuple(map(convert, subgraph.tensors))
        graph = dataclasses.replace(subgraph, tensors=tensors, operators=(operator,))
        try:
            runner = _CutRunner((graph, *self.model.subgraphs[1:]), (), self.cuts)
            runner.run(values)
        except InterpreterError:
            return {}
        return {i: y for i in operator.outputs if (y := runner.value(i)) is not None}

    def _is_quantized(self, tensors: Iterable[int]) -> bool:
        known = self.model.subgraphs[0].tensors
        return any(known[i].spec().is_quantized for i in tensors if i >= 0)

    @functools.cached_property
    def _real_values(self) -> dict[int, np.ndarray]:
        tensors = self.model.subgraphs[0].tensors
        return {i: real_values(tensors[i], value) for i, value in self.values.items()}

    @functools.cached_property
    def _rounded_values(self) -> dict[int, np.ndarray]:
        short = self.test.operand
        assert short is not None
        return {i: round_to(value, short) for i, value in self.values.items()}


def _as_float(tensor: Tensor) -> Tensor:
    spec = tensor.spec()
    if not spec.is_quantized or spec.sparsity is not None:
        return tensor
    stored = None
    if spec.const is not None:
        stored = np.ascontiguousarray(real_values(tensor, spec.const)).reshape(-1).view(np.uint8)
    return dataclasses.replace(tensor, type=TensorType.FLOAT32, stored=stored, quantization=None)
