"""Lowers one operator of a partition by its rule, and collects the weights that it reads."""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from jaxdelegate.errors import LoweringError
from jaxdelegate.lowering import fake_quantization, float_operators
from jaxdelegate.lowering.computation import CalledWeights, LoweredOperator, Weight, naming
from jaxdelegate.lowering.legality import Arithmetic, as_seen, context_for, is_identity, rule_for
from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.common.algorithms import with_algorithm, with_barriers
from jaxdelegate.op_lowering.common.downcast import downcast
from jaxdelegate.op_lowering.dtypes import HANDLES
from jaxdelegate.op_lowering.options import Options
from jaxdelegate.op_lowering.precision import PrecisionPolicy
from jaxdelegate.op_lowering.rule import Function, Lowered, LoweringContext, Op, OpRule, Prepare
from jaxdelegate.op_lowering.spec import Specs, TensorSpec
from jaxdelegate.passes.propagation import gather
from jaxdelegate.text import printable

Lower = Callable[[Op[Options]], Function]


def lower_operator(
    operator: Operator,
    parts: tuple[Operator, ...],
    specs: Mapping[int, TensorSpec],
    context: LoweringContext,
    *,
    raw_weights: bool,
    integers: tuple[Specs, Specs] | None = None,
    in_floats: bool = False,
) -> LoweredOperator:
    """Lower an operator of the file, or one that a rewrite created; its rule accepts it.

    Args:
        operator: the operator.
        parts: the file's operators that it replaces.
        specs: those of all tensors, as rules see them.
        context: the program's, with the operator's grid.
        raw_weights: whether weights have the file's layout, and callees' weights are its own.
        integers: the stored specs, if the float view lowers it as integer mode does.
        in_floats: whether integer mode lowers it as the float view does.
    """
    rule = rule_for(operator)
    if rule is None:
        raise LoweringError(f"node {operator.index} ({printable(operator.name)}) has no rule")
    stored = integers or (gather(specs, operator.inputs), gather(specs, operator.outputs))
    arithmetic = Arithmetic.DECLARED if integers is None else Arithmetic.INTEGER
    if in_floats:
        arithmetic = Arithmetic.FLOAT
        stored = float_operators.as_stored(operator.name, *stored), stored[1]
    context = context_for(context, operator, specs)
    op = with_algorithm(rule, as_seen(context, operator, *stored, arithmetic))
    run = _run_of(operator, rule, op, arithmetic, stored, raw_weights=raw_weights)
    return _with_sources(operator, parts, specs, rule, op, run)


@dataclasses.dataclass(frozen=True)
class _Run:
    """How a program runs one operator."""

    lowered: Lowered  # by the operator's rule
    run: Function  # gets the constants in `prepared` as prepared, others in the file's layout
    prepared: Mapping[int, Prepare] = dataclasses.field(default_factory=dict)
    called: CalledWeights = dataclasses.field(default_factory=dict)
    derived: Sequence[tuple[int, Prepare]] = ()

    def in_floats(self, inputs: Specs, outputs: Specs) -> "_Run":
        """For stored integers, where the rule got floats."""
        run = float_operators.run_in_floats(self.run, inputs, outputs)
        prepared = float_operators.dequantizing(inputs, self.prepared)
        return dataclasses.replace(self, run=run, prepared=prepared)

    def layout(self, op: Op[Options]) -> Hashable:
        """What the preparations depend on."""
        shapes = tuple(None if spec is None else spec.shape for spec in op.inputs)
        layout = shapes if self.lowered.layout is None else self.lowered.layout
        return op.context.quant_mode, op.context.algorithm, layout

    def derived_weights(self, operator: Operator, layout: Hashable) -> dict[Weight, Prepare | None]:
        """What `run` gets after its inputs and the weights of callees."""
        return {
            Weight(operator.inputs[p], operator.index, p, ("derived", i, layout)): prepare
            for i, (p, prepare) in enumerate(self.derived)
        }


def _run_of(
    operator: Operator,
    rule: OpRule,
    op: Op[Options],
    arithmetic: Arithmetic,
    stored: tuple[Specs, Specs],
    *,
    raw_weights: bool,
) -> _Run:
    lower = functools.partial(_lowered, operator, rule)
    if arithmetic is Arithmetic.INTEGER:
        run = fake_quantization.run_on_integers(lower(op), operator.name, *stored)
        return _Run(_as_lowered(run), run)
    if raw_weights:
        run, called = _with_called_weights(lower, op)
        result = _Run(_as_lowered(run), run, called=called)
    else:
        result = _with_prepared_constants(_as_lowered(lower(op)), op)
    return result.in_floats(*stored) if arithmetic is Arithmetic.FLOAT else result


