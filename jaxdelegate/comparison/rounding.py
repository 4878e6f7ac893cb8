"""Checks whether outputs of a quantized model differ only by rounding.

Fake-quantized execution rounds floats to each tensor's grid, where LiteRT rounds integers. An
operator is therefore sometimes one quantization step off, and later operators propagate that. The
difference is rounding if every operator's numpy kernel, run on the operator's inputs in the
delegated program, is within the bounds: one step for quantized tensors.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from jaxdelegate.comparison.bounds import Bounds
from jaxdelegate.comparison.metrics import TensorComparison
from jaxdelegate.comparison.severed import SeveredRunner
from jaxdelegate.comparison.sides import Runner, Test
from jaxdelegate.comparison.tensors import comparable, comparer_for, computed, read_by
from jaxdelegate.errors import InterpreterError
from jaxdelegate.model.records import Model, Operator, Subgraph, Tensor
from jaxdelegate.op_lowering.options import TensorType
from jaxdelegate.quant.affine import dequantize
from jaxdelegate.text import printable


@dataclasses.dataclass(frozen=True)
class WrongOperator:
    node: int
    operator: str
    tensor: TensorComparison

    def __str__(self) -> str:
        """`#12 CONV_2D 'name': max_abs=7 ...`."""
        return (
            f"#{self.node} {printable(self.operator)} {self.tensor.name!r}: {self.tensor.brief()}"
        )


@dataclasses.dataclass(frozen=True)
class RoundingCheck:
    operators: int  # the number of delegated operators that were checked
    wrong: tuple[WrongOperator, ...]  # those that differ by more than rounding, in execution order
    unseen: int  # the number of delegated operators whose results were not kept
    # Whether the program that keeps all tensors has the same outputs as the original one except for
    # rounding, so that the check applies to both.
    is_same_program: bool

    @property
    def explains(self) -> bool:
        is_known = self.operators > 0 and not self.unseen and self.is_same_program
        return is_known and not self.wrong


def simulates_quantization(test: Test, model: Model) -> bool:
    """Whether a delegate computes quantized operators of this model in floats."""
    contexts = [getattr(d, "lowering_context", None) for d in test.delegates]
    is_float_view = any(c is not None and c.quant_mode == "float_view" for c in contexts)
    tensors = model.subgraphs[0].tensors
    return is_float_view and any(t.spec().is_quantized for t in tensors)


def check_rounding(
    model: Model,
    test: Test,
    bounds: Bounds,
    arrays: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    reference: Sequence[np.ndarray],
) -> RoundingCheck:
    """Compare every delegated operator with the reference on the delegates' own values.

    For the inputs `arrays`, `outputs` are the delegates' and `reference` the reference's.
    """
    subgraph = model.subgraphs[0]
    runner = Runner("test", test.open(preserve_all_tensors=True))
    runner(arrays)
    taken = frozenset[int]().union(*(test.nodes(d) for d in test.own_delegates()))
    values = {i: np.asarray(a) for i, a in zip(subgraph.inputs, arrays, strict=True)}
    compared = comparable(subgraph)
    for operator in subgraph.operators:
        for index in filter(compared.__contains__, operator.outputs):
            value = runner.value(index)
            if value is not None:
                values[index] = value
    probe = _Probe(model, bounds, values, compared, computed(model, values))
    nodes = [operator for operator in subgraph.operators if operator.index in taken]
    seen = [o for o in nodes if compared.intersection(o.outputs) <= values.keys()]
    unequal = probe.wrong(seen, subgraph, values)
    wrong = [row for row in unequal if not probe.is_float_result(row)]
    same = _is_same_program(runner.outputs(), outputs, reference)
    return RoundingCheck(len(seen), tuple(wrong), len(nodes) - len(seen), same)


@dataclasses.dataclass(frozen=True)
class _Probe:
    """Compares operators' results in the delegated program, by tensor, with numpy's kernels."""

    model: Model
    bounds: Bounds
    values: Mapping[int, np.ndarray]
    compared: frozenset[int]
    computed: Sequence[int]

    def is_float_result(self, row: WrongOperator) -> bool:
        """Whether an operator's result is that of the float operator on dequantized inputs.

        That is the definition of fake-quantized execution. LiteRT's own result may be further from
        it than a step: dynamic range kernels round inputs to 127 steps at run time, and integer
        kernels have the positions of RESIZE_BILINEAR only to 1/1024.
        """
        subgraph = self.model.subgraphs[0]
        operator = subgraph.operators[row.node]
        graph = dataclasses.replace(self._floats, operators=(operator,))
        try:
            return not self.wrong([operator], graph, self._reals)
        except InterpreterError:  # not an operator on floats, for example QUANTIZE
            return False

    @functools.cached_property
    def _floats(self) -> Subgraph:
        return as_floats(self.model.subgraphs[0])

    @functools.cached_property
    def _reals(self) -> dict[int, np.ndarray]:
        tensors = self.model.subgraphs[0].tensors
        return {i: _reals(value, tensors[i]) for i, value in self.values.items()}

    def wrong(
        self, operators: Sequence[Operator], subgraph: Subgraph, values: Mapping[int, np.ndarray]
    ) -> list[WrongOperator]:
        severed = SeveredRunner((subgraph, *self.model.subgraphs[1:]), (), self.computed)
        severed(values)
        declared, found = self.model.subgraphs[0].tensors, []
        for operator in operators:
            for index in filter(self.compared.__contains__, operator.outputs):
                want = severed.value(index)
                if want is None or index not in values:
                    continue
                tensor = subgraph.tensors[index]
                bounds = _real_bounds(self.bounds, declared[index], tensor)
                comparer = comparer_for(tensor, bounds)
                comparer.add(values[index], want, read_by(operator, values))
                comparison = comparer.result()
                if not comparison.agrees:
                    found.append(WrongOperator(operator.index, operator.name, comparison))
        return found


def as_floats(subgraph: Subgraph) -> Subgraph:
    return dataclasses.replace(subgraph, tensors=tuple(map(_as_float, subgraph.tensors)))


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


def _real_bounds(bounds: Bounds, declared: Tensor, compared: Tensor) -> Bounds:
    """Bounds for the dequantized values of a tensor: quantization steps and float rounding."""
    q = declared.quantization
    is_real = declared.spec().is_quantized and not compared.spec().is_quantized
    if not is_real or q is None or not len(q.scale):
        return bounds
    return dataclasses.replace(bounds, max_abs_error=(bounds.max_lsb + 0.01) * float(q.scale.max()))


def _is_same_program(
    kept: Sequence[np.ndarray], plain: Sequence[np.ndarray], reference: Sequence[np.ndarray]
) -> bool:
    """Whether both programs are as close to each other as they are to the reference."""
    return all(
        _difference(a, b) <= 2 * max(_difference(a, want), _rounding_error(want))
        for a, b, want in zip(kept, plain, reference, strict=True)
    )


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    if a.shape != b.shape:
        return np.inf
    if a.dtype.hasobject:
        return 0.0 if (a == b).all() else np.inf
    x, y = a.astype(np.float64), b.astype(np.float64)
    equal = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore"):
        error = np.where(equal, 0.0, np.abs(x - y))
    return float(error.max(initial=0.0)) if np.isfinite(error).all() else np.inf


def _rounding_error(want: np.ndarray) -> float:
    if want.dtype.kind not in "fV":
        return 1.0
    return 1e-4 * float(np.abs(want.astype(np.float64)).max(initial=0.0))
