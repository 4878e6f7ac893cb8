"""Functions of single values, special functions and gradients of activations.

Sources: core/kernels/{cwise,relu}_*, and {igamma,betainc,zeta,special_math,...}_op*.cc.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.flex.options import HOSTED, OF_COMPLEX, OF_REALS, PARTLY_DERIVED, SCIPY
from jaxdelegate.op_lowering.flex.reference_kernels import kernels
from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.spec import Specs
from jaxdelegate.reference.kernel import Array, Kernel, ResultShapes, broadcast_shape, same_shape
from jaxdelegate.reference.pointwise import elementwise, with_options

_Each = Callable[..., Any]


def _selu(x: Array) -> Array:
    alpha, scale = 1.6732632423543772, 1.0507009873554805
    return np.where(x > 0, scale * x, scale * alpha * np.expm1(np.minimum(x, 0)))


_UNARY: dict[str, _Each] = {
    **{name: getattr(np, name.lower()) for name in (*OF_REALS, *OF_COMPLEX)},
    "Angle": np.angle,
    "Conj": np.conj,
    "Invert": np.invert,
    "Reciprocal": lambda x: 1 / x,
    "Rsqrt": lambda x: 1 / np.sqrt(x),
    "Selu": _selu,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
    "Softsign": lambda x: x / (1 + np.abs(x)),
}


def _div_no_nan(x: Array, y: Array) -> Array:
    return np.where(y == 0, 0, x / y)


def _left_shift(x: Array, y: Array) -> Any:
    """By 0 to one less than the number of bits."""
    return np.left_shift(x, np.clip(y, 0, 8 * x.dtype.itemsize - 1))


def _truncate_mod(x: Array, y: Array) -> Any:
    if y.dtype.kind in "iu" and not y.all():
        raise ValueError("TruncateMod: a divisor is 0")
    return np.fmod(x, y)


_BINARY: dict[str, _Each] = {
    "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or,
    "DivNoNan": _div_no_nan,
    "LeftShift": _left_shift,
    "Pow": np.power,
    "TruncateMod": _truncate_mod,
}


def _add_n(*terms: Array) -> Array:
    return functools.reduce(np.add, terms)


def add_n_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    shapes = {spec.shape for spec in inputs}
    if len(shapes) != 1:
        raise ValueError(f"AddN of {sorted(map(list, shapes))}: expected one shape")
    return (inputs[0].shape,)


# ---- gradients of activations: of the result, and the activation's input, or its result for ELU


def gradient_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    if inputs[0].shape != inputs[1].shape:
        raise ValueError(f"{list(inputs[0].shape)} and {list(inputs[1].shape)} differ")
    return (inputs[0].shape,)


def _leaky_relu_grad(o: FlexOptions, dy: Array, x: Array) -> Array:
    return np.where(x > 0, dy, dy * np.asarray(o.alpha, dy.dtype))


_GRADIENTS: dict[str, _Each] = {
    "EluGrad": lambda dy, y: np.where(y < 0, (y + 1) * dy, dy),
    "Relu6Grad": lambda dy, x: np.where((x > 0) & (x < 6), dy, dy * 0),
    "ReluGrad": lambda dy, x: np.where(x > 0, dy, dy * 0),
    "SoftsignGrad": lambda dy, x: dy / (1 + np.abs(x)) ** 2,
}


# ---- special functions, by scipy, whose import takes as long as that of numpy

_SPECIAL = {
    "Digamma": "digamma",
    "Erf": "erf",
    "Erfc": "erfc",
    "Erfinv": "erfinv",
    **SCIPY,
    **HOSTED,
    **PARTLY_DERIVED,
}


def _special(name: str) -> Kernel:
    def run(*arrays: Array) -> Any:
        return getattr(importlib.import_module("scipy.special"), name)(*arrays)

    return Kernel(elementwise(run), broadcast_shape)


def lgamma(x: Array) -> Any:
    """At minus infinity, where scipy's is that, it is infinity."""
    special = importlib.import_module("scipy.special")
    return np.where(np.isneginf(x), np.inf, special.gammaln(x))


def polygamma(n: Array, x: Array) -> Any:
    """NaN for an order that is negative or no integer."""
    special = importlib.import_module("scipy.special")
    known = (n >= 0) & (n == np.floor(n))
    return np.where(known, special.polygamma(np.where(known, n, 0).astype(int), x), np.nan)


KERNELS = kernels(
    {
        **{name: Kernel(elementwise(f), same_shape) for name, f in _UNARY.items()},
        **{name: Kernel(elementwise(f), broadcast_shape) for name, f in _BINARY.items()},
        **{name: Kernel(elementwise(f), gradient_shape) for name, f in _GRADIENTS.items()},
        **{name: _special(scipy) for name, scipy in _SPECIAL.items()},
        "AddN": Kernel(elementwise(_add_n), add_n_shape),
        "Lgamma": Kernel(elementwise(lgamma), same_shape),
        "LeakyReluGrad": Kernel(with_options(_leaky_relu_grad), gradient_shape),
        "Polygamma": Kernel(elementwise(polygamma), broadcast_shape),
    }
)
