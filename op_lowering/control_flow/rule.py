"""Control flow: IF, WHILE, CALL, STABLEHLO_CASE, STABLEHLO_WHILE.

Subgraphs are reached through the context. They are lowered where they can be; an operator with a
branch that cannot be stays on the host, where its subgraphs are partitioned by themselves.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from jaxdelegate.op_lowering.common.forward_only import forward_only
from jaxdelegate.op_lowering.control_flow.options import (
    CallOnceOptions,
    CallOptions,
    IfOptions,
    StablehloCaseOptions,
    StablehloWhileOptions,
    WhileOptions,
)
from jaxdelegate.op_lowering.rule import (
    Function,
    LoweringContext,
    OpRule,
    OptionsT,
    StaticLoop,
    first_reason,
    host_only,
    table,
)
from jaxdelegate.op_lowering.spec import Specs

_Callees = Callable[[OptionsT], Sequence[int]]
_Loop = TypeVar("_Loop", bound=WhileOptions | StablehloWhileOptions)


def _why_not_called(context: LoweringContext, callees: Sequence[int], inputs: Specs) -> str | None:
    if any(spec is None for spec in inputs):
        return "an input is left out"
    if context.why_not_subgraph is None:
        return "the delegate has no access to the subgraphs that the operator calls"
    return first_reason(*(context.why_not_subgraph(index, inputs) for index in callees))


def _unknown(specs: Specs) -> Specs:
    """The specs without values: lax's branches and loops see every operand as a variable."""
    return tuple(spec and dataclasses.replace(spec, const=None) for spec in specs)


def _lowered(context: LoweringContext, index: int, inputs: Specs) -> Function:
    if context.lower_subgraph is None:
        raise ValueError(f"subgraph {index} is out of reach")
    return context.lower_subgraph(index, inputs)


def _branching(
    name: str,
    options_type: type[OptionsT],
    branches: _Callees[OptionsT],
    select: Callable[[jax.Array], jax.Array],
) -> OpRule[OptionsT]:
    """A choice among branches by the first input, which `select` makes a branch number."""

    def why_not(
        context: LoweringContext, o: OptionsT, inputs: Specs, _outputs: Specs
    ) -> str | None:
        chosen = inputs[0]
        return first_reason(
            None if branches(o) else "there are no branches",
            None if chosen.shape in ((), (1,)) else f"{chosen.name!r} must hold one value",
            _why_not_called(context, branches(o), _unknown(inputs[1:])),
        )

    def lower(context: LoweringContext, o: OptionsT, inputs: Specs, _outputs: Specs) -> Function:
        functions = [_lowered(context, index, _unknown(inputs[1:])) for index in branches(o)]

        def branch(chosen: jax.Array, *arrays: jax.Array) -> tuple[Any, ...]:
            number = select(chosen.reshape(()))
            # An index out of range names the last branch (StableHLO); lax would take the nearest.
            inside = (number >= 0) & (number < len(functions))
            number = jnp.where(inside, number, len(functions) - 1)
            return tuple(lax.switch(number, functions, *arrays))

        return branch

    return OpRule(name, options_type, 1, why_not, lower, results=0)


IF = _branching(
    "IF",
    IfOptions,
    lambda o: (o.then_subgraph_index, o.else_subgraph_index),
    lambda condition: jnp.where(condition, jnp.int32(0), jnp.int32(1)),
)
STABLEHLO_CASE = _branching(
    "STABLEHLO_CASE", StablehloCaseOptions, lambda o: o.branch_subgraph_indices, lambda index: index
)


