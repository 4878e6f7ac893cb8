"""Functions of one number that TFLite has no operator for, as arithmetic with others."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.conversion.emitter import F32, Emitter
from jaxdelegate.conversion.graph import Value
from jaxdelegate.conversion.interpreting import Primitive, write

# erf_inv(x) / x as polynomials, highest powers first (Giles 2012): of w - 2.5 and of sqrt(w) - 3,
# where w = -log(1 - x * x) is below and above 5.
_ERF_INV_NEAR = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
    -0.00125372503, -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip
_ERF_INV_FAR = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
    -0.0076224613, 0.00943887047, 1.00167406, 2.83297682,
)  # fmt: skip
_ERF_LIMIT = 4.0  # beyond it erf is 1 in float32


def _expm1(x: Any) -> Any:
    """Near 0 as 2 tanh(x/2) / (1 - tanh(x/2)), which does not cancel."""
    t = jnp.tanh(x * 0.5)
    return jnp.where(jnp.abs(x) < 0.5, (t + t) / (1 - t), jnp.exp(x) - 1)


def _log1p(x: Any) -> Any:
    """Near 0 with the rounding of 1 + x divided out (Kahan)."""
    u = x + 1
    log, rest = jnp.log(u), u - 1
    near = jnp.where(rest == 0, x, log * x / jnp.where(rest == 0, u, rest))
    return jnp.where(jnp.abs(x) < 0.5, near, log)


def _asinh(x: Any) -> Any:
    square = jnp.square(x)
    return jnp.sign(x) * _log1p(jnp.abs(x) + square / (jnp.sqrt(square + 1) + 1))


def _acosh(x: Any) -> Any:
    less = x - 1
    return _log1p(less + jnp.sqrt(less * (x + 1)))


def _cosine_of(x: Any) -> Any:
    """The cosine of the angle whose sine is x."""
    return jnp.sqrt((1 - x) * (x + 1))


@functools.cache
def _erf_coefficients() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """P and Q of erf(x) = x * P(x*x) / Q(x*x), by least squares; highest powers first."""
    z = (0.5 - 0.5 * np.cos(np.linspace(0, np.pi, 2001)[1:])) * _ERF_LIMIT**2
    target = np.array([math.erf(math.sqrt(v)) / math.sqrt(v) for v in z])
    weight, p = np.ones_like(z), np.empty(0)
    for _ in range(8):  # linearized: the last denominator is the weight of the next
        powers = np.stack([z**k for k in range(7)], 1)
        below = np.stack([z**k for k in range(1, 6)], 1)
        rows = np.concatenate([powers, -target[:, None] * below], 1) * weight[:, None]
        scale = np.linalg.norm(rows, axis=0)
        p = np.linalg.lstsq(rows / scale, target * weight, rcond=None)[0] / scale
        weight = 1 / (1 + below @ p[7:])
    return tuple(p[:7][::-1]), (*p[7:][::-1], 1.0)


def _polynomial(z: Any, coefficients: tuple[float, ...]) -> Any:
    result = z * coefficients[0] + coefficients[1]
    for c in coefficients[2:]:
        result = z * result + c
    return result


def erf(x: Any) -> Any:
    above, below = _erf_coefficients()
    x = jnp.clip(x, -_ERF_LIMIT, _ERF_LIMIT)
    z = jnp.square(x)
    return x * (_polynomial(z, above) / _polynomial(z, below))


def _erf_inv(x: Any) -> Any:
    w = -_log1p(-jnp.square(x))
    far = jnp.sqrt(jnp.clip(w, 5, 100)) - 3
    factor = jnp.where(w < 5, _polynomial(w - 2.5, _ERF_INV_NEAR), _polynomial(far, _ERF_INV_FAR))
    return jnp.where(jnp.abs(x) == 1, x * math.inf, x * factor)


def _only_of_floats(lower: Callable[[Emitter, Value], Any]) -> Callable[..., Any]:
    def checked(e: Emitter, x: Value, **_: Any) -> Any:
        if x.dtype != F32:
            e.refuse(f"it is not written for {x.dtype.name}", "convert its input to float32")
        return lower(e, x)

    return checked


def _function(name: str, operators: str, function: Callable[[Any], Any]) -> Primitive:
    lower = _only_of_floats(lambda e, x: write(e, function, x))
    return Primitive(name, operators, lower, "float32")


def _late(name: str, operators: str) -> Primitive:
    """An operator that no file has: the clean-up makes it a part of GELU, or arithmetic."""
    lower = _only_of_floats(lambda e, x: e.compute(name.upper(), x))
    return Primitive(name, operators, lower, "float32")


PRIMITIVES = (
    _function("exp2", "EXP, MUL", lambda x: jnp.exp(x * math.log(2))),
    _function("expm1", "TANH, EXP, SELECT_V2", _expm1),
    _function("log1p", "LOG, SELECT_V2", _log1p),
    _function("sinh", "TANH, EXP, SELECT_V2", lambda x: (_expm1(x) - _expm1(-x)) * 0.5),
    _function("cosh", "EXP, ADD", lambda x: (jnp.exp(x) + jnp.exp(-x)) * 0.5),
    _function("tan", "SIN, COS, DIV", lambda x: jnp.sin(x) / jnp.cos(x)),
    _function("asin", "ATAN2, SQRT", lambda x: lax.atan2(x, _cosine_of(x))),
    _function("acos", "ATAN2, SQRT", lambda x: lax.atan2(_cosine_of(x), x)),
    _function("atan", "ATAN2", lambda x: lax.atan2(x, jnp.ones_like(x))),
    _function("asinh", "LOG, SQRT, SELECT_V2", _asinh),
    _function("acosh", "LOG, SQRT, SELECT_V2", _acosh),
    _function("atanh", "LOG, SELECT_V2", lambda x: (_log1p(x) - _log1p(-x)) * 0.5),
    _function("cbrt", "POW, SIGN, MUL", lambda x: jnp.sign(x) * jnp.abs(x) ** (1 / 3)),
    _function("erf_inv", "LOG, SQRT, MUL, ADD, SELECT_V2", _erf_inv),
    _late("erf", "MUL, ADD, DIV: a rational function"),
    _late("erfc", "SUB, as erf: to 1e-7 absolutely"),
)
