"""The operators of a partition, or of a called subgraph, -> a LoweredPartition.

Lowers each operator by its rule and collects the weights; `why_not` returns why an operator cannot
be lowered.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from jaxdelegate.errors import LoweringError
from jaxdelegate.lowering import (
    fake_quantization,
    float_operators,
    mixed_precision,
    stored_filters,
)
from jaxdelegate.lowering.computation import (
    CalledWeights,
    LoweredOperator,
    LoweredPartition,
    Weight,
    naming,
)
from jaxdelegate.lowering.materialization import shared_results
from jaxdelegate.lowering.rewrites.registry import rewritten
from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.common.algorithms import with_algorithm, with_barriers
from jaxdelegate.op_lowering.common.downcast import downcast
from jaxdelegate.op_lowering.dtypes import HANDLES
from jaxdelegate.op_lowering.options import Options, as_read, record_of
from jaxdelegate.op_lowering.precision import PrecisionPolicy
from jaxdelegate.op_lowering.registry import rule_of
from jaxdelegate.op_lowering.rule import (
    Function,
    Lowered,
    LoweringContext,
    Op,
    OpRule,
    Prepare,
)
from jaxdelegate.op_lowering.spec import Grid, Specs, TensorSpec
from jaxdelegate.passes.propagation import KERNEL_ERRORS, gather, is_constant
from jaxdelegate.text import printable


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
    # On a CPU integer mode reads filters as stored; parameters of functions are floats.
    reads_as_stored = context.platform != "cpu" and not raw_weights
    kinds = _Kinds.of(operators, specs, context, reads_as_stored=reads_as_stored)
    context, stored = kinds.context, kinds.stored
    preparations: dict[Weight, Prepare | None] = {}
    called: dict[Weight, np.ndarray] = {}
    apart = {op.index: op for op in kinds.pending if kinds.is_apart(op)}
    shown = [_hidden(op) if op.index in apart else op for op in kinds.pending]
    is_lowered = functools.partial(_is_lowered, context, kinds.specs, kinds.quantized_later)
    kept = {*outputs, *stored}
    result = rewritten(shown, kinds.specs, kept, is_lowered, rewrites).restored(apart)
    specs, context = result.specs, _keeping_whole(context, result.parts)
    grids = _grids(result.operators, {i: s for i, s in stored.items() if i not in learned})
    steps = [
        _step(
            result.parts[op.index],
            op,
            specs,
            dataclasses.replace(
                context,
                quantized_later=op.index in kinds.quantized_later,
                grid=grids.get(op.index),
            ),
            preparations=preparations,
            called=called if raw_weights else None,
            integers=kinds.on_integers.get(op.index),
            in_floats=op.index in kinds.in_floats,
        )
        for op in result.operators
    ]
    passed = _constant_outputs(specs, inputs, outputs) if raw_weights else {}
    preparations.update(dict.fromkeys(passed.values()))
    read = {i for step in steps for i in step.inputs if isinstance(i, int)}
    states = _states(steps, {*read, *outputs}.difference(inputs), specs)
    used = {*outputs, *states, *read}.intersection(learned, stored)
    scales = {i: Weight(i, is_scale=True) for i in sorted(used) if specs[i].const is None}
    preparations.update(dict.fromkeys(scales.values()))
    reduced = mixed_precision.reduced_tensors(
        context.precision,
        [step.operator for step in steps],
        specs,
        stored,
        {*inputs, *outputs, *states},
    )
    return LoweredPartition(
        operators=tuple(steps),
        specs=specs,
        preparations=preparations,
        inputs=tuple(i for i in inputs if i not in states),
        outputs=tuple(outputs),
        states=states,
        stored=stored,
        reduced=reduced,
        precision=context.precision,
        shared=shared_results([step.operator for step in steps], specs, {*outputs, *states}),
        called=called,
        passed=passed,
        scales=scales,
    )


@dataclasses.dataclass(frozen=True)
class _Kinds:
    """Which operators run in floats and which in integers."""

    context: LoweringContext  # that of the others, and of those that rewrites create
    specs: Mapping[int, TensorSpec]
    pending: Sequence[Operator]  # those whose results are not constant
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
        reads_as_stored: bool,
    ) -> Self:
        """`reads_as_stored`: whether the float view leaves filters as the file stores them."""
        stored: dict[int, TensorSpec] = {}
        on_integers: dict[int, tuple[Specs, Specs]] = {}
        if context.quant_mode == "float_view":
            kept = stored_filters.of(operators, specs) if reads_as_stored else frozenset[int]()
            stored = {i: s for i, s in specs.items() if s.is_quantized and i not in kept}
            on_integers = fake_quantization.on_integers(operators, specs)
            operators, specs = fake_quantization.view(operators, specs, kept)
        pending = [op for op in operators if not is_constant(gather(specs, op.outputs))]
        in_floats: frozenset[int] = frozenset()
        if context.may_use_floats:
            in_floats = frozenset(op.index for op in pending if runs_in_floats(context, op, specs))
            context = dataclasses.replace(context, may_use_floats=False)
        # LiteRT's order of sums gives its bits, which a graph partly in floats does not have.
        later = frozenset[int]() if in_floats else _quantized_later(pending, specs)
        return cls(
            context,
            specs,
            pending,
            stored=stored,
            on_integers=on_integers,
            in_floats=in_floats,
            quantized_later=later,
        )

    def is_apart(self, operator: Operator) -> bool:
        """Whether rewrites leave an operator alone, since it has another kind than the others."""
        return operator.index in self.on_integers or operator.index in self.in_floats


def _context_of_program(context: LoweringContext, *, raw_weights: bool) -> LoweringContext:
    if context.precision.rounds_exactly:
        # No device-specific kernels, so that the same rewrites apply to every dtype.
        context = dataclasses.replace(
            context, native_kernels=False, triton_kernels=False, mosaic_kernels=False
        )
    context = dataclasses.replace(context, weights_vary=raw_weights)
    if not raw_weights:  # in a delegate's program, a loop's condition decides when it ends
        context = dataclasses.replace(context, static_loop=None)
    return context


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


def _constant_outputs(
    specs: Mapping[int, TensorSpec], inputs: Sequence[int], outputs: Sequence[int]
) -> dict[int, Weight]:
    return {i: Weight(i) for i in outputs if specs[i].const is not None and i not in inputs}


def _quantized_later(
    operators: Sequence[Operator], specs: Mapping[int, TensorSpec]
) -> frozenset[int]:
    """The indices of operators on whose results a quantized operator depends."""
    found: set[int] = set()
    read: set[int] = set()
    for operator in reversed(operators):
        if not read.isdisjoint(operator.outputs):
            found.add(operator.index)
            read.update(operator.inputs)
        touched = (specs[i] for i in (*operator.inputs, *operator.outputs) if i in specs)
        if any(spec.is_quantized for spec in touched):
            read.update(operator.inputs)
    return frozenset(found)


def _grids(operators: Sequence[Operator], stored: Mapping[int, TensorSpec]) -> dict[int, Grid]:
    """The grids of operators' results, by operator: of single results that an operator reads."""
    read = {i for operator in operators for i in operator.inputs}
    made = {op.outputs[0]: op.index for op in operators if len(op.outputs) == 1}
    grids = {
        made[i]: fake_quantization.grid_of(stored[i]) for i in made if i in stored and i in read
    }
    return {index: grid for index, grid in grids.items() if grid is not None}