def _loop(name: str, options_type: type[_Loop]) -> OpRule[_Loop]:
    def why_not(context: LoweringContext, o: _Loop, inputs: Specs, outputs: Specs) -> str | None:
        callees = (o.cond_subgraph_index, o.body_subgraph_index)
        reason = _why_not_called(context, callees, _unknown(inputs))
        if reason is not None:
            return reason
        kept = all(a.dtype == b.dtype for a, b in zip(inputs, outputs, strict=False))
        return None if len(inputs) == len(outputs) and kept else "the body changes a dtype"

    def lower(context: LoweringContext, o: _Loop, inputs: Specs, outputs: Specs) -> Function:
        body = _lowered(context, o.body_subgraph_index, _unknown(inputs))
        static = None
        if context.static_loop is not None:
            static = context.static_loop(o.cond_subgraph_index, o.body_subgraph_index, inputs)
        if static is not None:
            return _repeated(body, static)
        loop = _until(_lowered(context, o.cond_subgraph_index, _unknown(inputs)), body)
        return loop if context.static_loop is None else _forward_only(loop, name, outputs)

    return OpRule(name, options_type, 1, why_not, lower, results=0)


def _until(condition: Function, body: Function) -> Function:
    """The loop that runs while a condition holds."""

    def loop(*arrays: jax.Array) -> tuple[Any, ...]:
        start = tuple(map(jnp.asarray, arrays))
        return tuple(
            lax.while_loop(lambda s: condition(*s)[0].reshape(()), lambda s: body(*s), start)
        )

    return loop


def _repeated(body: Function, static: StaticLoop) -> Function:
    """The loop of known length, which JAX differentiates in both modes.

    Values that stay the same are no part of what derivatives have to keep of every turn.
    """

    def loop(*arrays: jax.Array) -> tuple[Any, ...]:
        values = list(map(jnp.asarray, arrays))
        varying = [p for p in range(len(values)) if p not in static.kept]

        def turn(carry: tuple[Any, ...], _: None) -> tuple[tuple[Any, ...], None]:
            known = dict(enumerate(values)) | dict(zip(varying, carry, strict=True))
            following = body(*(known[p] for p in range(len(values))))
            return tuple(following[p] for p in varying), None

        last, _ = lax.scan(turn, tuple(values[p] for p in varying), None, length=static.trips)
        known = dict(enumerate(values)) | dict(zip(varying, last, strict=True))
        return tuple(known[p] for p in range(len(values)))

    return loop


def _forward_only(loop: Function, name: str, outputs: Specs) -> Function:
    """The loop with our words where JAX cannot differentiate it."""
    named = ", ".join(repr(spec.name) for spec in outputs if spec is not None)
    message = (
        f"{name} ({named}): how often the loop runs follows from its data, so that JAX has no "
        "gradient of it (jax.grad, jax.vjp, jax.jacrev). jax.jvp and jax.jacfwd differentiate it; "
        "and JAX has one where the loop's counter begins and ends with constants of the model"
    )

    def guarded(*arrays: jax.Array) -> tuple[Any, ...]:
        return tuple(forward_only(y, message) for y in loop(*arrays))

    return guarded


WHILE = _loop("WHILE", WhileOptions)
STABLEHLO_WHILE = _loop("STABLEHLO_WHILE", StablehloWhileOptions)


def calling(
    name: str, options_type: type[OptionsT], callee: Callable[[OptionsT], int]
) -> OpRule[OptionsT]:
    """The rule of an operator that is the subgraph which `callee(options)` names."""

    def why_not(
        context: LoweringContext, o: OptionsT, inputs: Specs, _outputs: Specs
    ) -> str | None:
        return _why_not_called(context, (callee(o),), inputs)

    def lower(context: LoweringContext, o: OptionsT, inputs: Specs, _outputs: Specs) -> Function:
        return _lowered(context, callee(o), inputs)

    return OpRule(name, options_type, 1, why_not, lower, arity=0, results=0)


CALL = calling("CALL", CallOptions, lambda o: o.subgraph)


CALL_ONCE = host_only("CALL_ONCE", CallOnceOptions, 1, "initialization runs once, on the host")

RULES = table(CALL, CALL_ONCE, IF, STABLEHLO_CASE, STABLEHLO_WHILE, WHILE)
