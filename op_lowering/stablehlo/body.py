"""The bodies of StableHLO operators: functions of scalars that other subgraphs hold.

A body is traced to find out what it computes. For one that adds, multiplies or compares its two
arguments, lax has a function (`Fold`); any other is applied element by element.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from jaxdelegate.op_lowering.common.pointwise import BOOL
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.op_lowering.spec import Specs, TensorSpec
from jaxdelegate.op_lowering.stablehlo.elementwise import ELEMENTS

_Dtypes = Sequence[np.dtype]
_Arrays = tuple[jax.Array, ...]


def _scalars(dtypes: _Dtypes) -> Specs:
    return tuple(TensorSpec(f"argument {i}", (), dtype) for i, dtype in enumerate(dtypes))


def why_not_body(
    context: LoweringContext, index: int, arguments: _Dtypes, results: _Dtypes
) -> str | None:
    """A reason unless the subgraph maps scalars of these dtypes to scalars of those."""
    if context.subgraphs is None:
        return "the delegate has no access to the subgraph of its body"
    if not set(arguments) <= ELEMENTS:
        return f"a body over {', '.join(map(str, arguments))} is not lowered"
    try:
        reason = context.why_not_subgraph(index, _scalars(arguments))
        if reason is not None:
            return f"its body: {reason}"
        avals = Body.of(context, index, arguments).closed.out_avals
    except (TypeError, ValueError, LookupError, RuntimeError) as error:
        # The file may refer to a subgraph with another purpose.
        return (
            f"its body, subgraph {index}, does not take {', '.join(map(str, arguments))}: {error}"
        )
    if [(aval.shape, aval.dtype) for aval in avals] != [((), dtype) for dtype in results]:
        types = ", ".join(f"{aval.dtype} {list(aval.shape)}" for aval in avals)
        return f"its body gives {types}, not scalars of {', '.join(map(str, results))}"
    return None


@dataclasses.dataclass(frozen=True)
class Body:
    """A traced body: a function of scalars."""

    closed: Any  # core.ClosedJaxpr

    @classmethod
    def of(cls, context: LoweringContext, index: int, arguments: _Dtypes) -> Self:
        with jax.enable_x64(True):
            scalars = [np.zeros((), dtype) for dtype in arguments]
            # Bodies of XLA's reductions cannot read values from outside.
            body = context.lower_subgraph(index, _scalars(arguments), is_closed=True)
            return cls(jax.make_jaxpr(body)(*scalars))

    def scalars(self, *arguments: Any) -> list[jax.Array]:
        return list(core.jaxpr_as_fun(self.closed)(*map(jnp.asarray, arguments)))

    def elements(self, *arguments: Any) -> _Arrays:
        shape = arguments[0].shape
        flat = (jnp.asarray(a).reshape(-1) for a in arguments)
        return tuple(y.reshape(shape) for y in jax.vmap(self.scalars)(*flat))

    def passes_on(self, position: int, argument: int) -> bool:
        jaxpr = self.closed.jaxpr
        return jaxpr.outvars[position] is jaxpr.invars[argument]

    def fold(self, position: int, wide: np.dtype) -> "Fold | None":
        """The fold that computes result i of arguments i and n + i, for n results.

        Half precision is computed with conversions to `wide` and back, which do not count.
        """
        jaxpr, makers = self.closed.jaxpr, self._makers()
        n, y = len(jaxpr.outvars), jaxpr.outvars[position]
        dtypes = (y.aval.dtype, wide)
        eqn = _maker(y, makers, *dtypes)
        if eqn is None or eqn.primitive.name not in FOLDS:
            return None
        sources = [_source(v, makers, *dtypes) for v in eqn.invars]
        pair = [jaxpr.invars[position], jaxpr.invars[n + position]]
        same = all(any(v is s for s in sources) for v in pair)
        if not same or y.aval.dtype != pair[0].aval.dtype:
            return None
        name = eqn.primitive.name
        return FOLDS[_OF_BOOLEANS.get(name, name) if y.aval.dtype == BOOL else name]

    def _makers(self) -> dict[Any, Any]:
        return {var: eqn for eqn in self.closed.jaxpr.eqns for var in eqn.outvars}

    def order(self) -> "Order | None":
        """A comparator's order, if it compares one key on both sides: key(a) < key(b)."""
        jaxpr = self.closed.jaxpr
        makers = self._makers()
        eqn = _maker(jaxpr.outvars[0], makers)
        if eqn is None or eqn.primitive.name not in _ASCENDING:
            return None
        numbers: dict[str, int] = {}
        names, mirrored = (_names(jaxpr, numbers, swapped=flag) for flag in (False, True))
        left, right = (_name(v, names) for v in eqn.invars)
        sides = {i % 2 for i in left.arguments}
        if right != _name(eqn.invars[0], mirrored) or len(sides) != 1:
            return None
        key = self.closed.replace(jaxpr=jaxpr.replace(outvars=[_source(eqn.invars[0], makers)]))
        ascending = _ASCENDING[eqn.primitive.name] == (sides == {0})
        return Order(Body(key), ascending)


