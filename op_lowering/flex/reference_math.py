"""Functions of single values, gradients, products and counts (core/kernels/cwise_*.cc)."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.flex.options import (
    FlexCountOptions,
    FlexGradientOptions,
    FlexScanOptions,
    FlexSlopeOptions,
)
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel, broadcast_shape, same_shape
from jaxdelegate.reference.movement import resolved_axis
from jaxdelegate.reference.pointwise import elementwise, widen, with_options

_Shapes = tuple[Shape | None, ...]


def _each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    """The function of each value in float64; NaN where it has none."""

    def total(x: float) -> float:
        try:
            return function(x)
        except ValueError:
            return math.nan
        except OverflowError:
            return math.inf

    return np.vectorize(total, otypes=[np.float64])


def _lgamma(x: float) -> float:
    """Infinite at 0, -1, -2..., where math.lgamma raises an error."""
    is_pole = math.isfinite(x) and x <= 0 and x == math.floor(x)
    return math.inf if is_pole else math.lgamma(x)


def _digamma(x: float) -> float:
    """By recurrence up to 10, then the asymptotic series; by reflection below 1/2."""
    if x <= 0 and x == math.floor(x):
        return math.nan if x else -math.copysign(math.inf, x)
    if x < 0.5:
        return _digamma(1 - x) - math.pi / math.tan(math.pi * x)
    total = 0.0
    while x < 10:
        total -= 1 / x
        x += 1
    if math.isinf(x):
        return x
    square = 1 / (x * x)
    series = 1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square / 132)))
    return total + math.log(x) - 0.5 / x - square * series


def _erfinv(y: float) -> float:
    """Newton's method from Winitzki's approximation."""
    if abs(y) >= 1:
        return math.copysign(math.inf, y) if abs(y) == 1 else math.nan
    logarithm, a = math.log1p(-y * y), 0.147
    half = 2 / (math.pi * a) + logarithm / 2
    x = math.copysign(math.sqrt(math.sqrt(half * half - logarithm / a) - half), y)
    for _ in range(4):
        error = math.erf(x) - y if abs(y) < 0.9 else -math.copysign(_tail_error(x, y), y)
        x -= error * math.sqrt(math.pi) / 2 * math.exp(x * x)
    return x


def _tail_error(x: float, y: float) -> float:
    """erfc(|x|) - (1 - |y|), which does not cancel near 1."""
    return math.erfc(abs(x)) - (1 - abs(y))


def _selu(x: Array) -> Array:
    alpha, scale = 1.6732632423543772, 1.0507009873554805
    return np.where(x > 0, scale * x, scale * alpha * np.expm1(np.minimum(x, 0)))


_UNARY: dict[str, Callable[[Array], Array]] = {
    "Acos": np.arccos,
    "Acosh": np.arccosh,
    "Asin": np.arcsin,
    "Asinh": np.arcsinh,
    "Atan": np.arctan,
    "Atanh": np.arctanh,
    "Cosh": np.cosh,
    "Digamma": _each(_digamma),
    "Erf": _each(math.erf),
    "Erfc": _each(math.erfc),
    "Erfinv": _each(_erfinv),
    "Expm1": np.expm1,
    "Lgamma": _each(_lgamma),
    "Log1p": np.log1p,
    "Reciprocal": lambda x: 1 / x,
    "Selu": _selu,
    "Sinh": np.sinh,
    "Softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Tan": np.tan,
}


def gradient_shape(_o: FlexOptions, inputs: Specs) -> _Shapes:
    if inputs[0].shape != inputs[1].shape:
        raise ValueError(f"{list(inputs[0].shape)} and {list(inputs[1].shape)} differ")
    return (inputs[0].shape,)


def _relu_grad(dy: Array, x: Array) -> Array:
    return np.where(x > 0, dy, dy * 0)


def _relu6_grad(dy: Array, x: Array) -> Array:
    return np.where((x > 0) & (x < 6), dy, dy * 0)


def _elu_grad(dy: Array, y: Array) -> Array:
    return np.where(y < 0, (y + 1) * dy, dy)


def _softsign_grad(dy: Array, x: Array) -> Any:
    return dy / (1 + np.abs(x)) ** 2


def _leaky_relu_grad(o: FlexSlopeOptions, dy: Array, x: Array) -> Array:
    return np.where(x > 0, dy, dy * np.asarray(o.alpha, dy.dtype))


def _add_n(*terms: Array) -> Array:
    return functools.reduce(np.add, terms)


def add_n_shape(_o: FlexOptions, inputs: Specs) -> _Shapes:
    shapes = {spec.shape for spec in inputs}
    if len(shapes) != 1:
        raise ValueError(f"FlexAddN of {sorted(map(list, shapes))}: expected one shape")
    return (inputs[0].shape,)


def _left_shift(x: Array, y: Array) -> Any:
    """By 0 to one less than the number of bits."""
    return np.left_shift(x, np.clip(y, 0, 8 * x.dtype.itemsize - 1))


def _truncate_mod(x: Array, y: Array) -> Any:
    if y.dtype.kind in "iu" and not y.all():
        raise ValueError("TruncateMod: a divisor is 0")
    return np.fmod(x, y)


# ---- BiasAddGrad


def _channel_axis(o: FlexGradientOptions, rank: int) -> int:
    if rank < 2 or o.data_format not in ("NHWC", "NCHW"):
        raise ValueError(f"BiasAddGrad of rank {rank}, {o.data_format!r}")
    return rank - 1 if o.data_format == "NHWC" else 1


def bias_add_grad_shape(o: FlexGradientOptions, inputs: Specs) -> _Shapes:
    shape = inputs[0].shape
    return ((shape[_channel_axis(o, len(shape))],),)


def bias_add_grad(o: FlexGradientOptions, _i: Specs, outputs: Specs, dy: Array) -> tuple[Array]:
    """The sum of each channel."""
    channels = np.moveaxis(dy, _channel_axis(o, dy.ndim), 0).reshape(outputs[0].shape[0], -1)
    wide = np.int64 if dy.dtype.kind in "iu" else np.float64
    return (channels.sum(axis=1, dtype=wide).astype(outputs[0].dtype),)


# ---- Cumprod


def cumprod(
    o: FlexScanOptions, _inputs: Specs, outputs: Specs, x: Array, axis: Array
) -> tuple[Array]:
    """The product of the values up to each place, or before it."""
    at = resolved_axis(int(axis.reshape(())), x.ndim, "Cumprod")
    lines = np.moveaxis(widen(x), at, 0)
    lines = lines[::-1] if o.reverse else lines
    y, product = np.empty_like(lines), np.ones(lines.shape[1:], lines.dtype)
    for i, values in enumerate(lines):
        following = product * values
        y[i] = product if o.exclusive else following
        product = following
    y = y[::-1] if o.reverse else y
    return (np.moveaxis(y, 0, at).astype(outputs[0].dtype),)


# ---- Identity, Roll, InvertPermutation


def identity(_o: FlexOptions, _inputs: Specs, _outputs: Specs, x: Array) -> tuple[Array]:
    return (x,)


def roll(
    _o: FlexOptions, _inputs: Specs, _outputs: Specs, x: Array, shift: Array, axis: Array
) -> tuple[Array]:
    if shift.shape != axis.shape or shift.ndim > 1:
        raise ValueError(f"Roll by {shift.tolist()} along {axis.tolist()}")
    axes = [resolved_axis(int(a), x.ndim, "Roll") for a in axis.reshape(-1)]
    return (np.roll(x, shift.reshape(-1).tolist(), axes),)


def invert_permutation(_o: FlexOptions, _inputs: Specs, _outputs: Specs, x: Array) -> tuple[Array]:
    if x.ndim != 1 or sorted(x.tolist()) != list(range(len(x))):
        raise ValueError("InvertPermutation: it is not a permutation")
    return (np.argsort(x).astype(x.dtype),)


# ---- Bincount


def bincount_shape(_o: FlexOptions, inputs: Specs) -> _Shapes:
    size = inputs[1].const
    return (None if size is None else (_count(size),),)


def _count(size: Array) -> int:
    n = int(np.asarray(size).reshape(()))
    if n < 0:
        raise ValueError(f"a histogram of {n} values")
    return n


def bincount(
    _o: FlexOptions, _inputs: Specs, outputs: Specs, x: Array, size: Array, weights: Array
) -> tuple[Array]:
    """The number of each value, or the sum of its weights; values from `size` do not count."""
    if (x < 0).any():
        raise ValueError("Bincount: a value is negative")
    if weights.size and weights.shape != x.shape:
        raise ValueError(f"Bincount: weights {list(weights.shape)} for values {list(x.shape)}")
    y = np.zeros(int(size.reshape(())), outputs[0].dtype)
    inside = x < len(y)
    np.add.at(y, x[inside], weights[inside] if weights.size else y.dtype.type(1))
    return (y,)


def dense_bincount_shape(_o: FlexCountOptions, inputs: Specs) -> _Shapes:
    if len(inputs[0].shape) not in (1, 2):
        raise ValueError(f"DenseBincount of values {list(inputs[0].shape)}")
    size = inputs[1].const
    rows = inputs[0].shape[:-1]
    return (None if size is None else (*rows, _count(size)),)


def dense_bincount(
    o: FlexCountOptions, _inputs: Specs, outputs: Specs, x: Array, size: Array, weights: Array
) -> tuple[Array]:
    """The counts of each row; with `binary_output`, whether there is such a value."""
    (n,) = size.reshape(-1)
    rows = [row.reshape(-1) for row in (x if x.ndim == 2 else x[None])]
    scales = weights if weights.ndim == 2 else weights[None]
    y = np.zeros((len(rows), int(n)), outputs[0].dtype)
    for i, row in enumerate(rows):
        given = scales[i] if weights.size and not o.binary_output else weights.reshape(-1)[:0]
        (y[i],) = bincount(FlexOptions(), (), outputs, row, size, given)
    y = (y > 0).astype(y.dtype) if o.binary_output else y
    return (y.reshape(outputs[0].shape),)


KERNELS = {
    **{f"{FLEX}{name}": Kernel(elementwise(f), same_shape) for name, f in _UNARY.items()},
    f"{FLEX}AddN": Kernel(elementwise(_add_n), add_n_shape),
    f"{FLEX}BitwiseAnd": Kernel(elementwise(np.bitwise_and), broadcast_shape),
    f"{FLEX}BitwiseOr": Kernel(elementwise(np.bitwise_or), broadcast_shape),
    f"{FLEX}Invert": Kernel(elementwise(np.invert), same_shape),
    f"{FLEX}LeftShift": Kernel(elementwise(_left_shift), broadcast_shape),
    f"{FLEX}TruncateMod": Kernel(elementwise(_truncate_mod), broadcast_shape),
    f"{FLEX}BiasAddGrad": Kernel(bias_add_grad, bias_add_grad_shape),
    f"{FLEX}Bincount": Kernel(bincount, bincount_shape),
    f"{FLEX}DenseBincount": Kernel(dense_bincount, dense_bincount_shape),
    f"{FLEX}Cumprod": Kernel(cumprod, same_shape),
    f"{FLEX}Identity": Kernel(identity, same_shape),
    f"{FLEX}InvertPermutation": Kernel(invert_permutation, same_shape),
    f"{FLEX}LeakyReluGrad": Kernel(with_options(_leaky_relu_grad), gradient_shape),
    f"{FLEX}EluGrad": Kernel(elementwise(_elu_grad), gradient_shape),
    f"{FLEX}Relu6Grad": Kernel(elementwise(_relu6_grad), gradient_shape),
    f"{FLEX}ReluGrad": Kernel(elementwise(_relu_grad), gradient_shape),
    f"{FLEX}SoftsignGrad": Kernel(elementwise(_softsign_grad), gradient_shape),
    f"{FLEX}Roll": Kernel(roll, same_shape),
}
