"""A lowered partition: one pure JAX function of weights, inputs and states.

It runs the operators in order. While it is traced, it checks that each result has the propagated
shape and the declared dtype.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.errors import JaxDelegateError, LoweringError
from jaxdelegate.lowering import fake_quantization, mixed_precision
from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.common.fusion_barrier import fusion_barrier
from jaxdelegate.op_lowering.common.quantized_cache import QuantizedCache
from jaxdelegate.op_lowering.dtypes import HALVES
from jaxdelegate.op_lowering.options import record_of
from jaxdelegate.op_lowering.precision import FLOAT32, PrecisionPolicy
from jaxdelegate.op_lowering.rule import Function, Lowered, Prepare
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.text import printable


@contextlib.contextmanager
def naming(operator: Operator) -> Iterator[None]:
    """Add the operator's name to the errors of user-defined rules, raised as `LoweringError`."""
    try:
        yield
    except JaxDelegateError:
        raise
    except Exception as error:
        if not operator.custom:
            raise
        raise LoweringError(
            f"node {operator.index} ({printable(operator.name)}): its registered rule raised "
            f"{type(error).__name__}: {error}"
        ) from error


def _is_carried(x: Any) -> bool:
    return isinstance(x, QuantizedCache) or x.dtype in HALVES


@dataclasses.dataclass(frozen=True)
class Weight:
    """A constant tensor as an operator reads it: in the file's layout, or prepared.

    Or the scale of a variable tensor, if it is trained.
    """

    tensor: int
    operator: int | None = None  # index of the operator that the constant is prepared for
    position: int | None = None
    layout: Hashable = None  # distinguishes results for other input shapes or dtypes
    subgraph: int | None = None  # the called subgraph with the tensor; None: the partition's own
    is_scale: bool = False


# Weights of called subgraphs: the array, in the file's layout, and the function that prepares it.
CalledWeights = dict[Weight, tuple[np.ndarray, Prepare | None]]


@dataclasses.dataclass(frozen=True)
class LoweredOperator:
    """One lowered operator, the sources of its inputs, and its weights."""

    operator: Operator  # one of the file's, or one that a rewrite created
    parts: tuple[Operator, ...]  # the file's operators that it replaces
    lowered: Lowered  # what its rule returned
    run: Function  # what the program runs
    # Tensor indices, Weights or None, then the Weights of the subgraphs that it calls, and those
    # derived from its constants.
    inputs: tuple[int | Weight | None, ...]
    states: tuple[int, ...]  # the variable tensors that it updates
    preparations: Mapping[Weight, Prepare | None]  # for its weights; None: as in the file
    called: Mapping[Weight, np.ndarray]  # the arrays of the weights of subgraphs that it calls
    built_in: frozenset[Weight]  # constants whose values `run` contains

    @property
    def name(self) -> str:
        """The name of the file's operator with this index, even if a rewrite replaced it."""
        return next(part.name for part in self.parts if part.index == self.operator.index)

    @property
    def outputs(self) -> tuple[int, ...]:
        return self.operator.outputs

    def storing(self, reduced: Mapping[int, np.dtype]) -> "LoweredOperator":
        """The operator that itself rounds its results to the dtypes of `reduced`, if it can."""
        if not self.lowered.takes_dtypes:
            return self
        dtypes = tuple(reduced.get(i, FLOAT32) for i in self.outputs)
        return dataclasses.replace(self, run=functools.partial(self.run, dtypes=dtypes))