def _is_lowered(
    context: LoweringContext,
    specs: Mapping[int, TensorSpec],
    quantized_later: Collection[int],
    operator: Operator,
    parts: Sequence[Operator],
    inputs: Specs,
    outputs: Specs,
) -> bool:
    later = dataclasses.replace(context, quantized_later=operator.index in quantized_later)
    whole = _keeping_whole(later, {operator.index: parts})
    return why_not(context_for(whole, operator, specs), operator, inputs, outputs) is None


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


def _step(
    parts: tuple[Operator, ...],
    operator: Operator,
    specs: Mapping[int, TensorSpec],
    context: LoweringContext,
    preparations: dict[Weight, Prepare | None],
    called: dict[Weight, np.ndarray] | None,
    integers: tuple[Specs, Specs] | None = None,
    in_floats: bool = False,
) -> LoweredOperator:
    """Lower one operator; add its weights to `preparations`, and those of its callees to `called`.

    Without `called`, callees contain their weights, and weights may have other layouts than the
    file's. `integers`: the stored specs, if the float view lowers it as integer mode does.
    `in_floats`: whether integer mode lowers it as the float view does.
    """
    inputs, outputs = integers or (
        gather(specs, operator.inputs),
        gather(specs, operator.outputs),
    )
    if integers is not None:
        context = dataclasses.replace(context, quant_mode="integer", grid=None)
    stored, options = (inputs, outputs), operator.options
    if in_floats:
        stored = float_operators.as_stored(operator.name, inputs, outputs), outputs
        options = fake_quantization.options_of(options, inputs)
        context = dataclasses.replace(context, quant_mode="float_view")
        inputs, outputs = map(fake_quantization.viewed_all, stored)
    inputs, outputs = as_read(record_of(operator.name), inputs, outputs)
    rule = rule_for(operator)
    if rule is None:
        raise LoweringError(f"node {operator.index} ({printable(operator.name)}) has no rule")
    own_context = context_for(context, operator, specs)
    op = with_algorithm(rule, Op(own_context, options, inputs, outputs))
    lower = functools.partial(_lowered, operator, rule)
    own = _run_of(lower, op, operator.name, integers, takes_weights=called is not None)
    if in_floats:
        own = own.in_floats(*stored)
    if called is not None:
        called.update((weight, array) for weight, (array, _) in own.called.items())
    layout = own.layout(op)
    constants = _Constants(op.context.precision, own.prepared, layout)
    sources = [
        constants.source(operator, position, specs.get(index))
        for position, index in enumerate(operator.inputs)
    ]
    preparations.update((i, prepare) for i, prepare in sources if isinstance(i, Weight))
    preparations.update((weight, prepare) for weight, (_, prepare) in own.called.items())
    derived = {
        Weight(operator.inputs[p], operator.index, p, ("derived", i, layout)): prepare
        for i, (p, prepare) in enumerate(own.derived)
    }
    preparations.update(derived)
    read = [source for source, _ in sources]
    built_in = (read[p] for p in rule.built_in if p < len(read))
    return LoweredOperator(
        name=next(part.name for part in parts if part.index == operator.index),
        operator=operator,
        run=own.run if op.context.algorithm is None else with_barriers(own.run, inputs),
        inputs=(*read, *own.called, *derived),
        outputs=operator.outputs,
        states=tuple(operator.inputs[p] for p in rule.states(op)) if rule.states else (),
        built_in=frozenset(source for source in built_in if isinstance(source, Weight)),
        takes_reduced=own.lowered.takes_reduced,
        is_on_grid=own.lowered.is_on_grid,
        parts=parts,
        may_overflow=own.lowered.may_overflow,
    )


