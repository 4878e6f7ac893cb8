"""Derivatives of operator cases: JAX's, in forward and reverse mode, against finite differences.

JAX differentiates the lowering in float32, as `Model.function` does. Finite differences use the
same rule lowered in float64, along one random direction of all float inputs. With a step of 1e-6 a
central difference is off by about 1e-10 of the values, and only an unlucky direction meets a kink.
For a rule that always computes in float32, the difference takes five points in float32: its error
is the step's fourth power times the fifth derivative, plus 2**-23 / step of the values.

JAX also differentiates by a few inputs one at a time, as when only some weights are trained: some
of its primitives can be transposed by all of their arguments, but not by one.

For a difference, constants of the file move too. This finds a rule that computes with a constant
while it is lowered, and so has no derivative by it.
"""

import dataclasses
import zlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.rule import LoweringContext, Op, OpRule
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.testing.case import COMPILER_OPTIONS, Case

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_COMPLEX: dict[np.dtype, np.dtype] = {
    _FLOAT32: np.dtype(np.complex64),
    _FLOAT64: np.dtype(np.complex128),
}
_NARROW = (_FLOAT32, _COMPLEX[_FLOAT32])
_MOST = 1e6  # of outputs: larger ones are left out
_LEAST = 0.02  # roots and other functions have a kink at zero
_LARGEST = 1e3  # of inputs; larger ones, which probe the ends of ranges, are redrawn
_APART = 3  # up to this many float inputs JAX also differentiates by each one alone
# By the dtype of differences: the points in steps with their weights; the step; the tolerance as a
# share of the largest number: 2**-23 for each of some hundred roundings in JAX's derivative, plus
# the error of float32 differences.
_DIFFERENCES: dict[np.dtype, tuple[dict[int, float], float, float]] = {
    _FLOAT64: ({1: 1 / 2, -1: -1 / 2}, 1e-6, 2e-5),
    _FLOAT32: ({1: 2 / 3, -1: -2 / 3, 2: -1 / 12, -2: 1 / 12}, 2e-2, 2e-4),
}

Values = Mapping[str, Any]  # float inputs by their position