@dataclasses.dataclass(frozen=True)
class LoweredPartition:
    operators: tuple[LoweredOperator, ...]
    specs: Mapping[int, TensorSpec]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    states: tuple[int, ...]
    stored: Mapping[int, TensorSpec]  # quantized tensors, where `specs` is a float view
    reduced: Mapping[int, np.dtype]  # tensors that the program stores in reduced precision
    precision: PrecisionPolicy
    shared: frozenset[int]  # results to materialize
    passed: Mapping[int, Weight]  # constant outputs
    scales: Mapping[int, Weight]  # trained scales

    @functools.cached_property
    def preparations(self) -> Mapping[Weight, Prepare | None]:
        """All weights, with the functions that prepare them."""
        rows = [step.preparations for step in self.operators]
        plain = dict.fromkeys((*self.passed.values(), *self.scales.values()))
        return {weight: prepare for row in (*rows, plain) for weight, prepare in row.items()}

    @functools.cached_property
    def _called(self) -> Mapping[Weight, np.ndarray]:
        return {weight: array for step in self.operators for weight, array in step.called.items()}

    @functools.cached_property
    def built_in(self) -> frozenset[Weight]:
        """Weights whose values an operator's function contains: other values have no effect."""
        return frozenset().union(*(step.built_in for step in self.operators))

    def outside(self, index: int) -> TensorSpec:
        return self.stored.get(index, self.specs[index])

    @property
    def has_integer_products(self) -> bool:
        """Whether an operator multiplies matrices of integers."""
        products = (
            step.operator for step in self.operators if record_of(step.operator.name).product
        )
        read = (i for operator in products for i in operator.inputs if i in self.specs)
        return any(self.specs[i].is_quantized for i in read)

    def value(self, weight: Weight) -> np.ndarray:
        """The prepared host array. It is not cached, so that only one is in memory."""
        array, prepare = self.constant(weight), self.preparations[weight]
        return np.asarray(array) if prepare is None else np.ascontiguousarray(prepare(array))

    def constant(self, weight: Weight) -> np.ndarray:
        """A weight's constant, as its spec has it; for a trained scale, the file's scale."""
        if weight.subgraph is not None:
            return self._called[weight]
        if weight.is_scale:
            return self.stored[weight.tensor].quantization.scale  # type: ignore[union-attr]
        array = self.specs[weight.tensor].const
        if array is None:
            raise LoweringError(f"tensor {weight.tensor} is used as a weight but is not constant")
        return array

    def call(
        self,
        weights: Mapping[Weight, Any],
        values: Sequence[Any],
        *,
        inside: bool = False,
    ) -> tuple[Any, ...]:
        """Outputs, then new states, from the values of `inputs`, then `states`; a pure function.

        `inside` another program of the float view, quantized inputs and outputs are floats.
        """
        known = self.unpack(values, weights, inside=inside)
        known.update((i, self._as_read(weight, weights)) for i, weight in self.passed.items())
        for step in self.operators:
            known.update(self.run_step(step, known, weights))
        return self.pack(known, weights, inside=inside)

    def unpack(
        self, values: Sequence[Any], weights: Mapping[Weight, Any], *, inside: bool = False
    ) -> dict[int, Any]:
        """The values of `inputs` and `states` by tensor, dequantized for a float view."""
        known: dict[int, Any] = dict(zip((*self.inputs, *self.states), values, strict=True))
        if not inside:
            known.update(
                (i, fake_quantization.enter(known[i], self.stored[i], self.scale(i, weights)))
                for i in self._viewed(known)
            )
        return known

    def pack(
        self, known: Mapping[int, Any], weights: Mapping[Weight, Any], *, inside: bool = False
    ) -> tuple[Any, ...]:
        """Outputs, then new states, from the values of all tensors; quantized as declared."""
        leaving = (*self.outputs, *self.states)
        left = {i: self._result(known, i) for i in leaving}
        put = fake_quantization.simulate if inside else fake_quantization.leave
        left.update(
            (i, put(left[i], self.stored[i], self.scale(i, weights))) for i in self._viewed(left)
        )
        return tuple(left[i] for i in leaving)

    def scale(self, index: int, weights: Mapping[Weight, Any]) -> Any:
        """A quantized tensor's trained scale; None if the file's is used."""
        return weights[self.scales[index]] if index in self.scales else None

    def run_step(
        self, step: LoweredOperator, known: Mapping[int, Any], weights: Mapping[Weight, Any]
    ) -> dict[int, Any]:
        """One operator's outputs and new states by tensor, as the program stores them."""
        # Profilers map device time to operators by these names in the HLO metadata.
        with jax.named_scope("+".join(part.scope for part in step.parts)):
            arrays = [self._read_by(step, s, known, weights) for s in step.inputs]
            with naming(step.operator):
                results = step.run(*arrays)
        self._check(step, results)
        kept = self._carried(step, arrays)
        return {
            i: y if (i, y.shape, y.dtype) in kept else self._stored(i, y, step, weights)
            for i, y in zip((*step.outputs, *step.states), results, strict=True)
        }

    def _carried(self, step: LoweredOperator, arrays: Sequence[Any]) -> set[tuple[Any, ...]]:
        """Outputs of the program that may stay in reduced precision or int8, with their types.

        They are inputs that came so, changed in part: caches of language models.
        """
        if not (step.lowered.takes_reduced or step.lowered.carries):
            return set()
        pairs = zip(step.inputs, arrays, strict=True)
        came = [a for s, a in pairs if s in self.inputs and _is_carried(a)]
        return {(i, a.shape, a.dtype) for i in step.outputs if i in self.outputs for a in came}

    def _read_by(
        self,
        step: LoweredOperator,
        source: int | Weight | None,
        known: Mapping[int, Any],
        weights: Mapping[Weight, Any],
    ) -> Any:
        if source is None:
            return None
        if isinstance(source, int):
            value, spec = known[source], self.specs[source]
            if step.lowered.carries and source in self.inputs:
                return value
            if step.lowered.takes_reduced:
                is_cache = isinstance(value, QuantizedCache)
                return value.astype(self.precision.storage) if is_cache else value
            return mixed_precision.upcast(value, spec)
        return self._as_read(source, weights)

    def _as_read(self, weight: Weight, weights: Mapping[Weight, Any]) -> Any:
        if weight.operator is not None or weight.subgraph is not None:
            return weights[weight]
        return mixed_precision.upcast(weights[weight], self.specs[weight.tensor])

    def _stored(
        self, index: int, value: Any, step: LoweredOperator, weights: Mapping[Weight, Any]
    ) -> Any:
        x = value if step.lowered.is_on_grid else self._simulated(index, value, weights)
        stored = mixed_precision.stored(
            x, index, step.operator, self.specs, self.reduced, self.precision
        )
        return fusion_barrier(stored) if index in self.shared else stored

    def _viewed(self, indices: Iterable[int]) -> list[int]:
        """The tensors that are integers outside the program and floats inside."""
        return [i for i in indices if i in self.stored]

    @functools.cached_property
    def _read(self) -> frozenset[int | Weight | None]:
        return frozenset(source for step in self.operators for source in step.inputs)

    def _simulated(self, index: int, value: Any, weights: Mapping[Weight, Any]) -> Any:
        """A result, rounded to its grid if it is quantized and an operator reads it."""
        if index not in self.stored or index not in self._read:
            return value
        wide = mixed_precision.upcast(value, self.specs[index])
        return fake_quantization.simulate(wide, self.stored[index], self.scale(index, weights))

    def _result(self, known: Mapping[int, Any], index: int) -> Any:
        const = self.specs[index].const
        return known[index] if const is None or index in known else jnp.asarray(np.asarray(const))

    def _check(self, step: LoweredOperator, results: tuple[Any, ...]) -> None:
        written = (*step.outputs, *step.states)
        node = f"node {step.operator.index} ({printable(step.operator.name)})"
        if len(results) != len(written):
            raise LoweringError(f"{node}: {len(results)} results traced, {len(written)} declared")
        # Operators that move values keep reduced precision, and cuDNN's convolutions and attention
        # yield it.
        may_be_reduced = (
            step.lowered.takes_reduced or step.lowered.carries or self.precision.rounds_convolutions
        )
        for index, result in zip(written, results, strict=True):
            spec = self.specs.get(index, result)  # an absent optional output has no spec
            if not mixed_precision.is_as_declared(result, spec, may_be_reduced=may_be_reduced):
                raise LoweringError(
                    f"{node}: output {spec.name!r} was traced as {result.dtype} "
                    f"{list(result.shape)}, propagated as {spec.dtype} {list(spec.shape)}"
                )