@dataclasses.dataclass(frozen=True)
class _Run:
    """How a program runs one operator."""

    lowered: Lowered  # by the operator's rule
    run: Function  # gets the constants in `prepared` as prepared, others in the file's layout
    prepared: Mapping[int, Prepare] = dataclasses.field(default_factory=dict)
    called: CalledWeights = dataclasses.field(default_factory=dict)
    derived: Sequence[tuple[int, Prepare]] = ()

    def layout(self, op: Op[Options]) -> Hashable:
        """What the preparations depend on."""
        shapes = tuple(None if spec is None else spec.shape for spec in op.inputs)
        own = shapes if self.lowered.layout is None else self.lowered.layout
        return op.context.quant_mode, op.context.algorithm, own

    def in_floats(self, inputs: Specs, outputs: Specs) -> "_Run":
        """For stored integers, where the rule got floats."""
        run = float_operators.run_in_floats(self.run, inputs, outputs)
        prepared = float_operators.dequantizing(inputs, self.prepared)
        return dataclasses.replace(self, run=run, prepared=prepared)


def _run_of(
    lower: Callable[[Op[Options]], Function],
    op: Op[Options],
    name: str,
    integers: tuple[Specs, Specs] | None,
    *,
    takes_weights: bool,
) -> _Run:
    if integers is not None:
        run = fake_quantization.run_on_integers(lower(op), name, *integers)
        return _Run(_as_lowered(run), run)
    if takes_weights:
        run, called = _with_called_weights(lower, op)
        return _Run(_as_lowered(run), run, called=called)
    run = lower(op)
    if not isinstance(run, Lowered):
        return _Run(_as_lowered(run), run)
    constant = {
        p for p, spec in enumerate(op.inputs) if spec is not None and spec.const is not None
    }
    prepared = {p: prepare for p, prepare in run.prepare.items() if p in constant}
    partly = _partly_prepared(run, frozenset(prepared))
    return _Run(run, partly, prepared, derived=run.derived)


