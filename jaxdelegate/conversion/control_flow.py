"""Conditions and loops: IF, WHILE, or unrolled."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxdelegate.conversion.emitter import BOOL, Emitter
from jaxdelegate.conversion.graph import Complex, Graph, Key, Shape, Value, in_parts, stored_dtype
from jaxdelegate.conversion.interpreting import Lower, Primitive, run
from jaxdelegate.conversion.movement import starts_of
from jaxdelegate.op_lowering.options import GatherOptions, IfOptions, WhileOptions

_UNROLLED_STEPS = 8  # at most; and
_UNROLLED_OPERATORS = 200  # equations in all steps
Body = Callable[[Emitter, Sequence[Any]], Any]


def _cond(e: Emitter, index: Value, *operands: Value, branches: Any, **_: Any) -> Any:
    bodies = [_body(jaxpr) for jaxpr in branches]
    if isinstance(index.data, np.ndarray):
        return bodies[int(np.clip(index.data, 0, len(branches) - 1))](e, operands)
    which = _condition(index)
    if which is not None and len(branches) == 2:
        return _if(e, which, operands, bodies[1], bodies[0])
    return _switch(e, index, operands, bodies)


def _body(jaxpr: Any) -> Body:
    return lambda e, inputs: run(e, jaxpr, inputs)


def _platform(e: Emitter, *, platforms: Sequence[Any], **_: Any) -> Value:
    """The branch for any platform, or that for a CPU."""
    known = [i for i, names in enumerate(platforms) if names is None or "cpu" in names]
    if not known:
        e.refuse("it has no branch for a CPU", "add a default to lax.platform_dependent")
    return e.const(known[-1], np.int32)


def _condition(index: Value) -> Value | None:
    """The boolean that chooses between two branches, if it is one."""
    node = index.node
    if node is not None and node.op == "CAST" and node.inputs[0].dtype == BOOL:
        return node.source
    return index if index.dtype == BOOL else None


def _switch(e: Emitter, index: Value, operands: Sequence[Any], bodies: list[Body]) -> Any:
    """A chain of conditions: is it the first branch, or the second ..."""
    if len(bodies) == 1:
        return bodies[0](e, operands)
    is_first = e.compute("LESS_EQUAL", index, e.like(index, 0), dtype=BOOL)
    if len(bodies) == 2:
        return _if(e, is_first, operands, *bodies)

    def others(inner: Emitter, values: Sequence[Any]) -> Any:
        shifted = inner.compute("SUB", values[0], inner.like(values[0], 1))
        return _switch(inner, shifted, values[1:], bodies[1:])

    return _if(e, is_first, (index, *operands), lambda i, v: bodies[0](i, v[1:]), others)


def _if(e: Emitter, which: Value, operands: Sequence[Any], yes: Body, no: Body) -> list[Any]:
    variable = [v for v in operands if not v.is_constant]

    def with_constants(body: Body) -> Body:
        def inner(e: Emitter, inputs: Sequence[Any]) -> Any:
            rest = iter(inputs)
            return body(e, [v if v.is_constant else next(rest) for v in operands])

        return inner

    graphs = {}
    for name, body in (("then", yes), ("else", no)):
        graph, tree = subgraph(e, name, variable, with_constants(body))
        graphs[f"{name}_subgraph_index"] = graph
    results = [(v.shape, v.dtype) for v in graphs["then_subgraph_index"].outputs]
    inputs = [which, *jax.tree.leaves(variable)]
    return _unflattened(tree, e.node("IF", inputs, results, IfOptions(), graphs=graphs))


def subgraph(e: Emitter, name: str, like: Sequence[Any], body: Body) -> tuple[Graph, Any]:
    """A graph with inputs like these values, and the tree of its outputs, which are its tensors.

    Complex arrays and keys are two tensors each.
    """
    leaves, tree = jax.tree.flatten(list(like))
    graph = Graph(f"{e.place.scope}/{name}")
    graph.inputs = [Value(v.shape, v.dtype, f"{name}_{i}") for i, v in enumerate(leaves)]
    inner = e.under(graph)
    results = list(map(in_parts, body(inner, _unflattened(tree, graph.inputs))))
    graph.outputs, out = jax.tree.flatten(results)
    return graph, out


def _unflattened(tree: Any, leaves: Sequence[Value]) -> list[Any]:
    return list(jax.tree.unflatten(tree, leaves))


def _while(
    e: Emitter, *inputs: Value, cond_jaxpr: Any, body_jaxpr: Any, cond_nconsts: int,
    body_nconsts: int, **_: Any,
) -> list[Value]:  # fmt: skip
    split = cond_nconsts + body_nconsts
    cond_consts, body_consts = inputs[:cond_nconsts], inputs[cond_nconsts:split]

    def cond(inner: Emitter, consts: Sequence[Value], carry: Sequence[Value]) -> Any:
        return run(inner, cond_jaxpr, [*consts[:cond_nconsts], *carry])[0]

    def body(inner: Emitter, consts: Sequence[Value], carry: Sequence[Value]) -> Any:
        return run(inner, body_jaxpr, [*consts[cond_nconsts:], *carry])

    return loop(e, (*cond_consts, *body_consts), inputs[split:], cond, body)


def loop(
    e: Emitter, consts: Sequence[Value], carry: Sequence[Value], cond: Any, body: Any
) -> list[Value]:
    """WHILE, which also carries what it reads; constants are in its subgraphs."""
    read = [v for v in consts if not v.is_constant]
    carried = [*map(in_parts, carry), *read]

    def with_consts(inputs: Sequence[Value]) -> tuple[list[Value], list[Value]]:
        rest = iter(inputs[len(carry) :])
        return [v if v.is_constant else next(rest) for v in consts], list(inputs[: len(carry)])

    def checks(inner: Emitter, values: Sequence[Any]) -> list[Any]:
        return [cond(inner, *with_consts(values))]

    def steps(inner: Emitter, values: Sequence[Any]) -> list[Any]:
        return [*body(inner, *with_consts(values)), *values[len(carry) :]]

    graphs = {
        "cond_subgraph_index": subgraph(e, "cond", carried, checks)[0],
        "body_subgraph_index": subgraph(e, "body", carried, steps)[0],
    }
    leaves, tree = jax.tree.flatten(carried)
    results = [(v.shape, v.dtype) for v in leaves]
    outputs = e.node("WHILE", leaves, results, WhileOptions(), graphs=graphs)
    return _unflattened(tree, outputs)[: len(carry)]


def _scan(
    e: Emitter, *inputs: Value, jaxpr: Any, length: int, reverse: bool, **more: Any
) -> list[Value]:
    num_consts, num_carry = more["num_consts"], more["num_carry"]
    split = num_consts + num_carry
    consts, carry = inputs[:num_consts], inputs[num_consts:split]
    xs = [in_parts(x) for x in inputs[split:]]
    ys = jaxpr.out_avals[num_carry:]
    stacks = [_empty(e, (length, *y.shape), y.dtype) for y in ys]
    if not length:
        return [*carry, *stacks]
    if length <= _UNROLLED_STEPS and length * _count(jaxpr) <= _UNROLLED_OPERATORS:
        order = range(length)[:: -1 if reverse else 1]
        return _unrolled(e, lambda *values: run(e, jaxpr, [*consts, *values]), order, carry, xs)

    def cond(inner: Emitter, _: Any, carried: Sequence[Value]) -> Value:
        return inner.compute("LESS", carried[0], inner.const(length, np.int32), dtype=BOOL)

    def body(inner: Emitter, read: Sequence[Value], carried: Sequence[Value]) -> list[Value]:
        step, rest = carried[0], carried[1:]
        at = inner.compute("SUB", inner.const(length - 1, np.int32), step) if reverse else step
        elements = [_element(inner, x, at) for x in read[num_consts:]]
        out = run(inner, jaxpr, [*read[:num_consts], *rest[:num_carry], *elements])
        kept = zip(rest[num_carry:], out[num_carry:], strict=True)
        stacked = [_stacked(inner, stack, y, at) for stack, y in kept]
        return [inner.compute("ADD", step, inner.const(1, np.int32)), *out[:num_carry], *stacked]

    return loop(e, (*consts, *xs), [e.const(0, np.int32), *carry, *stacks], cond, body)[1:]


def _count(jaxpr: Any) -> int:
    """The equations of a jaxpr and of those that it calls."""
    inner = [p for eqn in jaxpr.eqns for p in eqn.params.values() if hasattr(p, "eqns")]
    return len(jaxpr.eqns) + sum(map(_count, inner))


def _unrolled(
    e: Emitter, body: Any, order: Sequence[int], carry: Sequence[Value], xs: Sequence[Value]
) -> list[Value]:
    count, rows = len(carry), {}
    for step in order:
        out = body(*carry, *(_element(e, x, e.const(step, np.int32)) for x in xs))
        carry, rows[step] = out[:count], out[count:]
    columns = zip(*(rows[step] for step in sorted(rows)), strict=True)
    return [*carry, *(_stack(e, list(map(in_parts, column))) for column in columns)]


def _stack(e: Emitter, rows: Sequence[Any]) -> Any:
    if isinstance(rows[0], Complex):
        return jax.tree.map(lambda *parts: _stack(e, parts), *rows)
    return e.concatenate([e.reshape(v, (1, *v.shape)) for v in rows], 0)


def _empty(e: Emitter, shape: Shape, dtype: Any) -> Any:
    """A stack of zeros."""
    if isinstance(dtype, np.dtype) and dtype.kind != "c":
        return e.broadcast(e.const(0, stored_dtype(dtype)), shape)
    is_complex = isinstance(dtype, np.dtype)
    part = e.broadcast(e.const(0, np.float32 if is_complex else np.uint32), shape)
    return Complex(part, part) if is_complex else Key(part, part)


def _element(e: Emitter, x: Any, at: Value) -> Any:
    """The element of a stack at a scalar index."""
    if isinstance(x, Complex):
        return jax.tree.map(lambda part: _element(e, part, at), x)
    if isinstance(at.data, np.ndarray):
        if isinstance(x.data, np.ndarray):
            return e.const(x.data[int(at.data)])
        row = e.slice(x, [int(at.data), *[0] * (x.rank - 1)], (1, *x.shape[1:]))
        return e.reshape(row, x.shape[1:])
    return e.op("GATHER", [x, at], x.shape[1:], x.dtype, GatherOptions(0, 0))


def _stacked(e: Emitter, stack: Any, y: Any, at: Value) -> Any:
    if isinstance(stack, Complex):
        return jax.tree.map(lambda a, b: _stacked(e, a, b, at), stack, in_parts(y))
    zeros = [e.const(0, np.int32)] * y.rank
    inputs = [stack, e.reshape(y, (1, *y.shape)), starts_of(e, [at, *zeros])]
    return e.op("DYNAMIC_UPDATE_SLICE", inputs, stack.shape, stack.dtype)


def _call(e: Emitter, *inputs: Value, **params: Any) -> list[Value]:
    """What JAX calls with its derivatives, or compiles at once: its content."""
    named = (params.get(name) for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"))
    return run(e, next(p for p in named if p is not None), inputs)


_CALLS = (
    "jit", "pjit", "closed_call", "core_call", "remat2", "remat", "checkpoint", "custom_jvp_call",
    "custom_vjp_call", "custom_vjp_call_jaxpr", "composite",
)  # fmt: skip


def _runs(name: str, operators: str, lower: Lower, condition: str = "") -> Primitive:
    return Primitive(name, operators, lower, condition, calls=True)


PRIMITIVES = (
    _runs("cond", "IF", _cond, "more than two branches: one IF in the other"),
    _runs("platform_index", "none: the branch for any platform", _platform),
    _runs("while", "WHILE", _while, "shapes stay as they are"),
    _runs("scan", "WHILE, GATHER", _scan, "at most 8 small steps are written one by one"),
    *(_runs(name, "none: its content", _call) for name in _CALLS),
)
