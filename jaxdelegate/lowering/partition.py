"""The operators of a partition, or of a called subgraph, -> a LoweredPartition."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Self

from jaxdelegate.lowering import fake_quantization, mixed_precision
from jaxdelegate.lowering.computation import LoweredOperator, LoweredPartition, Weight
from jaxdelegate.lowering.legality import context_for, runs_in_floats, why_not
from jaxdelegate.lowering.materialization import shared_results
from jaxdelegate.lowering.operators import lower_operator
from jaxdelegate.lowering.rewrites.pattern_rewriter import Rewritten
from jaxdelegate.lowering.rewrites.registry import rewritten
from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.rule import LoweringContext, ResultUse
from jaxdelegate.op_lowering.spec import Grid, Specs, TensorSpec
from jaxdelegate.passes.propagation import gather, is_constant


def lower_partition(
    operators: Sequence[Operator],
    specs: Mapping[int, TensorSpec],
    inputs: Sequence[int],
    outputs: Sequence[int],
    context: LoweringContext,
    *,
    raw_weights: bool = False,
    rewrites: Collection[str] = (),
    learned: Collection[int] = (),
) -> LoweredPartition:
    """Lower every operator whose results are not constant.

    The caller must have checked each operator with `why_not`; rewrites check the operators that
    they create. Operators are in execution order, with different indices. `inputs` are the run-time
    inputs, without variables. `raw_weights`, for `Model.function`, keeps all constants in the
    file's layout as weights, also those of called subgraphs and those that are outputs. `rewrites`
    (of `lowering/rewrites`) are applied first. The scales of `learned` tensors are weights, unless
    they are constant.
    """
    context = _context_of_program(context, raw_weights=raw_weights)
    graph = _Graph.of(operators, specs, context, raw_weights=raw_weights)
    new = graph.rewritten(outputs, rewrites)
    context, specs = _keeping_whole(graph.context, new.parts), new.specs
    steps = graph.lowered(new, context, learned, raw_weights=raw_weights)
    run = [step.operator for step in steps]
    read = {i for step in steps for i in step.inputs if isinstance(i, int)}
    states = _states(steps, {*read, *outputs}.difference(inputs), specs)
    scaled = {*outputs, *states, *read}.intersection(learned, graph.stored)
    passed = (i for i in outputs if specs[i].const is not None and i not in inputs)
    reduced = mixed_precision.reduced_tensors(
        context.precision, run, specs, graph.stored, {*inputs, *outputs, *states}
    )
    return LoweredPartition(
        operators=tuple(step.storing(reduced) for step in steps),
        specs=specs,
        inputs=tuple(i for i in inputs if i not in states),
        outputs=tuple(outputs),
        states=states,
        stored=graph.stored,
        reduced=reduced,
        precision=context.precision,
        shared=shared_results(run, specs, {*outputs, *states}),
        passed={i: Weight(i) for i in passed} if raw_weights else {},
        scales={i: Weight(i, is_scale=True) for i in sorted(scaled) if specs[i].const is None},
    )


@dataclasses.dataclass(frozen=True)
class _Graph:
    """A partition's operators, and which of them run in floats and which in integers."""

    context: LoweringContext
    specs: Mapping[int, TensorSpec]
    pending: Sequence[Operator]  # their results are not constant
    stored: Mapping[int, TensorSpec]  # the file's specs of quantized tensors, in the float view
    on_integers: Mapping[int, tuple[Specs, Specs]]  # stored specs, in the float view, by operator
    in_floats: frozenset[int]  # in integer mode
    quantized_later: frozenset[int]

    @classmethod
    def of(
        cls,
        operators: Sequence[Operator],
        specs: Mapping[int, TensorSpec],
        context: LoweringContext,
        *,
        raw_weights: bool,
    ) -> Self:
        stored: dict[int, TensorSpec] = {}
        on_integers: dict[int, tuple[Specs, Specs]] = {}
        if context.quant_mode == "float_view":
            kept = frozenset[int]()
            # On a CPU integer mode reads filters as stored; parameters of functions are floats.
            if context.platform != "cpu" and not raw_weights:
                kept = fake_quantization.read_as_stored(operators, specs)
            stored = {i: s for i, s in specs.items() if s.is_quantized and i not in kept}
            on_integers = fake_quantization.on_integers(operators, specs)
            operators, specs = fake_quantization.view(operators, specs, kept)
        pending = [op for op in operators if not is_constant(gather(specs, op.outputs))]
        in_floats = frozenset[int]()
        if context.program.may_use_floats:
            in_floats = frozenset(op.index for op in pending if runs_in_floats(context, op, specs))
            context = context.in_program(may_use_floats=False)
        # LiteRT's order of sums gives its bits, which a graph partly in floats does not have.
        later = frozenset[int]() if in_floats else _quantized_later(pending, specs)
        return cls(context, specs, pending, stored, on_integers, in_floats, quantized_later=later)

    def rewritten(self, outputs: Collection[int], names: Collection[str]) -> Rewritten:
        """Apply the rewrites, except to operators that are computed unlike the others."""
        apart = {
            op.index: op
            for op in self.pending
            if op.index in self.on_integers or op.index in self.in_floats
        }
        shown = [_hidden(op) if op.index in apart else op for op in self.pending]
        kept = {*outputs, *self.stored}
        return rewritten(shown, self.specs, kept, self._is_lowered, names).restored(apart)

    def _is_lowered(
        self, operator: Operator, parts: Sequence[Operator], inputs: Specs, outputs: Specs
    ) -> bool:
        later = operator.index in self.quantized_later
        context = dataclasses.replace(self.context, result=ResultUse(later))
        whole = _keeping_whole(context, {operator.index: parts})
        context = context_for(whole, operator, self.specs)
        return why_not(context, operator, inputs, outputs) is None

    def lowered(
        self,
        new: Rewritten,
        context: LoweringContext,
        learned: Collection[int],
        *,
        raw_weights: bool,
    ) -> list[LoweredOperator]:
        """The operators of the rewritten graph, lowered; `learned` tensors have no grid."""
        fixed = {i: spec for i, spec in self.stored.items() if i not in learned}
        grids = _grids(new.operators, fixed)
        return [
            lower_operator(
                op,
                new.parts[op.index],
                new.specs,
                dataclasses.replace(
                    context,
                    result=ResultUse(op.index in self.quantized_later, grids.get(op.index)),
                ),
                raw_weights=raw_weights,
                integers=self.on_integers.get(op.index),
                in_floats=op.index in self.in_floats,
            )
            for op in new.operators
        ]