_ASCENDING = {"lt": True, "le": True, "gt": False, "ge": False}


def _source(var: Any, makers: dict[Any, Any], *dtypes: np.dtype) -> Any:
    """The origin of a scalar, before reshapes and conversions between these dtypes."""
    while not isinstance(var, core.Literal) and var in makers:
        eqn = makers[var]
        passes = eqn.primitive.name == "reshape" or (
            eqn.primitive.name == "convert_element_type"
            and {eqn.invars[0].aval.dtype, var.aval.dtype} <= set(dtypes)
        )
        if not passes:
            break
        var = eqn.invars[0]
    return var


def _maker(var: Any, makers: dict[Any, Any], *dtypes: np.dtype) -> Any:
    """The equation of a scalar; None for an argument or a constant."""
    source = _source(var, makers, *dtypes)
    return None if isinstance(source, core.Literal) else makers.get(source)


# ---- folds


@dataclasses.dataclass(frozen=True)
class Fold:
    """A binary function with an identity, and the scatter that applies it."""

    function: Callable[[Any, Any], jax.Array]
    identity: Callable[[np.dtype], Any]
    scatter: Callable[..., jax.Array] | None  # None: lax has none for this dtype

    def start(self, dtype: np.dtype) -> np.ndarray:
        return np.asarray(self.identity(dtype)).astype(dtype)


def _extreme(*, lowest: bool) -> Callable[[np.dtype], Any]:
    def identity(dtype: np.dtype) -> Any:
        if dtype == BOOL:
            return not lowest
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            return limits.min if lowest else limits.max
        bound = -np.inf if lowest else np.inf
        return complex(bound, bound) if dtype.kind == "c" else bound

    return identity


FOLDS: dict[str, Fold] = {
    "add": Fold(lax.add, lambda _dtype: 0, lax.scatter_add),
    "mul": Fold(lax.mul, lambda _dtype: 1, lax.scatter_mul),
    "max": Fold(lax.max, _extreme(lowest=True), lax.scatter_max),
    "min": Fold(lax.min, _extreme(lowest=False), lax.scatter_min),
    "or": Fold(lax.bitwise_or, lambda _dtype: 0, None),
    "and": Fold(lax.bitwise_and, lambda _dtype: -1, None),
}
_OF_BOOLEANS = {"or": "max", "and": "min"}


# ---- orders


@dataclasses.dataclass(frozen=True)
class Order:
    """The order of a sort: by a key of one element of each operand."""

    key: Body  # takes the comparator's arguments; both sides are the same element
    ascending: bool

    @property
    def operand(self) -> int | None:
        """None: the key is computed."""
        n = len(self.key.closed.jaxpr.invars)
        return next((i // 2 for i in range(n) if self.key.passes_on(0, i)), None)

    def keys(self, operands: Sequence[Any]) -> jax.Array:
        (key,) = self.key.elements(*(x for x in operands for _ in range(2)))
        return key


@dataclasses.dataclass(frozen=True)
class _Name:
    """What a variable computes, as text, and the arguments that it depends on."""

    text: str
    arguments: frozenset[int] = frozenset()


def _names(jaxpr: Any, numbers: dict[str, int], *, swapped: bool) -> dict[Any, _Name]:
    """The name of each variable: equal expressions get equal numbers from the shared `numbers`.

    `swapped` exchanges the arguments of the two sides, which alternate.
    """
    names = {v: _Name(f"constant {i}") for i, v in enumerate(jaxpr.constvars)}
    for i, v in enumerate(jaxpr.invars):
        argument = i ^ int(swapped)
        names[v] = _Name(f"argument {argument}", frozenset([argument]))
    for eqn in jaxpr.eqns:
        sources = [_name(v, names) for v in eqn.invars]
        text = f"{eqn.primitive.name} {eqn.params} {[s.text for s in sources]}"
        number = numbers.setdefault(text, len(numbers))
        arguments = frozenset[int]().union(*(s.arguments for s in sources))
        names |= {v: _Name(f"{number}.{i}", arguments) for i, v in enumerate(eqn.outvars)}
    return names


def _name(atom: Any, names: dict[Any, _Name]) -> _Name:
    if isinstance(atom, core.Literal):
        return _Name(f"literal {atom.aval} {atom.val!r}")
    return names[atom]
