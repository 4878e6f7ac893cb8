"""Whether outputs of a quantized model differ by rounding: every operator is asked once more.

Fake-quantized execution rounds floats to each tensor's grid, where LiteRT rounds integers: now and
then an operator is one quantization step off, and the next ones carry that on. So the reference
runs every operator on what the delegates' own program gave it. Where all results are within the
bounds then, one step for quantized tensors, the delegates have only rounded. With dynamic range
operators it is LiteRT that rounds: their inputs, to 127 steps, while they run. The delegates'
results have to be those of float operators with dequantized weights.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxdelegate.comparison.bounds import Bounds
from jaxdelegate.comparison.metrics import TensorComparison
from jaxdelegate.comparison.severed import SeveredRunner
from jaxdelegate.comparison.sides import Runner, Test
from jaxdelegate.comparison.tensors import comparable, comparer_for, computed, read_by
from jaxdelegate.model.records import Model, Operator, Subgraph, Tensor
from jaxdelegate.op_lowering.options import TensorType
from jaxdelegate.quant.affine import dequantize


@dataclasses.dataclass(frozen=True)
class WrongOperator:
    """An operator that does not compute what the reference makes of the same inputs."""

    node: int
    operator: str
    tensor: TensorComparison

    def __str__(self) -> str:
        """`#12 CONV_2D 'name': max_abs=7 ...`."""
        return f"#{self.node} {self.operator} {self.tensor.name!r}: {self.tensor.brief()}"


@dataclasses.dataclass(frozen=True)
class RoundingCheck:
    """What came of it.

    Attributes:
        operators: how many operators of the delegates were asked.
        wrong: those that do more than round, in execution order.
        is_same_program: whether the program that keeps all tensors has the outputs of the plain
            one, but for rounding: what was seen in it is true of that one.
    """

    operators: int
    wrong: tuple[WrongOperator, ...]
    is_same_program: bool

    @property
    def explains(self) -> bool:
        """Whether rounding is all that there is."""
        return self.operators > 0 and not self.wrong and self.is_same_program


def simulates_quantization(test: Test, model: Model) -> bool:
    """Whether a delegate runs quantized operators of this model in floats."""
    contexts = [getattr(d, "lowering_context", None) for d in test.delegates]
    is_asked = any(c is not None and c.quant_mode == "float_view" for c in contexts)
    tensors = model.subgraphs[0].tensors
    return is_asked and any(t.spec().is_quantized for t in tensors)


def check_rounding(
    model: Model,
    test: Test,
    bounds: Bounds,
    arrays: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    reference: Sequence[np.ndarray],
) -> RoundingCheck:
    """Ask the reference about every delegated operator, on the delegates' own values.

    Args:
        model: what both sides run.
        test: delegates written in Python.
        bounds: when a tensor agrees.
        arrays: inputs for which the outputs differ.
        outputs: the delegates' for these.
        reference: the reference's.

    Raises:
        InterpreterError: the model does not run with all tensors kept.
    """
    subgraph = model.subgraphs[0]
    runner = Runner("test", test.open(preserve_all_tensors=True))
    runner(arrays)
    taken = frozenset[int]().union(*(test.nodes(d) for d in test.own_delegates()))
    values = {i: np.asarray(a) for i, a in zip(subgraph.inputs, arrays, strict=True)}
    for operator in subgraph.operators:
        for index in comparable(subgraph, operator.outputs):
            value = runner.value(index)
            if value is not None:
                values[index] = value
    graphs = (with_float_weights(subgraph), *model.subgraphs[1:])
    severed = SeveredRunner(graphs, (), computed(model, values))
    severed(values)
    wrong, asked = [], set()
    for operator in subgraph.operators:
        if operator.index not in taken:
            continue
        for index in comparable(subgraph, operator.outputs):
            want = severed.value(index)
            if want is None or index not in values:
                continue
            comparer = comparer_for(subgraph.tensors[index], bounds)
            comparer.add(values[index], want, read_by(operator, values))
            asked.add(operator.index)
            found = comparer.result()
            if not found.agrees:
                wrong.append(WrongOperator(operator.index, operator.name, found))
    kept = runner.outputs()
    return RoundingCheck(len(asked), tuple(wrong), _is_same_program(kept, outputs, reference))


def with_float_weights(subgraph: Subgraph) -> Subgraph:
    """The subgraph with dequantized weights in operators that only have integer weights.

    Their float result is what the fake-quantized program computes; LiteRT's dynamic range kernels
    come near it.
    """
    tensors, operators = list(subgraph.tensors), []
    for operator in subgraph.operators:
        inputs = list(operator.inputs)
        if _is_dynamic_range(operator, subgraph):
            for position, index in enumerate(inputs):
                if index >= 0 and _is_integer_constant(tensors[index]):
                    inputs[position] = len(tensors)
                    tensors.append(_dequantized(tensors[index], len(tensors)))
        operators.append(dataclasses.replace(operator, inputs=tuple(inputs)))
    return dataclasses.replace(subgraph, tensors=tuple(tensors), operators=tuple(operators))


def _is_dynamic_range(operator: Operator, subgraph: Subgraph) -> bool:
    reads = [subgraph.tensors[i] for i in operator.inputs if i >= 0]
    writes = [subgraph.tensors[i] for i in operator.outputs if i >= 0]
    has_integers = any(map(_is_integer_constant, reads))
    activations = [t for t in (*reads, *writes) if t.data is None]
    return (
        has_integers
        and any(t.type is TensorType.FLOAT32 for t in reads if t.data is None)
        and (not any(t.spec().is_quantized for t in activations))
    )


def _is_integer_constant(tensor: Tensor) -> bool:
    spec = tensor.spec()
    return spec.is_quantized and spec.const is not None and spec.sparsity is None


def _dequantized(tensor: Tensor, index: int) -> Tensor:
    spec = tensor.spec()
    values = dequantize(spec.const, spec.quantization)  # type: ignore[arg-type]
    return dataclasses.replace(
        tensor,
        index=index,
        type=TensorType.FLOAT32,
        stored=np.ascontiguousarray(values).reshape(-1).view(np.uint8),
        quantization=None,
    )


def _is_same_program(
    kept: Sequence[np.ndarray], plain: Sequence[np.ndarray], reference: Sequence[np.ndarray]
) -> bool:
    """Whether both programs are as near to each other as they are to the reference."""
    return all(
        _apart(a, b) <= 2 * max(_apart(a, want), _steps(want))
        for a, b, want in zip(kept, plain, reference, strict=True)
    )


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    if a.shape != b.shape:
        return np.inf
    error = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return float(error.max(initial=0.0)) if np.isfinite(error).all() else np.inf


def _steps(want: np.ndarray) -> float:
    """What rounding alone may do: a step of integers, little of floats."""
    if want.dtype.kind in "iu":
        return 1.0
    return 1e-4 * float(np.abs(want.astype(np.float64)).max(initial=0.0))