def _context_of_program(context: LoweringContext, *, raw_weights: bool) -> LoweringContext:
    if context.precision.rounds_exactly:
        # No device-specific kernels, so that the same rewrites apply to every dtype.
        kernels = dataclasses.replace(context.kernels, cpu=False, triton=False, mosaic=False)
        context = dataclasses.replace(context, kernels=kernels)
    subgraphs = context.subgraphs
    if subgraphs is not None and not raw_weights:
        # In a delegate's program, a loop's condition decides when it ends.
        subgraphs = dataclasses.replace(subgraphs, static_loop=None)
    return dataclasses.replace(context.in_program(weights_vary=raw_weights), subgraphs=subgraphs)


def _states(
    steps: Sequence[LoweredOperator], read: Collection[int], specs: Mapping[int, TensorSpec]
) -> tuple[int, ...]:
    """Variables that operators update, then those that are only read."""
    updated = dict.fromkeys(index for step in steps for index in step.states)
    kept = (i for i in sorted(read) if i in specs and specs[i].is_variable)
    return tuple(dict.fromkeys((*updated, *kept)))


def _hidden(operator: Operator) -> Operator:
    """The operator under another name, so that no rewrite matches it."""
    return dataclasses.replace(operator, name=f"{operator.name} apart")


def _quantized_later(
    operators: Sequence[Operator], specs: Mapping[int, TensorSpec]
) -> frozenset[int]:
    indices: set[int] = set()
    read: set[int] = set()
    for operator in reversed(operators):
        if not read.isdisjoint(operator.outputs):
            indices.add(operator.index)
            read.update(operator.inputs)
        touched = (specs[i] for i in (*operator.inputs, *operator.outputs) if i in specs)
        if any(spec.is_quantized for spec in touched):
            read.update(operator.inputs)
    return frozenset(indices)


def _grids(operators: Sequence[Operator], stored: Mapping[int, TensorSpec]) -> dict[int, Grid]:
    """The grid of each operator's only result, by operator, if another operator reads it."""
    read = {i for operator in operators for i in operator.inputs}
    producers = {op.outputs[0]: op.index for op in operators if len(op.outputs) == 1}
    grids = {
        producers[i]: fake_quantization.grid_of(stored[i])
        for i in producers
        if i in stored and i in read
    }
    return {index: grid for index, grid in grids.items() if grid is not None}


def _keeping_whole(
    context: LoweringContext, parts: Mapping[int, Iterable[Operator]]
) -> LoweringContext:
    """The context with operators in float32 if the policy keeps one of their parts in float32."""
    named = context.precision.float32_operators
    kept = {i for i, whole in parts.items() if any(part.index in named for part in whole)}
    precision = dataclasses.replace(
        context.precision, float32_operators=tuple(sorted(kept.union(named)))
    )
    return dataclasses.replace(context, precision=precision)