def _lowered(operator: Operator, rule: OpRule, op: Op[Options]) -> Function:
    if is_identity(rule, op):
        return _identity
    with naming(operator):
        return rule.lower(op)


def _identity(x: Any, *_rest: Any) -> tuple[Any]:
    return (x,)


def _as_lowered(run: Function) -> Lowered:
    return run if isinstance(run, Lowered) else Lowered(run, {})


def _with_prepared_constants(lowered: Lowered, op: Op[Options]) -> _Run:
    """The compiler prepares what is constant; the function prepares the rest at each call."""
    constant = {
        p for p, spec in enumerate(op.inputs) if spec is not None and spec.const is not None
    }
    early = {p: prepare for p, prepare in lowered.prepare.items() if p in constant}
    late = {p: prepare for p, prepare in lowered.prepare.items() if p not in constant}
    run = Lowered(lowered.run, late) if late else lowered.run
    return _Run(lowered, run, early, derived=lowered.derived)


def _with_called_weights(lower: Lower, op: Op[Options]) -> tuple[Function, CalledWeights]:
    """An operator as a function of its inputs, then of its callees' weights; and these weights.

    The first lowering collects the subgraphs that it calls. Each call lowers it again, with
    subgraphs as functions that contain the weights of the call.
    """
    subgraphs, callees, count = op.context.subgraphs, list[Any](), len(op.inputs)
    if subgraphs is None:
        return lower(op), {}

    def lowered_by(lower_subgraph: Callable[..., Function]) -> Function:
        called = dataclasses.replace(subgraphs, lower=lower_subgraph)
        return lower(op.in_context(subgraphs=called))

    def collecting(*which: Any, **how: Any) -> Function:
        callees.append(subgraphs.lower(*which, **how))
        return callees[-1]  # type: ignore[no-any-return]

    lowered = lowered_by(collecting)
    if not callees:
        return lowered, {}
    called: CalledWeights = {}
    for callee in callees:
        called.update(callee.weights)

    def run(*arrays: Any) -> tuple[Any, ...]:
        weights = dict(zip(called, arrays[count:], strict=True))

        def holding(*which: Any, **how: Any) -> Function:
            return subgraphs.lower(*which, **how).holding(weights)  # type: ignore[attr-defined,no-any-return]

        return lowered_by(holding)(*arrays[:count])

    if isinstance(lowered, Lowered):
        return dataclasses.replace(lowered, run=run, prepare={}), called
    return run, called


def _with_sources(
    operator: Operator,
    parts: tuple[Operator, ...],
    specs: Mapping[int, TensorSpec],
    rule: OpRule,
    op: Op[Options],
    run: _Run,
) -> LoweredOperator:
    layout = run.layout(op)
    prepared = {
        p: (Weight(operator.inputs[p], operator.index, p, layout), prepare)
        for p, prepare in run.prepared.items()
    }
    sources = [
        _source(index, specs.get(index), prepared.get(position), op.context.precision)
        for position, index in enumerate(operator.inputs)
    ]
    read = [source for source, _ in sources]
    derived = run.derived_weights(operator, layout)
    called = {weight: prepare for weight, (_, prepare) in run.called.items()}
    built_in = (read[p] for p in rule.built_in if p < len(read))
    return LoweredOperator(
        operator=operator,
        parts=parts,
        lowered=run.lowered,
        run=run.run if op.context.algorithm is None else with_barriers(run.run, op.inputs),
        inputs=(*read, *called, *derived),
        states=tuple(operator.inputs[p] for p in rule.states(op)) if rule.states else (),
        preparations={
            **{weight: prepare for weight, prepare in sources if isinstance(weight, Weight)},
            **called,
            **derived,
        },
        called={weight: array for weight, (array, _) in run.called.items()},
        built_in=frozenset(source for source in built_in if isinstance(source, Weight)),
    )


def _source(
    index: int,
    spec: TensorSpec | None,
    prepared: tuple[Weight, Prepare] | None,
    precision: PrecisionPolicy,
) -> tuple[int | Weight | None, Prepare | None]:
    """The tensor or weight of an input, and the function that prepares a weight."""
    if spec is None or spec.dtype in HANDLES:  # a handle's state is another input
        return None, None
    if spec.const is None:
        return index, None
    if prepared is not None:
        return prepared
    dtype = precision.constant(spec.const)
    if dtype == spec.const.dtype:
        return Weight(index), None
    return Weight(index, layout=dtype.name), functools.partial(downcast, dtype=dtype)