def _as_lowered(run: Function) -> Lowered:
    return run if isinstance(run, Lowered) else Lowered(run, {})


def _lowered(operator: Operator, rule: OpRule, op: Op[Options]) -> Function:
    if _is_identity(rule, op):
        return _identity
    with naming(operator):
        return rule.lower(op)


def _with_called_weights(
    lower: Callable[[Op[Options]], Function], op: Op[Options]
) -> tuple[Function, CalledWeights]:
    """An operator as a function of its inputs, then of its callees' weights; and these weights.

    The first lowering collects the subgraphs that it calls. Each call lowers it again, with
    subgraphs as functions that contain the weights of the call.
    """
    callee_of, callees, count = op.context.lower_subgraph, list[Any](), len(op.inputs)
    if callee_of is None:
        return lower(op), {}

    def collecting(*which: Any, **how: Any) -> Function:
        callees.append(callee_of(*which, **how))
        return callees[-1]  # type: ignore[no-any-return]

    lowered = lower(op.in_context(lower_subgraph=collecting))
    found: CalledWeights = {}
    for callee in callees:
        found.update(callee.weights)
    if not callees:
        return lowered, {}

    def run(*arrays: Any) -> tuple[Any, ...]:
        weights = dict(zip(found, arrays[count:], strict=True))

        def holding(*which: Any, **how: Any) -> Function:
            return callee_of(*which, **how).holding(weights)  # type: ignore[attr-defined,no-any-return]

        return lower(op.in_context(lower_subgraph=holding))(*arrays[:count])

    if isinstance(lowered, Lowered):
        return dataclasses.replace(lowered, run=run, prepare={}), found
    return run, found


def _partly_prepared(lowered: Lowered, done: frozenset[int]) -> Function:
    """The function for arrays of which those in `done` are prepared, the others in file layout."""
    late = {p: prepare for p, prepare in lowered.prepare.items() if p not in done}
    return Lowered(lowered.run, late) if late else lowered.run


@dataclasses.dataclass(frozen=True)
class _Constants:
    """How one operator reads its constants."""

    precision: PrecisionPolicy
    prepared: Mapping[int, Prepare]
    layout: Hashable

    def source(
        self, operator: Operator, position: int, spec: TensorSpec | None
    ) -> tuple[int | Weight | None, Prepare | None]:
        """The tensor or weight of an input, and the function that prepares a weight."""
        index = operator.inputs[position]
        if spec is None or spec.dtype in HANDLES:  # a handle's state is another input
            return None, None
        if spec.const is None:
            return index, None
        if position in self.prepared:
            weight = Weight(index, operator.index, position, self.layout)
            return weight, self.prepared[position]
        dtype = self.precision.constant(spec.const)
        if dtype == spec.const.dtype:
            return Weight(index), None
        return Weight(index, layout=dtype.name), functools.partial(downcast, dtype=dtype)


def context_for(
    context: LoweringContext, operator: Operator, specs: Mapping[int, TensorSpec]
) -> LoweringContext:
    """The lowering context of one operator: version, intermediate tensors, precision."""
    intermediates = tuple(specs[i] for i in operator.intermediates if i in specs)
    precision, lower_callee = context.precision.of_operator(operator.index), context.lower_subgraph
    if lower_callee is not None and precision != context.precision:
        lower_callee = functools.partial(lower_callee, precision=precision)
    return dataclasses.replace(
        context,
        op_version=operator.version,
        intermediates=intermediates,
        precision=precision,
        lower_subgraph=lower_callee,
    )


