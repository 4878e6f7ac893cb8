"""Each delegated operator alone, on the reference's values: which one makes an output wrong.

A quantized operator may round to the neighboring step, and later operators propagate that. So the
outputs do not show whether an operator is wrong; its own result for the reference's inputs does.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from jaxdelegate.comparison.bounds import Bounds
from jaxdelegate.comparison.metrics import Comparer, TensorComparison
from jaxdelegate.comparison.random_numbers import drawing_operators
from jaxdelegate.comparison.rounding import round_to, rounded_tensor
from jaxdelegate.comparison.severed import SeveredRunner
from jaxdelegate.comparison.sides import Restricted, Runner, Test
from jaxdelegate.comparison.tensors import comparable, comparer_for, computed, read_by
from jaxdelegate.errors import InterpreterError
from jaxdelegate.model.records import Model, Operator, Subgraph, Tensor
from jaxdelegate.op_lowering.options import TensorType
from jaxdelegate.quant.affine import dequantize
from jaxdelegate.text import printable, shortened

_OF_ROUNDING = 2.0  # times the distance between an operator's results on rounded and exact values


@dataclasses.dataclass(frozen=True)
class WrongOperator:
    """An operator whose result differs from the reference's on the same inputs."""

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


class OperatorsAlone:
    """Each operator that a side's delegates took, on the reference's values."""

    def __init__(self, model: Model, test: Test, values: Mapping[int, np.ndarray]) -> None:
        """`values` are the reference's, by tensor: of the main subgraph's inputs and results."""
        self._model, self._test = model, test
        self._cuts = computed(model, values)
        self._taken = {d: test.nodes(d) for d in test.own_delegates()}
        delegates = [Restricted(d, nodes) for d, nodes in self._taken.items()]
        self._severed = SeveredRunner(model.subgraphs, delegates, self._cuts)
        self._compared = comparable(model.subgraphs[0])
        self._drawing = drawing_operators(model)
        self._made = {i for o in model.subgraphs[0].operators for i in o.outputs}
        self._unknown: set[int] = set()
        self._explanations: tuple[_Explanation, ...] = ()

    @property
    def operators(self) -> list[Operator]:
        """Those that the delegates took, without those that draw random numbers, in order."""
        taken = frozenset[int]().union(*self._taken.values()) - self._drawing
        return [o for o in self._model.subgraphs[0].operators if o.index in taken]

    def run(self, values: Mapping[int, np.ndarray]) -> None:
        self._unknown = self._made - values.keys()
        self._explanations = tuple(
            kind(self._model, self._test, values, self._cuts) for kind in (_Floats, _Rounded)
        )
        self._severed(values)

    def are_known(self, tensors: Iterable[int]) -> bool:
        """Whether the reference kept all values of these tensors."""
        return self._unknown.isdisjoint(tensors)

    def results(self, operator: Operator) -> dict[int, np.ndarray]:
        """By tensor; those without a reader, or that were not kept, are absent."""
        indices = [i for i in operator.outputs if i in self._compared]
        return {i: value for i in indices if (value := self._severed.value(i)) is not None}

    def explains(
        self, operator: Operator, results: Mapping[int, np.ndarray], bounds: Bounds
    ) -> bool:
        """Whether results out of bounds are right, for how the delegate computes."""
        return self.are_known(operator.inputs) and any(
            explanation.holds(operator, results, bounds) for explanation in self._explanations
        )


def check_operators(
    model: Model,
    test: Test,
    want: Runner,
    bounds: Bounds,
    runs: Sequence[Sequence[np.ndarray]],
) -> OperatorCheck:
    """Compare every delegated operator of the main subgraph with the reference.

    Args:
        model: whose operators.
        test: the side under test.
        want: the reference's interpreter, which preserves all tensors.
        bounds: of right results.
        runs: the inputs of each run.
    """
    Runner("test", test.open())(runs[0])  # with these shapes the delegates take their operators
    alone, seen = None, set[int]()
    wrong = dict[tuple[int, int], WrongOperator]()  # by operator and result; the first run's
    for arrays in runs:
        values = _reference_values(model.subgraphs[0], want, arrays)
        alone = alone or OperatorsAlone(model, test, values)
        alone.run(values)
        for operator in alone.operators:
            rows = _wrong(alone, operator, model.subgraphs[0], values, bounds)
            if rows is not None:
                seen.add(operator.index)
                wrong = {(r.node, r.tensor.index): r for r in rows} | wrong
    assert alone is not None, "no runs"
    rows = sorted(wrong.values(), key=lambda row: (row.node, row.tensor.index))
    return OperatorCheck(len(seen), tuple(rows), len(alone.operators) - len(seen))


