"""Walks a jaxpr: constants are computed, everything else becomes operators."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from jaxdelegate.conversion import (
    control_flow,
    elementwise,
    indexing,
    loaded,
    mathematics,
    movement,
    products,
    random_keys,
    windows,
)
from jaxdelegate.conversion.emitter import Emitter
from jaxdelegate.conversion.errors_at import user_frame
from jaxdelegate.conversion.graph import Complex, Value, constant, distinct, in_parts
from jaxdelegate.conversion.table import Primitive

_MODULES = (
    elementwise, mathematics, movement, products, windows, indexing, control_flow, loaded,
    random_keys,
)  # fmt: skip
PRIMITIVES = {p.name: p for module in _MODULES for p in module.PRIMITIVES}
_RUNS = frozenset(p.name for p in control_flow.PRIMITIVES)
_LAZY = frozenset(("tflite_model", "broadcast_in_dim", "iota", "copy", "stop_gradient"))
_MAX_FOLDED = 1 << 20  # bytes; and
_MAX_GROWTH = 4  # times the bytes of the inputs
_REMEDIES = {
    "random_": "create random numbers from a constant key, or pass them as an input",
    "threefry": "create random numbers from a constant key, or pass them as an input",
    "rng_": "create random numbers from a constant key, or pass them as an input",
    "callback": "compute it outside of the function, and pass the result as an input",
}
_DEFAULT_REMEDY = "write it with the primitives of docs/from_jax.md, or compute it outside"


def run(e: Emitter, jaxpr: Any, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a closed jaxpr for these values."""
    consts = getattr(jaxpr, "consts", [])
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    known = {v: constant(c) for v, c in zip(inner.constvars, consts, strict=True)}
    known.update(zip(inner.invars, inputs, strict=True))

    def read(atom: Any) -> Any:
        return _literal(atom) if isinstance(atom, core.Literal) else known[atom]

    for eqn in inner.eqns:
        results = _equation(e, eqn, [read(v) for v in eqn.invars])
        known.update(zip(eqn.outvars, results, strict=True))
    return [read(v) for v in inner.outvars]


def _literal(atom: Any) -> Value:
    dtype = atom.aval.dtype  # the value may be a number of Python
    return constant(np.asarray(atom.val, dtype) if isinstance(dtype, np.dtype) else atom.val)


def _equation(e: Emitter, eqn: Any, inputs: list[Any]) -> list[Any]:
    before = e.eqn, e.scope, e.frame
    e.eqn, e.frame = eqn, user_frame(eqn) or e.frame
    e.scope = _scope(eqn, e.frame) or e.scope
    name = eqn.primitive.name
    try:
        folded = _folded(eqn, inputs)
        if folded is not None:
            return folded
        rule = PRIMITIVES.get(name)
        if rule is None:
            remedy = next((r for part, r in _REMEDIES.items() if part in name), _DEFAULT_REMEDY)
            e.refuse("no operator of TFLite computes it", remedy)
        if name not in _RUNS:
            inputs = [in_parts(v) for v in inputs]
        results = _lowered(e, eqn, rule, inputs)
        return results if isinstance(results, list) else [results]
    finally:
        e.eqn, e.scope, e.frame = before


def _scope(eqn: Any, frame: Any) -> str:
    stack = str(eqn.source_info.name_stack)
    function = "" if frame is None else frame.function_name.rsplit(".", 1)[-1].strip("<>")
    return "/".join(part for part in (stack, function) if part)


def _lowered(e: Emitter, eqn: Any, rule: Primitive, inputs: list[Any]) -> Any:
    params = dict(eqn.params)
    if rule.name in _RUNS:
        params["run"] = run
    if not rule.parts or not any(isinstance(x, Complex) for x in inputs):
        _check_complex(e, rule, inputs)
        return rule.lower(e, *inputs, **params)
    parts = [[getattr(x, p) if isinstance(x, Complex) else x for x in inputs] for p in ("re", "im")]
    re, im = (rule.lower(e, *part, **params) for part in parts)
    kind = type(next(x for x in inputs if isinstance(x, Complex)))
    return list(map(kind, re, im)) if isinstance(re, list) else kind(re, im)


_OF_COMPLEX = frozenset(
    ("add", "add_any", "sub", "mul", "neg", "abs", "div", "select_n", "convert_element_type",
     "real", "imag", "conj", "fft", "copy", "stop_gradient", *_RUNS,
     *(p.name for p in random_keys.PRIMITIVES))
)  # fmt: skip


def _check_complex(e: Emitter, rule: Primitive, inputs: list[Any]) -> None:
    if rule.name not in _OF_COMPLEX and any(isinstance(x, Complex) for x in inputs):
        e.refuse("it is not written for complex arrays", "compute with their parts")


def _folded(eqn: Any, inputs: list[Any]) -> list[Any] | None:
    """The results of constants; None if it must be an operator."""
    if eqn.effects or eqn.primitive.name in _LAZY | _RUNS:
        return None
    if not inputs and eqn.primitive.name not in PRIMITIVES:
        return None
    if not all(isinstance(v, Value) and v.is_constant for v in inputs):
        return None
    out = sum(v.aval.size * getattr(v.aval.dtype, "itemsize", 8) for v in eqn.outvars)
    given = sum(_nbytes(v) for v in inputs)
    if out > max(_MAX_FOLDED, _MAX_GROWTH * given):
        return None
    if any(getattr(v.aval.dtype, "kind", "") == "c" for v in eqn.outvars):
        return None
    with jax.ensure_compile_time_eval(), jax.default_device(_cpu()):
        results = eqn.primitive.bind(*map(_array, inputs, eqn.invars), **eqn.params)
    return [constant(r) for r in (results if eqn.primitive.multiple_results else [results])]


def _cpu() -> Any:
    return jax.local_devices(backend="cpu")[0]


def _nbytes(v: Value) -> int:
    return int(distinct(v.data).nbytes) if isinstance(v.data, np.ndarray) else 64


def _array(v: Value, atom: Any) -> Any:
    if not isinstance(v.data, np.ndarray):
        return v.data
    return jax.numpy.asarray(v.data, atom.aval.dtype)