@dataclasses.dataclass(frozen=True, eq=False)
class Point:
    """A case, and the point and direction of its derivative by the float inputs' positions."""

    case: Case
    rule: OpRule
    context: LoweringContext
    values: Mapping[str, np.ndarray]
    direction: Mapping[str, np.ndarray]

    @classmethod
    def of(
        cls, case: Case, rule: OpRule, context: LoweringContext, fixed: Container[int] = ()
    ) -> "Point | None":
        """The point of a case; None if it has no float input with elements.

        Inputs at the positions `fixed` keep their values, and there is no derivative by them.
        """
        random = np.random.default_rng(zlib.crc32(str(case).encode()))
        floats = {
            _key(i): _regular(a.value, random)
            for i, a in enumerate(case.inputs)
            if i not in fixed and a is not None and a.value.dtype in _NARROW and a.value.size
        }
        direction = {i: _drawn(a, 1, random) for i, a in floats.items()}
        context = dataclasses.replace(context, op_version=case.version)
        return cls(case, rule, context, floats, direction) if floats else None

    @property
    def reason(self) -> str | None:
        """Why the rule refuses the case; None if it accepts it."""
        return self.rule.reason(self.case.op(self.context))

    @property
    def has_derivative(self) -> bool:
        """Whether the rule accepts the case, and each float output has the inputs' width."""
        import jax

        if self.reason is not None:
            return False
        with jax.enable_x64(True):
            outputs = jax.eval_shape(self.function(_FLOAT32), self.at(_FLOAT32, 0))
        return bool(outputs) and all(np.dtype(y.dtype) in _NARROW for y in outputs)

    def function(self, dtype: np.dtype, step: float = 0) -> Callable[[Values], list[Any]]:
        """The lowering in a dtype, of the float inputs; the file's constants have moved a step."""
        options, (inputs, outputs) = self.case.op_options, self.case.read_specs()
        at = self.at(dtype, step)
        moved = tuple(
            spec and _retyped(spec, dtype, at.get(_key(i), spec.const))
            for i, spec in enumerate(inputs)
        )
        lowered = self.rule.lower(
            Op(self.context, options, moved, tuple(_retyped(spec, dtype, None) for spec in outputs))
        )
        return lambda values: _inexact(lowered(*self._arguments(values)))

    def at(self, dtype: np.dtype, step: float) -> dict[str, np.ndarray]:
        moved = {i: x + step * self.direction[i] for i, x in self.values.items()}
        return {i: _in(x, dtype) for i, x in moved.items()}

    @property
    def ends(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """The float inputs, and the direction, in float32."""
        direction = {i: _in(v, _FLOAT32) for i, v in self.direction.items()}
        return self.at(_FLOAT32, 0), direction

    def _arguments(self, values: Values) -> Iterable[Any]:
        return (values.get(_key(i), array) for i, array in enumerate(self.case.arrays()))


def _key(position: int) -> str:
    return f"{position:02}"  # JAX sorts the keys of dictionaries


def _drawn(like: np.ndarray, size: float, random: np.random.Generator) -> np.ndarray:
    values: np.ndarray = random.uniform(-size, size, like.shape)
    return (
        values + 1j * random.uniform(-size, size, like.shape) if like.dtype.kind == "c" else values
    )


def _regular(x: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Finite values away from kinks."""
    is_usual = np.isfinite(x) & (np.abs(x) < _LARGEST)
    values = np.where(is_usual, x, _drawn(x, 2, random)) + _drawn(x, 1e-3, random)
    values = np.asarray(values)
    values = np.where(np.abs(values) < _LEAST, values + np.copysign(_LEAST, values.real), values)
    # Rounded, so that differences are taken at JAX's point: near a pole the slopes would differ.
    return _in(_in(values, _FLOAT32), _FLOAT64)


def _in(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """A float array, real or complex, in the precision of a real dtype."""
    result: np.ndarray = x.astype(_COMPLEX[dtype] if x.dtype.kind == "c" else dtype)
    return result


def _retyped(spec: TensorSpec, dtype: np.dtype, const: np.ndarray | None) -> TensorSpec:
    is_const = spec.const is not None
    if spec.dtype in _NARROW:
        dtype = _COMPLEX[dtype] if spec.dtype.kind == "c" else dtype
    else:
        dtype = spec.dtype
    return dataclasses.replace(spec, dtype=dtype, const=const if is_const else None)


def _inexact(results: Iterable[Any]) -> list[Any]:
    return [y for y in results if np.dtype(y.dtype).kind in "fc" and y.size]


@dataclasses.dataclass(frozen=True, eq=False)
class Derived:
    """JAX's derivatives at a point and the finite differences, both traced."""

    point: Point
    jaxpr: Any  # of values and directions: outputs, forward derivatives, reverse derivatives
    differences: Any
    dtype: np.dtype  # of the differences

    @classmethod
    def of(cls, point: Point) -> "Derived":
        """The derivatives at a point that has them."""
        import jax

        jaxpr = jax.make_jaxpr(_derivatives(point))(*point.ends)
        differences = _traced_differences(point, _FLOAT64)
        dtype: np.dtype = _FLOAT64
        if differences is None or "f32[" in str(differences) or "c64[" in str(differences):
            dtype, differences = _FLOAT32, _traced_differences(point, _FLOAT32)
        return cls(point, jaxpr, differences, dtype)

    @property
    def text(self) -> str:
        return str(self.jaxpr)

    @property
    def slopes(self) -> list[np.ndarray]:
        """The forward derivatives of all outputs."""
        (results,) = _run([self.jaxpr], [self.point.ends])
        count = len(results) - len(self.point.values)
        return results[count // 2 : count]

    def faults(self, results: Sequence[np.ndarray], places: Sequence[np.ndarray]) -> list[str]:
        """Errors in the flat results of the traced functions: `results` and `places`."""
        count = len(self.jaxpr.out_avals) - len(self.point.values)
        y, forward, reverse = results[: count // 2], results[count // 2 : count], results[count:]
        factors, step, tolerance = _DIFFERENCES[self.dtype]
        found, exact = [], []
        for i, (value, slope) in enumerate(zip(y, forward, strict=True)):
            terms = zip(factors.values(), places[i :: len(y)], strict=True)
            moved = [w * at.astype(_wide(at.dtype)) for w, at in terms]
            with np.errstate(invalid="ignore"):  # infinity minus infinity
                difference = np.sum(moved, axis=0) / step
            known = np.isfinite(difference) & (np.abs(value) < _MOST)  # not NaN
            exact.append(np.where(known, difference, 0))
            size = _largest(difference[known]) + _largest(value[known])
            error = _largest((slope - difference)[known])
            if not error <= tolerance * size:
                found.append(f"output {i}: forward off by {error:.3g} of {size:.3g}")
        return found + self._reverse_faults(y, exact, reverse, tolerance)

    def _reverse_faults(self, y: Any, exact: Any, reverse: Any, tolerance: float) -> list[str]:
        """Compare both modes by the inner product with the direction."""
        if not all(np.isfinite(value).all() for value in y):
            return []
        ws = weights(y)
        terms = [(w * d).real for w, d in zip(ws, exact, strict=True)]
        slopes = dict(zip(self.point.values, reverse, strict=True))
        others = [(slopes[i] * v).real for i, v in self.point.direction.items()]
        want, got = (sum(a.sum() for a in each) for each in (terms, others))
        known = [np.where(np.abs(value) < _MOST, value, 0) for value in y]
        size = sum(np.abs(a).sum() for a in (*terms, *others, *known))
        if abs(got - want) <= tolerance * size:
            return []
        return [f"reverse mode gives {got:.6g}, differences {want:.6g} (of {size:.3g})"]


def _wide(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)


def _largest(x: np.ndarray) -> float:
    return float(np.abs(x).max(initial=0))


def _derivatives(point: Point) -> Callable[..., Any]:
    import jax
    import jax.numpy as jnp

    compute = jax.jit(point.function(_FLOAT32))

    def call(values: Values) -> list[Any]:
        with jax.enable_x64(True):  # for values only, as in `Model.function`
            results: list[Any] = compute(values)
        return results

    def derivatives(values: Values, direction: Values) -> Any:
        y, forward = jax.jvp(call, (values,), (direction,))
        asked = [
            jnp.where(jnp.abs(a) < _MOST, w, 0 * w) for a, w in zip(y, weights(y), strict=True)
        ]
        groups = [[i] for i in values] if len(values) <= _APART else [list(values)]
        return y, forward, {i: s for some in groups for i, s in slopes(values, some, asked).items()}

    def slopes(values: Values, by: Sequence[str], asked: Sequence[Any]) -> dict[str, Any]:
        some = {i: values[i] for i in by}
        found: dict[str, Any] = jax.vjp(lambda s: call({**values, **s}), some)[1](asked)[0]
        return found

    return derivatives


def weights(outputs: Sequence[Any]) -> list[np.ndarray]:
    """The weights of the sum of outputs that reverse mode differentiates."""
    random = np.random.default_rng(1)
    return [
        (random.uniform(0.5, 1, y.shape) * random.choice([-1, 1], y.shape)).astype(y.dtype)
        for y in outputs
    ]


def _traced_differences(point: Point, dtype: np.dtype) -> Any:
    """Outputs at each of the places; None if the rule cannot compute in `dtype`."""
    import jax

    places = _places(point, dtype)

    def everywhere(places: Sequence[Values]) -> list[list[Any]]:
        return [f(values) for f, values in zip(functions, places, strict=True)]

    with jax.enable_x64(True):
        functions = [point.function(dtype, step) for step in _steps(dtype)]
        try:
            return jax.make_jaxpr(everywhere)(places)
        except (TypeError, ValueError):
            if dtype == _FLOAT64:
                return None
            raise


def _steps(dtype: np.dtype) -> list[float]:
    places, step, _ = _DIFFERENCES[dtype]
    return [place * step for place in places]


def _places(point: Point, dtype: np.dtype) -> list[dict[str, np.ndarray]]:
    return [point.at(dtype, step) for step in _steps(dtype)]


def wrong(cases: Sequence[Derived]) -> list[str]:
    """Errors in the derivatives of some cases, computed as one program."""
    derived = _run([d.jaxpr for d in cases], [d.point.ends for d in cases])
    everywhere = _run([d.differences for d in cases], [[_places(d.point, d.dtype)] for d in cases])
    found = []
    for case, results, places in zip(cases, derived, everywhere, strict=True):
        found += [f"{case.point.case}: {fault}" for fault in case.faults(results, places)]
    return found


def _run(jaxprs: Sequence[Any], arguments: Sequence[Any]) -> list[list[np.ndarray]]:
    """The flat results of each traced function, all from one program."""
    import jax
    from jax.extend.core import jaxpr_as_fun

    functions = [jaxpr_as_fun(jaxpr) for jaxpr in jaxprs]

    def program(arguments: Any) -> list[Any]:
        return [f(*a) for f, a in zip(functions, arguments, strict=True)]

    with jax.enable_x64(True):
        flat = [jax.tree.leaves(a) for a in arguments]
        results = jax.jit(program).lower(flat).compile(COMPILER_OPTIONS)(flat)
    return [[np.asarray(y) for y in each] for each in results]
