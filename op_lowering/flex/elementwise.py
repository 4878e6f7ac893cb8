"""Functions of single values, special functions and gradients of activations.

Sources: core/kernels/{cwise,relu}_*, and {igamma,betainc,zeta,special_math,...}_op*.cc.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from jaxdelegate.op_lowering.common.pointwise import (
    COMPLEX,
    INTEGERS,
    Dtypes,
    Elementwise,
    Operands,
    pointwise,
)
from jaxdelegate.op_lowering.common.signature import REAL_OF, REALS, Input
from jaxdelegate.op_lowering.common.wide_lowering import lowered_wide
from jaxdelegate.op_lowering.dtypes import FLOATS, INDICES
from jaxdelegate.op_lowering.flex.options import OF_COMPLEX, OF_REALS, PARTLY_DERIVED, SCIPY
from jaxdelegate.op_lowering.flex.signature import rule
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.rule import Function, Op, OpRule, host_only, table

_Op = Op[FlexOptions]
_NUMBERS = FLOATS | INDICES
_WITH_COMPLEX = FLOATS | COMPLEX


def _each(name: str, function: Elementwise, dtypes: Dtypes, arity: int = 1) -> OpRule[FlexOptions]:
    return pointwise(f"{FLEX}{name}", 1, lambda _op: function, Operands(dtypes, arity))


_REAL = {
    **{name: getattr(jnp, name.lower()) for name in OF_REALS},
    "Digamma": lax.digamma,
    "Erf": lax.erf,
    "Erfc": lax.erfc,
    "Erfinv": lax.erf_inv,
    "Lgamma": lax.lgamma,
    "Reciprocal": lambda x: 1 / x,
    "Selu": jax.nn.selu,
    "Softplus": jax.nn.softplus,
    "Softsign": jax.nn.soft_sign,
}
_COMPLEX = {
    **{name: getattr(jnp, name.lower()) for name in OF_COMPLEX},
    "Rsqrt": lambda x: 1 / jnp.sqrt(x),
    "Sigmoid": lambda x: 1 / (1 + jnp.exp(-x)),
}


def _div_no_nan(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.where(y == 0, jnp.zeros_like(x), x / jnp.where(y == 0, jnp.ones_like(y), y))


def _left_shift(x: jax.Array, y: jax.Array) -> jax.Array:
    """By 0 to one less than the number of bits."""
    return jnp.left_shift(x, jnp.clip(y, 0, 8 * x.dtype.itemsize - 1))


def _add_n(_op: _Op) -> Elementwise:
    return lambda *terms: functools.reduce(jnp.add, terms)


def _lower_angle(_op: _Op) -> Function:
    return lambda x: (jnp.angle(x),)


# ---- gradients of activations: of the result, and the activation's input, or its result for ELU


_GRADIENTS: dict[str, Elementwise] = {
    "EluGrad": lambda dy, y: jnp.where(y < 0, (y + 1) * dy, dy),
    "Relu6Grad": lambda dy, x: dy * ((x > 0) & (x < 6)).astype(dy.dtype),
    "ReluGrad": lambda dy, x: dy * (x > 0).astype(dy.dtype),
    "SoftsignGrad": lambda dy, x: dy / jnp.square(1 + jnp.abs(x)),
}
_LEAKY = f"{FLEX}LeakyReluGrad"


def _leaky_relu_grad(op: _Op) -> Elementwise:
    alpha = op.options.alpha
    return lambda dy, x: jnp.where(x > 0, dy, dy * np.asarray(alpha, dy.dtype))


# ---- special functions


def _special(name: str, function: Elementwise) -> OpRule[FlexOptions]:
    arity = 2 if name in ("Igamma", "Igammac") else 1
    wide = lowered_wide(function, arity)

    def build(op: _Op) -> Elementwise:
        return wide if op.inputs[0].dtype == np.float64 else function

    return pointwise(f"{FLEX}{name}", 1, build, Operands(REALS, arity))


_BY_ONE_INPUT = "JAX has its derivative by one input only"

RULES = table(
    *(_each(name, function, FLOATS) for name, function in _REAL.items()),
    *(_each(name, function, _WITH_COMPLEX) for name, function in _COMPLEX.items()),
    *(_each(name, function, FLOATS, 2) for name, function in _GRADIENTS.items()),
    *(_special(name, getattr(special, scipy)) for name, scipy in SCIPY.items()),
    pointwise(f"{FLEX}AddN", 1, _add_n, Operands(_NUMBERS | COMPLEX, variadic=True)),
    rule("Angle", [Input(COMPLEX)], _lower_angle, results=[REAL_OF]),
    _each("BitwiseAnd", jnp.bitwise_and, INTEGERS, 2),
    _each("BitwiseOr", jnp.bitwise_or, INTEGERS, 2),
    _each("Conj", jnp.conj, COMPLEX),
    _each("DivNoNan", _div_no_nan, _WITH_COMPLEX, 2),
    _each("Invert", jnp.invert, INTEGERS),
    _each("LeftShift", _left_shift, INTEGERS, 2),
    _each("Pow", jnp.power, _WITH_COMPLEX, 2),
    _each("TruncateMod", lax.rem, _NUMBERS, 2),
    pointwise(_LEAKY, 1, _leaky_relu_grad, Operands(FLOATS, 2)),
    *(host_only(f"{FLEX}{name}", 1, _BY_ONE_INPUT) for name in PARTLY_DERIVED),
)