RULE_RAISED = "its rule raised"  # a bug in jaxdelegate: rules must not raise for any file
_NO_CUSTOM_RULE = "custom operator without an XLA lowering; jaxdelegate.register_operator adds one"


def rule_for(operator: Operator) -> OpRule | None:
    """The rule of an operator of the file, or of one that a rewrite created."""
    return rule_of(operator.name, operator.options)


def why_not(
    context: LoweringContext, operator: Operator, inputs: Specs, outputs: Specs
) -> str | None:
    """Why XLA cannot run an operator; None if it can. `context` is that of `context_for`."""
    rule = rule_for(operator)
    if rule is None:
        return _NO_CUSTOM_RULE if operator.custom else "jaxdelegate has no XLA lowering of it"
    present = [spec for spec in (*inputs, *outputs) if spec is not None]
    if not context.enable_quant and any(spec.is_quantized for spec in present):
        return "it is quantized, and the option enable_quant is off"
    if context.quant_mode == "float_view":
        return _why_not_viewed(context, rule, operator, inputs, outputs)
    if context.may_use_floats and _runs_in_floats(context, rule, operator, inputs, outputs):
        return None
    return _reason(rule, operator, Op(context, operator.options, inputs, outputs))


def runs_in_floats(
    context: LoweringContext, operator: Operator, specs: Mapping[int, TensorSpec]
) -> bool:
    """Whether integer mode runs an operator in floats: see `float_operators`."""
    inputs, outputs = gather(specs, operator.inputs), gather(specs, operator.outputs)
    rule = rule_for(operator)
    own = context_for(context, operator, specs)
    return rule is not None and _runs_in_floats(own, rule, operator, inputs, outputs)


def _runs_in_floats(
    context: LoweringContext, rule: OpRule, operator: Operator, inputs: Specs, outputs: Specs
) -> bool:
    name, options = operator.name, operator.options
    if not float_operators.is_possible(name, options, inputs, outputs):
        return False
    in_integers = Op(context, options, inputs, outputs)
    adds_products = context.adds_int8_products
    is_faster = float_operators.is_faster(name, inputs, outputs, adds_products=adds_products)
    if not is_faster and _reason(rule, operator, in_integers) is None:
        return False
    floats = dataclasses.replace(context, quant_mode="float_view")
    return _why_not_viewed(floats, rule, operator, inputs, outputs) is None


def _why_not_viewed(
    context: LoweringContext, rule: OpRule, operator: Operator, inputs: Specs, outputs: Specs
) -> str | None:
    reason = fake_quantization.why_not(operator.name, operator.options, inputs, outputs)
    if reason is not None:
        return reason
    if fake_quantization.is_on_integers(operator.name, inputs, outputs):
        context = dataclasses.replace(context, quant_mode="integer")
        return _reason(rule, operator, Op(context, operator.options, inputs, outputs))
    options = fake_quantization.options_of(operator.options, inputs)
    viewed = map(fake_quantization.viewed_all, (inputs, outputs))
    return _reason(rule, operator, Op(context, options, *viewed))


def _reason(rule: OpRule, operator: Operator, op: Op[Options]) -> str | None:
    inputs, outputs = as_read(record_of(operator.name), op.inputs, op.outputs)
    op = dataclasses.replace(op, inputs=inputs, outputs=outputs)
    if _is_identity(rule, op):
        return None
    try:
        with naming(operator):
            return rule.reason(op)
    except KERNEL_ERRORS as error:  # a damaged file, which reference kernels reject, too
        return f"{RULE_RAISED} {type(error).__name__}: {error}"


def _is_identity(rule: OpRule, op: Op[Options]) -> bool:
    """Whether the operator is an identity in the float view (QUANTIZE between two views)."""
    if not rule.is_identity_in_float_view or op.context.quant_mode != "float_view":
        return False
    dtypes = {spec.dtype for spec in (*op.inputs[:1], *op.outputs) if spec is not None}
    return dtypes == {np.dtype(np.float32)}


def _identity(x: Any, *_rest: Any) -> tuple[Any]:
    return (x,)