def _reference_values(
    subgraph: Subgraph, want: Runner, arrays: Sequence[np.ndarray]
) -> dict[int, np.ndarray]:
    """The reference's values by tensor, of inputs and of all results that it kept."""
    want(arrays)
    values = {i: np.asarray(a) for i, a in zip(subgraph.inputs, arrays, strict=True)}
    compared = comparable(subgraph)
    for operator in subgraph.operators:
        for index in filter(compared.__contains__, operator.outputs):
            value = want.value(index)
            if value is not None:
                values[index] = value
    return values


def _wrong(
    alone: OperatorsAlone,
    operator: Operator,
    subgraph: Subgraph,
    values: Mapping[int, np.ndarray],
    bounds: Bounds,
) -> list[WrongOperator] | None:
    """The results of an operator that are wrong; None: a side did not keep all that it needs."""
    results, compared = alone.results(operator), comparable(subgraph)
    indices = [i for i in operator.outputs if i in compared]
    if len(results) < len(indices) or not alone.are_known((*operator.inputs, *indices)):
        return None
    rows = _unequal(operator, subgraph, results, values, bounds)
    return [] if rows and alone.explains(operator, results, bounds) else rows


def agree(
    operator: Operator,
    model: Model,
    got: Mapping[int, np.ndarray],
    values: Mapping[int, np.ndarray],
    bounds: Bounds,
) -> bool:
    """Whether an operator's results are within the bounds of the reference's values."""
    return not _unequal(operator, model.subgraphs[0], got, values, bounds)


def _unequal(
    operator: Operator,
    subgraph: Subgraph,
    got: Mapping[int, np.ndarray],
    values: Mapping[int, np.ndarray],
    bounds: Bounds,
) -> list[WrongOperator]:
    found = []
    for index, result in got.items():
        comparer = comparer_for(subgraph.tensors[index], bounds)
        comparer.add(result, values[index], read_by(operator, values))
        comparison = comparer.result()
        if not comparison.agrees:
            found.append(WrongOperator(operator.index, operator.name, comparison))
    return found


@dataclasses.dataclass(frozen=True)
class _Explanation(abc.ABC):
    """How a delegate may compute, so that results out of bounds are right."""

    model: Model
    test: Test
    values: Mapping[int, np.ndarray]  # the reference's, by tensor
    cuts: Sequence[int]

    @abc.abstractmethod
    def holds(self, operator: Operator, got: Mapping[int, np.ndarray], bounds: Bounds) -> bool: ...

    def by_numpy(
        self,
        operator: Operator,
        values: Mapping[int, np.ndarray],
        convert: Callable[[Tensor], Tensor],
    ) -> dict[int, np.ndarray]:
        """An operator's results by numpy, with converted tensors; empty without such a kernel."""
        subgraph = self.model.subgraphs[0]
        tensors = tuple(map(convert, subgraph.tensors))
        graph = dataclasses.replace(subgraph, tensors=tensors, operators=(operator,))
        try:
            severed = SeveredRunner((graph, *self.model.subgraphs[1:]), (), self.cuts)
            severed(values)
        except InterpreterError:
            return {}
        return {i: y for i in operator.outputs if (y := severed.value(i)) is not None}


