"""Functions of one number that TFLite has no operator for, as arithmetic with others."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdelegate.conversion.elementwise import choose
from jaxdelegate.conversion.emitter import BOOL, F32, Emitter
from jaxdelegate.conversion.graph import Value
from jaxdelegate.conversion.table import Primitive

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


class _Real:
    """A tensor with the operators of Python; a method's name is that of an operator of TFLite."""

    def __init__(self, e: Emitter, value: Value) -> None:
        self.e, self.value = e, value

    def _with(self, op: str, *inputs: Any, dtype: Any = None) -> "_Real":
        values = [v.value if isinstance(v, _Real) else self.e.like(self.value, v) for v in inputs]
        return _Real(self.e, self.e.compute(op, *values, dtype=dtype))

    def __getattr__(self, name: str) -> Callable[[], "_Real"]:
        return lambda: self._with(name.upper(), self)

    def __add__(self, other: Any) -> "_Real":
        return self._with("ADD", self, other)

    def __sub__(self, other: Any) -> "_Real":
        return self._with("SUB", self, other)

    def __rsub__(self, other: Any) -> "_Real":
        return self._with("SUB", other, self)

    def __mul__(self, other: Any) -> "_Real":
        return self._with("MUL", self, other)

    def __truediv__(self, other: Any) -> "_Real":
        return self._with("DIV", self, other)

    def to(self, op: str, other: Any) -> "_Real":
        return self._with(op, self, other)

    def where(self, op: str, limit: float, yes: "_Real", no: "_Real") -> "_Real":
        """`yes` where a comparison with a limit is true, else `no`."""
        is_true = self._with(op, self, limit, dtype=BOOL)
        return _Real(self.e, choose(self.e, is_true.value, yes.value, no.value))


def _expm1(x: _Real) -> _Real:
    """Near 0 as 2 tanh(x/2) / (1 - tanh(x/2)), which does not cancel."""
    t = (x * 0.5).tanh()
    return x.abs().where("LESS", 0.5, (t + t) / (1 - t), x.exp() - 1)


def _log1p(x: _Real) -> _Real:
    """Near 0 with the rounding of 1 + x divided out (Kahan)."""
    u = x + 1
    log, rest = u.log(), u - 1
    divisor = rest.where("EQUAL", 0, u, rest)
    near = rest.where("EQUAL", 0, x, log * x / divisor)
    return x.abs().where("LESS", 0.5, near, log)


def _asinh(x: _Real) -> _Real:
    more = x.square() / ((x.square() + 1).sqrt() + 1)
    return x.sign() * _log1p(x.abs() + more)


def _acosh(x: _Real) -> _Real:
    less = x - 1
    return _log1p(less + (less * (x + 1)).sqrt())


def _cosine_of(x: _Real) -> _Real:
    """The cosine of the angle whose sine is x."""
    return ((1 - x) * (x + 1)).sqrt()


def _atan(x: _Real) -> _Real:
    one = x.e.broadcast(x.e.like(x.value, 1), x.value.shape)
    return x.to("ATAN2", _Real(x.e, one))


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


def _polynomial(z: _Real, coefficients: tuple[float, ...]) -> _Real:
    result = z * coefficients[0] + coefficients[1]
    for c in coefficients[2:]:
        result = z * result + c
    return result


def _erf(x: _Real) -> _Real:
    above, below = _erf_coefficients()
    x = x.to("MAXIMUM", -_ERF_LIMIT).to("MINIMUM", _ERF_LIMIT)
    z = x.square()
    return x * (_polynomial(z, above) / _polynomial(z, below))


def _erf_inv(x: _Real) -> _Real:
    w = _log1p(x.square().neg()).neg()
    far = w.to("MAXIMUM", 5).to("MINIMUM", 100)
    factor = w.where(
        "LESS", 5, _polynomial(w - 2.5, _ERF_INV_NEAR), _polynomial(far.sqrt() - 3, _ERF_INV_FAR)
    )
    return x.abs().where("EQUAL", 1, x * math.inf, x * factor)


def erf(e: Emitter, x: Value) -> Value:
    return _erf(_Real(e, x)).value


def erfc(e: Emitter, x: Value) -> Value:
    return (1 - _erf(_Real(e, x))).value


def _function(name: str, operators: str, function: Callable[[_Real], _Real]) -> Primitive:
    def lower(e: Emitter, x: Value, **_: Any) -> Value:
        if x.dtype != F32:
            e.refuse(f"it is not written for {x.dtype.name}", "convert its input to float32")
        return function(_Real(e, x)).value

    return Primitive(name, operators, lower, "float32")


PRIMITIVES = (
    _function("exp2", "EXP, MUL", lambda x: (x * math.log(2)).exp()),
    _function("expm1", "TANH, EXP, SELECT_V2", _expm1),
    _function("log1p", "LOG, SELECT_V2", _log1p),
    _function("sinh", "TANH, EXP, SELECT_V2", lambda x: (_expm1(x) - _expm1(x.neg())) * 0.5),
    _function("cosh", "EXP, ADD", lambda x: (x.exp() + x.neg().exp()) * 0.5),
    _function("tan", "SIN, COS, DIV", lambda x: x.sin() / x.cos()),
    _function("asin", "ATAN2, SQRT", lambda x: x.to("ATAN2", _cosine_of(x))),
    _function("acos", "ATAN2, SQRT", lambda x: _cosine_of(x).to("ATAN2", x)),
    _function("atan", "ATAN2", _atan),
    _function("asinh", "LOG, SQRT, SELECT_V2", _asinh),
    _function("acosh", "LOG, SQRT, SELECT_V2", _acosh),
    _function("atanh", "LOG, SELECT_V2", lambda x: (_log1p(x) - _log1p(x.neg())) * 0.5),
    _function("cbrt", "POW, SIGN, MUL", lambda x: x.sign() * x.abs().to("POW", 1 / 3)),
    _function("erf_inv", "LOG, SQRT, MUL, ADD, SELECT_V2", _erf_inv),
    # Operators that no file has: the clean-up makes them a part of GELU, or arithmetic.
    _function("erf", "MUL, ADD, DIV: a rational function", lambda x: x.erf()),
    _function("erfc", "SUB, as erf: to 1e-7 absolutely", lambda x: x.erfc()),
)
