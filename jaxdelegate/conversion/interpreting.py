"""Walks a jaxpr: constants are computed, everything else becomes operators by a table."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from jaxdelegate.conversion.emitter import Emitter
from jaxdelegate.conversion.graph import Complex, Value, constant, distinct, in_parts

# (emitter, *inputs, **the primitive's parameters) -> a Value, or several
Lower = Callable[..., Any]

_LAZY = frozenset(("tflite_model", "broadcast_in_dim", "iota", "copy", "stop_gradient"))
_MAX_FOLDED = 1 << 20  # bytes; and
_MAX_GROWTH = 4  # times the bytes of the inputs
_RANDOM = "create random numbers from a constant key, or pass them as an input"
_REMEDIES = {
    "random_": _RANDOM,
    "threefry": _RANDOM,
    "rng_": _RANDOM,
    "reduce_window": "use lax.add, lax.max or lax.min as its computation",
    "reduce": "use sum, max, min, prod, all or any, or compute it outside",
    "callback": "compute it outside of the function, and pass the result as an input",
    "": "write it with the primitives of docs/from_jax.md, or compute it outside",
}


@dataclasses.dataclass(frozen=True)
class Primitive:
    """What one of JAX's primitives becomes.

    `operators` and `condition` are for people: docs/from_jax.md is generated from them.
    """

    name: str
    operators: str
    lower: Lower
    condition: str = ""
    of_complex: Lower | None = None  # its lowering if an input is in parts; None: it has none
    calls: bool = False  # it runs jaxprs on inputs of any kind


def each_part(lower: Lower) -> Lower:
    """A movement of complex arrays and keys: it moves their parts."""

    def of_complex(e: Emitter, *inputs: Any, **params: Any) -> Any:
        kind = type(next(x for x in inputs if isinstance(x, Complex)))
        re, im = (lower(e, *(getattr(x, p, x) for x in inputs), **params) for p in ("re", "im"))
        return list(map(kind, re, im)) if isinstance(re, list) else kind(re, im)

    return of_complex


def by(function: Callable[..., Any]) -> Lower:
    """A primitive as a function of JAX, of its inputs and parameters."""

    def lower(e: Emitter, *inputs: Any, **params: Any) -> Any:
        return write(e, functools.partial(function, **params), *inputs)

    return lower


def write(e: Emitter, function: Callable[..., Any], *inputs: Any) -> Any:
    """Operators for a function of JAX, as a part of the primitive that is being written."""
    leaves, tree = jax.tree.flatten(inputs)
    is_wide = any(v.dtype.itemsize == 8 for v in leaves) or jax.config.jax_enable_x64  # type: ignore[attr-defined]
    promotions = jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard")
    with promotions[0], promotions[1], jax.enable_x64(is_wide):
        shapes = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in leaves]  # type: ignore[no-untyped-call]
        trace = jax.make_jaxpr(function, return_shape=True)
        jaxpr, result = trace(*jax.tree.unflatten(tree, shapes))
        with e.as_own():
            return jax.tree.unflatten(jax.tree.structure(result), run(e, jaxpr, leaves))


def run(
    e: Emitter, jaxpr: Any, inputs: Iterable[Any], consts: Iterable[Value] | None = None
) -> list[Any]:
    """The outputs of a jaxpr for these values; its constants may have names."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    if consts is None:
        consts = map(constant, getattr(jaxpr, "consts", ()))
    known = dict(zip((*inner.constvars, *inner.invars), (*consts, *inputs), strict=True))

    def read(atom: Any) -> Any:
        return _literal(atom) if isinstance(atom, core.Literal) else known[atom]

    for eqn in inner.eqns:
        with e.at(eqn):
            results = _equation(e, eqn, [read(v) for v in eqn.invars])
        known.update(zip(eqn.outvars, results, strict=True))
    return [read(v) for v in inner.outvars]


def _literal(atom: Any) -> Value:
    dtype = atom.aval.dtype  # the value may be a number of Python
    return constant(np.asarray(atom.val, dtype) if isinstance(dtype, np.dtype) else atom.val)


def _equation(e: Emitter, eqn: Any, inputs: list[Any]) -> list[Any]:
    name = eqn.primitive.name
    rule = e.table.get(name)
    folded = None if rule is not None and rule.calls else _folded(eqn, inputs, rule)
    if folded is not None:
        return folded
    if rule is None:
        remedy = next(r for part, r in _REMEDIES.items() if part in name)
        e.refuse("no operator of TFLite computes it", remedy)
    results = _lowered(e, rule, inputs, eqn.params)
    return results if isinstance(results, list) else [results]


def _lowered(e: Emitter, rule: Primitive, inputs: list[Any], params: Any) -> Any:
    if rule.calls:
        return rule.lower(e, *inputs, **params)
    inputs = list(map(in_parts, inputs))
    if not any(isinstance(x, Complex) for x in inputs):
        return rule.lower(e, *inputs, **params)
    if rule.of_complex is None:
        e.refuse("it is not written for complex arrays", "compute with their parts")
    return rule.of_complex(e, *inputs, **params)


def _folded(eqn: Any, inputs: Sequence[Any], rule: Primitive | None) -> list[Any] | None:
    """The results of constants; None if it must be an operator."""
    if eqn.effects or eqn.primitive.name in _LAZY or not (inputs or rule):
        return None
    if not all(isinstance(v, Value) and v.is_constant for v in inputs):
        return None
    outputs = [v.aval for v in eqn.outvars]
    out = sum(a.size * getattr(a.dtype, "itemsize", 8) for a in outputs)
    is_complex = any(getattr(a.dtype, "kind", "") == "c" for a in outputs)
    if is_complex or out > max(_MAX_FOLDED, _MAX_GROWTH * sum(map(_nbytes, inputs))):
        return None
    with jax.ensure_compile_time_eval(), jax.default_device(jax.local_devices(backend="cpu")[0]):
        results = eqn.primitive.bind(*map(_array, inputs, eqn.invars), **eqn.params)
    return [constant(r) for r in (results if eqn.primitive.multiple_results else [results])]


def _nbytes(v: Value) -> int:
    return int(distinct(v.data).nbytes) if isinstance(v.data, np.ndarray) else 64


def _array(v: Value, atom: Any) -> Any:
    if not isinstance(v.data, np.ndarray):
        return v.data
    return jax.numpy.asarray(v.data, atom.aval.dtype)