class _Floats(_Explanation):
    """The operators of a quantized model on dequantized values: what the float view simulates."""

    def holds(self, operator: Operator, got: Mapping[int, np.ndarray], bounds: Bounds) -> bool:
        """Whether results are those of the float operator on dequantized inputs.

        That is the definition of fake-quantized execution. The reference's own result may be
        further from it than a step: dynamic range kernels round inputs to 127 steps at run time,
        and integer kernels have the positions of RESIZE_BILINEAR only to 1/1024. Two dynamic range
        kernels that round differently are within twice the reference's distance.
        """
        if not self._is_quantized((*operator.inputs, *operator.outputs)):
            return False  # only the named reference decides
        contexts = [getattr(d, "lowering_context", None) for d in self.test.delegates]
        modes = {c.quant_mode for c in contexts if c is not None}
        in_floats = any(c is not None and c.may_use_floats for c in contexts)
        may_round = "integer" in modes and not self._is_quantized(operator.outputs)
        if not (may_round or in_floats or "float_view" in modes):
            return False
        real = self.by_numpy(operator, self._real_values, _as_float)
        if not got.keys() <= real.keys():
            return False
        return all(
            self._is_near(operator, index, result, real[index], bounds, may_round=may_round)
            for index, result in got.items()
        )

    def _is_quantized(self, tensors: Iterable[int]) -> bool:
        """Whether any of the tensors is quantized."""
        known = self.model.subgraphs[0].tensors
        return any(known[i].spec().is_quantized for i in tensors if i >= 0)

    @functools.cached_property
    def _real_values(self) -> dict[int, np.ndarray]:
        tensors = self.model.subgraphs[0].tensors
        return {i: _reals(value, tensors[i]) for i, value in self.values.items()}

    def _is_near(
        self,
        operator: Operator,
        index: int,
        result: np.ndarray,
        real: np.ndarray,
        bounds: Bounds,
        *,
        may_round: bool,
    ) -> bool:
        tensor = self.model.subgraphs[0].tensors[index]
        own = _real_bounds(bounds, tensor)
        if may_round:
            distance = np.abs(self._real_values[index] - real).max(initial=0.0)
            own = dataclasses.replace(own, max_abs_error=_OF_ROUNDING * float(distance))
        comparer = Comparer(index, tensor.name, real.dtype, own)
        comparer.add(_reals(result, tensor), real, read_by(operator, self._real_values))
        return comparer.result().agrees


class _Rounded(_Explanation):
    """The operators on values and weights that are rounded to a shorter dtype."""

    def holds(self, operator: Operator, got: Mapping[int, np.ndarray], bounds: Bounds) -> bool:
        """Whether results are as near as rounding the operands brings the reference's own kernel.

        Terms that cancel leave an error of any size. Rounding the results as well is within twice
        that distance.
        """
        short = self.test.operand
        if short is None:
            return False
        convert = functools.partial(rounded_tensor, dtype=short)
        results = self.by_numpy(operator, self._rounded_values, convert)
        return got.keys() <= results.keys() and all(
            self._is_near(index, got[index], results[index], bounds) for index in got
        )

    @functools.cached_property
    def _rounded_values(self) -> dict[int, np.ndarray]:
        short = self.test.operand
        assert short is not None
        return {i: round_to(value, short) for i, value in self.values.items()}

    def _is_near(self, index: int, got: np.ndarray, rounded: np.ndarray, bounds: Bounds) -> bool:
        want = self.values[index]
        if want.dtype.kind != "f":
            return False
        distance = np.abs(rounded - want).max(initial=0.0)
        own = dataclasses.replace(bounds, max_abs_error=_OF_ROUNDING * float(distance))
        comparer = comparer_for(self.model.subgraphs[0].tensors[index], own)
        comparer.add(got, want)
        return comparer.result().agrees


def _as_float(tensor: Tensor) -> Tensor:
    spec = tensor.spec()
    if not spec.is_quantized or spec.sparsity is not None:
        return tensor
    stored = None
    if spec.const is not None:
        stored = np.ascontiguousarray(_reals(spec.const, tensor)).reshape(-1).view(np.uint8)
    return dataclasses.replace(tensor, type=TensorType.FLOAT32, stored=stored, quantization=None)


def _reals(value: np.ndarray, tensor: Tensor) -> np.ndarray:
    spec = tensor.spec()
    if spec.quantization is None or not spec.is_quantized:
        return value
    return dequantize(value, spec.quantization)


def _real_bounds(bounds: Bounds, tensor: Tensor) -> Bounds:
    """Bounds for the dequantized values of a tensor: quantization steps and float rounding."""
    q = tensor.quantization
    if not tensor.spec().is_quantized or q is None or not len(q.scale):
        return bounds
    return dataclasses.replace(bounds, max_abs_error=(bounds.max_lsb + 0.01) * float(q.scale.max()))
