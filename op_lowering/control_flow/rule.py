"""Control flow: IF, WHILE, CALL, STABLEHLO_CASE, STABLEHLO_WHILE.

The context gives access to subgraphs. An operator is lowered if all its subgraphs can be; otherwise
it stays on the host, where each subgraph is partitioned separately.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from jaxdelegate.op_lowering.common.derivatives import forward_only
from jaxdelegate.op_lowering.control_flow.options import StablehloWhileOptions, WhileOptions
from jaxdelegate.op_lowering.rule import (
    Function,
    LoweringContext,
    Op,
    OpRule,
    OptionsT,
    StaticLoop,
    first_reason,
    host_only,
    rule,
    table,
)
from jaxdelegate.op_lowering.spec import Specs

_Callees = Callable[[OptionsT], Sequence[int]]
_Loop = TypeVar("_Loop", bound=WhileOptions | StablehloWhileOptions)


def _why_not_called(context: LoweringContext, callees: Sequence[int], inputs: Specs) -> str | None:
    if any(spec is None for spec in inputs):
        return "an input is left out"
    return first_reason(*(context.why_not_subgraph(index, inputs) for index in callees))


def _unknown(specs: Specs) -> Specs:
    """The specs without constants: in lax's branches and loops every operand is traced."""
    return tuple(spec and dataclasses.replace(spec, const=None) for spec in specs)


def _branching(
    name: str,
    branches: _Callees[OptionsT],
    select: Callable[[jax.Array], jax.Array],
) -> OpRule[OptionsT]:
    """`select` maps the first input to a branch number."""

    def why_not(op: Op[OptionsT]) -> str | None:
        chosen = op.inputs[0]
        return first_reason(
            None if branches(op.options) else "there are no branches",
            None if chosen.shape in ((), (1,)) else f"{chosen.name!r} must hold one value",
            _why_not_called(op.context, branches(op.options), _unknown(op.inputs[1:])),
        )

    def lower(op: Op[OptionsT]) -> Function:
        inputs = _unknown(op.inputs[1:])
        functions = [op.context.lower_subgraph(index, inputs) for index in branches(op.options)]

        def branch(chosen: jax.Array, *arrays: jax.Array) -> tuple[Any, ...]:
            number = select(chosen.reshape(()))
            # An index out of range names the last branch (StableHLO); lax would take the nearest.
            inside = (number >= 0) & (number < len(functions))
            number = jnp.where(inside, number, len(functions) - 1)
            return tuple(lax.switch(number, functions, *arrays))

        return branch

    return rule(name, 1, why_not, lower, results=0)


def _loop(name: str) -> OpRule[_Loop]:
    def why_not(op: Op[_Loop]) -> str | None:
        callees = (op.options.cond_subgraph_index, op.options.body_subgraph_index)
        reason = _why_not_called(op.context, callees, _unknown(op.inputs))
        if reason is not None:
            return reason
        dtypes = [[spec.dtype for spec in specs] for specs in (op.inputs, op.outputs)]
        return None if dtypes[0] == dtypes[1] else "the body changes a dtype"

    def lower(op: Op[_Loop]) -> Function:
        condition, body = op.options.cond_subgraph_index, op.options.body_subgraph_index
        inputs, called = _unknown(op.inputs), op.context.subgraphs
        static_loop = None if called is None else called.static_loop
        run_body = op.context.lower_subgraph(body, inputs)
        static = None if static_loop is None else static_loop(condition, body, op.inputs)
        if static is not None:
            return _repeated(run_body, static)
        loop = _while(op.context.lower_subgraph(condition, inputs), run_body)
        return loop if static_loop is None else _forward_only(loop, name, op.outputs)

    return rule(name, 1, why_not, lower, results=0)


def _while(condition: Function, body: Function) -> Function:

    def loop(*arrays: jax.Array) -> tuple[Any, ...]:
        start = tuple(map(jnp.asarray, arrays))
        return tuple(
            lax.while_loop(lambda s: condition(*s)[0].reshape(()), lambda s: body(*s), start)
        )

    return loop


def _repeated(body: Function, static: StaticLoop) -> Function:
    # Values that stay the same are not carried: derivatives would store them at every iteration.

    def loop(*arrays: jax.Array) -> tuple[Any, ...]:
        values = list(map(jnp.asarray, arrays))
        varying = [p for p in range(len(values)) if p not in static.kept]

        def iterate(carry: tuple[Any, ...], _: None) -> tuple[tuple[Any, ...], None]:
            known = dict(enumerate(values)) | dict(zip(varying, carry, strict=True))
            following = body(*(known[p] for p in range(len(values))))
            return tuple(following[p] for p in varying), None

        last, _ = lax.scan(iterate, tuple(values[p] for p in varying), None, length=static.trips)
        known = dict(enumerate(values)) | dict(zip(varying, last, strict=True))
        return tuple(known[p] for p in range(len(values)))

    return loop


def _forward_only(loop: Function, name: str, outputs: Specs) -> Function:
    named = ", ".join(repr(spec.name) for spec in outputs if spec is not None)
    message = (
        f"{name} ({named}): the number of iterations depends on data, so JAX cannot compute "
        "gradients of the loop (jax.grad, jax.vjp, jax.jacrev). jax.jvp and jax.jacfwd work; so do "
        "gradients if the loop's counter starts and ends at constants of the model"
    )

    def guarded(*arrays: jax.Array) -> tuple[Any, ...]:
        return tuple(forward_only(y, message) for y in loop(*arrays))

    return guarded


def calling(name: str, callee: Callable[[OptionsT], int]) -> OpRule[OptionsT]:
    """The rule of an operator that runs the subgraph `callee(options)`."""

    def why_not(op: Op[OptionsT]) -> str | None:
        return _why_not_called(op.context, (callee(op.options),), op.inputs)

    def lower(op: Op[OptionsT]) -> Function:
        return op.context.lower_subgraph(callee(op.options), op.inputs)

    return rule(name, 1, why_not, lower, arity=0, results=0)


RULES = table(
    calling("CALL", lambda o: o.subgraph),
    host_only("CALL_ONCE", 1, "initialization runs once, on the host"),
    _branching(
        "IF",
        lambda o: (o.then_subgraph_index, o.else_subgraph_index),
        lambda condition: jnp.where(condition, jnp.int32(0), jnp.int32(1)),
    ),
    _branching("STABLEHLO_CASE", lambda o: o.branch_subgraph_indices, lambda index: index),
    _loop("STABLEHLO_WHILE"),
    _loop("WHILE"),
)
