"""Lowers the subgraphs that operators call, for their rules, or returns why that is impossible.

By default the function contains the subgraph's constants. `Model.function` passes them as weights
of the caller instead.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdelegate.errors import InterpreterError
from jaxdelegate.lowering.computation import CalledWeights, LoweredPartition, Weight
from jaxdelegate.lowering.legality import context_for, why_not
from jaxdelegate.lowering.partition import lower_partition
from jaxdelegate.model.operator_tables import called_subgraphs
from jaxdelegate.model.records import Operator, Subgraph
from jaxdelegate.op_lowering.dtypes import FLOATS, HANDLES
from jaxdelegate.op_lowering.options import why_not_alike
from jaxdelegate.op_lowering.precision import PrecisionPolicy
from jaxdelegate.op_lowering.rule import Function, LoweringContext, StaticLoop, SubgraphAccess
from jaxdelegate.op_lowering.spec import Specs, TensorSpec
from jaxdelegate.passes.explicit_state import with_explicit_states
from jaxdelegate.passes.propagation import (
    Subgraphs,
    call_key,
    declared_specs,
    gather,
    is_constant,
    subgraph_specs,
)
from jaxdelegate.passes.shared_scales import handed_on
from jaxdelegate.passes.static_loops import static_loop
from jaxdelegate.passes.tensor_lists import with_list_updates
from jaxdelegate.text import printable

_CALLER = -1  # in place of a subgraph's index


@dataclasses.dataclass(frozen=True)
class Callees:
    subgraphs: Sequence[Subgraph]
    context: LoweringContext
    learned: frozenset[tuple[int, int]] = frozenset()  # (subgraph, tensor): see lower_partition

    def in_context(self) -> LoweringContext:
        """The lowering context, extended by functions that lower these subgraphs."""
        subgraphs = SubgraphAccess(self.lower, self.why_not, self.static_loop)
        return dataclasses.replace(self.context, subgraphs=subgraphs)

    def why_not(self, index: int, inputs: Specs | None = None) -> str | None:
        """Why a subgraph cannot be lowered for these inputs (None: as declared)."""

        def find() -> str | None:
            return self._why_not(index, inputs)

        if not isinstance(self.subgraphs, Subgraphs):
            return find()
        key = index, id(self.context), self.learned, call_key(inputs)
        return self.subgraphs.known(key, (self.context, inputs), 0, find)

    def _why_not(self, index: int, inputs: Specs | None) -> str | None:
        subgraph = self.subgraphs[index]
        if any(t.is_variable for t in with_explicit_states(subgraph).subgraph.tensors):
            return f"subgraph {index} has variable tensors"
        try:
            known = None if inputs is None else _as_stored(subgraph, inputs)
            specs = subgraph_specs(subgraph, known, self.subgraphs)
        except InterpreterError as error:
            return str(error)
        by_index = dict(enumerate(specs))
        passed = gather(specs, (*subgraph.inputs, *subgraph.outputs))
        if any(spec.dtype.hasobject or spec.dtype in HANDLES for spec in passed):
            return f"subgraph {index} has inputs or outputs of strings or resource handles"
        for operator in with_list_updates(subgraph, specs).operators:
            outputs = gather(specs, operator.outputs)
            if is_constant(outputs):
                continue
            reason = self.why_not_operator(operator, by_index)
            if reason is not None:
                where = f"node {operator.index} ({printable(operator.name)})"
                return f"subgraph {index}, {where}: {reason}"
        return None

    def why_not_operator(self, operator: Operator, specs: Mapping[int, TensorSpec]) -> str | None:
        """Why XLA cannot run an operator, which may call subgraphs."""
        inputs, outputs = (gather(specs, i) for i in (operator.inputs, operator.outputs))
        reason = self._why_not_passed_on(operator, specs)
        context = context_for(self.in_context(), operator, specs)
        return reason or why_not(context, operator, inputs, outputs)

    def _why_not_passed_on(self, operator: Operator, specs: Mapping[int, TensorSpec]) -> str | None:
        """A reason if the float view would pass on other integers than the operator does."""
        called = [self.subgraphs[i] for _, i in called_subgraphs(operator.options)]
        if self.context.quant_mode != "float_view" or not called:
            return None
        for places in handed_on(operator, _CALLER, called):
            passed = [
                specs[i] if s == _CALLER else self.subgraphs[s].tensors[i].spec()
                for s, i in places
                if i >= 0
            ]
            reasons = (why_not_alike(passed[0], spec) for spec in passed[1:])
            reason = next(filter(None, reasons), None)
            if reason is not None:
                return reason
        return None

    def lower(
        self,
        index: int,
        inputs: Specs | None = None,
        *,
        is_closed: bool = False,
        precision: PrecisionPolicy | None = None,
    ) -> "Callee":
        """A subgraph as a function of its inputs, for any shapes.

        `inputs` are specs in this call, with known values; None: as declared. If `is_closed`, it
        always contains its constants, instead of taking weights. `precision` is the calling
        operator's policy, if it has its own.
        """
        subgraph = self.subgraphs[index]
        policy = (precision or self.context.precision).of_callee()
        callees = dataclasses.replace(
            self, context=dataclasses.replace(self.context, precision=policy)
        )
        declared = gather(declared_specs(subgraph), subgraph.inputs)
        specs = declared if inputs is None else inputs
        known = tuple(
            dataclasses.replace(
                stored, shape=spec.shape, const=spec.const if spec.dtype == stored.dtype else None
            )
            for stored, spec in zip(declared, specs, strict=True)
        )
        return Callee(callees, subgraph, known, is_closed)

    def static_loop(self, condition: int, body: int, inputs: Specs) -> StaticLoop | None:
        """The number of iterations and invariants; None if data determine the number."""
        first, second = self.subgraphs[condition], self.subgraphs[body]
        return static_loop(first, second, _as_stored(second, inputs))


def _as_stored(subgraph: Subgraph, inputs: Specs) -> Specs:
    """The caller's specs with the subgraph's dtypes: the caller may hold a float view."""
    declared = gather(declared_specs(subgraph), subgraph.inputs)
    return tuple(
        dataclasses.replace(stored, shape=spec.shape, is_dynamic=spec.is_dynamic, const=None)
        if stored.is_quantized and spec.dtype == np.float32
        else spec
        for stored, spec in zip(declared, inputs, strict=False)
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Callee:
    """One subgraph as a function of its inputs, for any shapes.

    `inputs` are specs as stored by the subgraph, with the shapes and constants of one call.
    """

    callees: Callees
    subgraph: Subgraph
    inputs: Specs
    is_closed: bool

    def __call__(self, *arrays: Any) -> tuple[Any, ...]:
        """Run with the file's constants."""
        partition = self._partition(self.inputs, arrays, raw_weights=False)
        weights = {w: jnp.asarray(partition.value(w)) for w in partition.preparations}
        return partition.call(weights, arrays, inside=True)

    @functools.cached_property
    def weights(self) -> CalledWeights:
        """The constants that are equal in all calls, as weights of the caller.

        Values that follow from the shapes or values of one call are not weights.
        """
        if self.is_closed:
            return {}
        partition = self._partition(self._variable, self._variable, raw_weights=True)
        return {
            self._outside(weight): (partition.constant(weight), prepare)
            for weight, prepare in partition.preparations.items()
            if self._is_own(weight) and weight not in partition.built_in
        }

    def holding(self, weights: Mapping[Weight, Any]) -> Function:
        """The function with these prepared `weights`; the arguments of a call stay variable."""
        if self.is_closed:
            return self

        def call(*arrays: Any) -> tuple[Any, ...]:
            partition = self._partition(self._variable, arrays, raw_weights=True)
            arguments = dict(zip(self.subgraph.inputs, arrays, strict=True))
            values = {
                weight: self._value(partition, weight, weights, arguments)
                for weight in partition.preparations
            }
            return partition.call(values, arrays, inside=True)

        return call

    def _partition(
        self, inputs: Specs, arrays: Sequence[Any], *, raw_weights: bool
    ) -> LoweredPartition:
        """The subgraph, lowered for the constants of `inputs` and the shapes of `arrays`."""
        shaped = tuple(
            dataclasses.replace(spec, shape=tuple(array.shape))
            for spec, array in zip(inputs, arrays, strict=True)
        )
        subgraph, context = self.subgraph, self.callees.in_context()
        specs = subgraph_specs(subgraph, shaped, self.callees.subgraphs)
        return lower_partition(
            with_list_updates(subgraph, specs).operators,
            dict(enumerate(specs)),
            subgraph.inputs,
            subgraph.outputs,
            context,
            raw_weights=raw_weights,
            learned={i for s, i in self.callees.learned if s == subgraph.index}
            if raw_weights
            else (),
        )

    @functools.cached_property
    def _variable(self) -> Specs:
        """The inputs without values of floats, unless a rule needs these to be constant.

        A caller's weight that is an argument here must not be folded.
        """
        unknown = tuple(
            dataclasses.replace(spec, const=None)
            if spec.dtype in FLOATS or spec.is_quantized
            else spec
            for spec in self.inputs
        )
        index = self.subgraph.index
        return self.inputs if self.callees.why_not(index, unknown) is not None else unknown

    def _value(
        self,
        partition: LoweredPartition,
        weight: Weight,
        weights: Mapping[Weight, Any],
        arguments: Mapping[int, Any],
    ) -> Any:
        is_passed = weight.subgraph is None and not weight.is_scale
        if is_passed and weight.tensor in arguments:  # an argument of known value
            prepare = partition.preparations[weight]
            array = jnp.asarray(arguments[weight.tensor])
            return array if prepare is None else prepare(array)
        outside = self._outside(weight)
        if self._is_own(weight) and outside in weights and weight not in partition.built_in:
            return weights[outside]
        return jnp.asarray(partition.value(weight))

    def _outside(self, weight: Weight) -> Weight:
        if weight.subgraph is not None:
            return weight
        return dataclasses.replace(weight, subgraph=self.subgraph.index)

    def _is_own(self, weight: Weight) -> bool:
        return weight.subgraph is not None or weight.is_scale or weight.tensor in self._own

    @functools.cached_property
    def _own(self) -> frozenset[int]:
        """Tensors that are constant for all inputs."""
        declared = gather(declared_specs(self.subgraph), self.subgraph.inputs)
        anything = tuple(
            dataclasses.replace(spec, const=None, is_dynamic=True) for spec in declared
        )
        specs = subgraph_specs(self.subgraph, anything, self.callees.subgraphs)
        return frozenset(i for i, spec in enumerate(specs) if spec.const is not None)
