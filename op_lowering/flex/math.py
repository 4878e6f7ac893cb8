"""Functions of single values, gradients, products and counts (core/kernels/cwise_*.cc)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.movement import integers, why_not_axis
from jaxdelegate.op_lowering.common.pointwise import (
    COMPLEX,
    INTEGERS,
    Elementwise,
    Operands,
    binary,
    pointwise,
    unary,
)
from jaxdelegate.op_lowering.dtypes import FLOATS, INDICES
from jaxdelegate.op_lowering.flex.options import (
    FlexCountOptions,
    FlexGradientOptions,
    FlexScanOptions,
    FlexSlopeOptions,
)
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.rule import (
    Function,
    Op,
    OpRule,
    first_reason,
    table,
    why_not_const,
    why_not_dtype,
    why_not_result,
)
from jaxdelegate.op_lowering.spec import TensorSpec

_NUMBERS = FLOATS | INDICES
_ALPHA, _SCALE = 1.6732632423543772, 1.0507009873554805  # of SELU (relu_op_functor.h)


def _selu(x: jax.Array) -> jax.Array:
    negative = _ALPHA * jnp.expm1(jnp.where(x > 0, 0, x))  # the slope at 0 is this one's
    return (_SCALE * jnp.where(x > 0, x, negative)).astype(x.dtype)


_UNARY = {
    "Acos": jnp.arccos,
    "Acosh": jnp.arccosh,
    "Asin": jnp.arcsin,
    "Asinh": jnp.arcsinh,
    "Atan": jnp.arctan,
    "Atanh": jnp.arctanh,
    "Cosh": jnp.cosh,
    "Digamma": lax.digamma,
    "Erf": lax.erf,
    "Erfc": lax.erfc,
    "Erfinv": lax.erf_inv,
    "Expm1": jnp.expm1,
    "Lgamma": lax.lgamma,
    "Log1p": jnp.log1p,
    "Reciprocal": lambda x: 1 / x,
    "Selu": _selu,
    "Sinh": jnp.sinh,
    "Softplus": lambda x: jnp.logaddexp(x, jnp.zeros_like(x)),
    "Softsign": lambda x: x / (1 + jnp.abs(x)),
    "Tan": jnp.tan,
}


def _why_not_gradient(op: Op[FlexOptions]) -> str | None:
    dy, x = op.inputs[:2]
    return None if dy.shape == x.shape else f"{list(dy.shape)} and {list(x.shape)} differ"


def _relu_grad(dy: jax.Array, x: jax.Array) -> jax.Array:
    return dy * (x > 0).astype(dy.dtype)


def _relu6_grad(dy: jax.Array, x: jax.Array) -> jax.Array:
    return dy * ((x > 0) & (x < 6)).astype(dy.dtype)


def _elu_grad(dy: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.where(y < 0, (y + 1) * dy, dy)


def _softsign_grad(dy: jax.Array, x: jax.Array) -> jax.Array:
    return dy / jnp.square(1 + jnp.abs(x))


def _leaky_relu_grad(op: Op[FlexSlopeOptions]) -> Elementwise:
    alpha = op.options.alpha
    return lambda dy, x: jnp.where(x > 0, dy, dy * np.asarray(alpha, dy.dtype))


def _add_n(_op: Op[FlexOptions]) -> Elementwise:
    return lambda *terms: functools.reduce(jnp.add, terms)


def _left_shift(x: jax.Array, y: jax.Array) -> jax.Array:
    """By 0 to one less than the number of bits."""
    return jnp.left_shift(x, jnp.clip(y, 0, 8 * x.dtype.itemsize - 1))


# ---- BiasAddGrad


def _why_not_bias_add_grad(op: Op[FlexGradientOptions]) -> str | None:
    dy = op.inputs[0]
    formats = ("NHWC", "NCHW")
    return first_reason(
        why_not_dtype(dy, _NUMBERS),
        why_not_result(op.outputs[0], dy.dtype),
        None if len(dy.shape) >= 2 else f"{dy.name!r} has rank {len(dy.shape)}, not 2 or more",
        None if op.options.data_format in formats else f"data_format {op.options.data_format!r}",
    )


def _lower_bias_add_grad(op: Op[FlexGradientOptions]) -> Function:
    rank, dtype = len(op.inputs[0].shape), op.inputs[0].dtype
    channels = rank - 1 if op.options.data_format == "NHWC" else 1
    axes = tuple(i for i in range(rank) if i != channels)
    wide = op.context.precision.accumulator(dtype) if dtype in FLOATS else dtype
    return lambda dy: (jnp.sum(dy.astype(wide), axes, dtype=wide).astype(dtype),)


# ---- Cumprod: values, axis


def _why_not_number(spec: TensorSpec) -> str | None:
    reason = why_not_const(spec) or why_not_dtype(spec, INDICES)
    return reason or (None if spec.shape in ((), (1,)) else f"{spec.name!r} is not one number")


def _why_not_cumprod(op: Op[FlexScanOptions]) -> str | None:
    x, axis = op.inputs[:2]
    return first_reason(
        why_not_dtype(x, _NUMBERS), why_not_result(op.outputs[0], x.dtype), _why_not_number(axis)
    ) or why_not_axis(integers(axis)[0], len(x.shape))


def _lower_cumprod(op: Op[FlexScanOptions]) -> Function:
    x, o = op.inputs[0], op.options
    axis, wide = integers(op.inputs[1])[0] % len(x.shape), x.dtype
    if x.dtype in FLOATS:
        wide = op.context.precision.accumulator(x.dtype)

    def cumprod(x: jax.Array, _axis: jax.Array) -> tuple[jax.Array]:
        y = lax.cumprod(x.astype(wide), axis, reverse=o.reverse)
        if o.exclusive and y.shape[axis]:
            first = jnp.ones_like(lax.slice_in_dim(y, 0, 1, axis=axis))
            n = y.shape[axis]
            kept = lax.slice_in_dim(y, int(o.reverse), n - 1 + int(o.reverse), axis=axis)
            y = jnp.concatenate([kept, first] if o.reverse else [first, kept], axis)
        return (y.astype(x.dtype),)

    return cumprod


# ---- Identity; Roll: values, shifts, axes; InvertPermutation


def _why_not_same(op: Op[FlexOptions]) -> str | None:
    x, y = op.inputs[0], op.outputs[0]
    return None if x.dtype == y.dtype else f"{y.name!r} is {y.dtype}, not {x.dtype}"


def _lower_identity(_op: Op[FlexOptions]) -> Function:
    return lambda x: (x,)


def _why_not_roll(op: Op[FlexOptions]) -> str | None:
    x, shifts, axes = op.inputs[:3]
    reason = first_reason(
        _why_not_same(op),
        *(why_not_const(s) or why_not_dtype(s, INDICES) for s in (shifts, axes)),
        None if shifts.shape == axes.shape and len(axes.shape) < 2 else "shifts and axes differ",
    )
    rank = len(x.shape)
    return reason or first_reason(*(why_not_axis(axis, rank) for axis in integers(axes)))


def _lower_roll(op: Op[FlexOptions]) -> Function:
    shifts, axes = integers(op.inputs[1]), integers(op.inputs[2])
    return lambda x, *_: (jnp.roll(x, shifts, axes),)


def _why_not_permutation(op: Op[FlexOptions]) -> str | None:
    x = op.inputs[0]
    rank = None if len(x.shape) == 1 else f"{x.name!r} has rank {len(x.shape)}, not 1"
    return why_not_dtype(x, INDICES) or _why_not_same(op) or rank


def _lower_permutation(_op: Op[FlexOptions]) -> Function:
    """The result for what is not a permutation is an error of TensorFlow's."""
    return lambda x: (jnp.zeros_like(x).at[x].set(jnp.arange(len(x), dtype=x.dtype), mode="drop"),)


# ---- Bincount: values, size, weights (empty: ones)


def _why_not_bincount(op: Op[FlexOptions]) -> str | None:
    x, size, weights = op.inputs[:3]
    reason = first_reason(
        why_not_dtype(x, np.int32),
        _why_not_number(size),
        why_not_dtype(weights, _NUMBERS),
        why_not_result(op.outputs[0], weights.dtype),
    )
    fits = 0 in weights.shape or weights.shape == x.shape
    different = f"weights {list(weights.shape)} for values {list(x.shape)}"
    return reason or (None if fits else different)


def _lower_bincount(op: Op[FlexOptions]) -> Function:
    n, dtype = op.outputs[0].shape[0], op.outputs[0].dtype
    is_weighted = 0 not in op.inputs[2].shape

    def bincount(x: jax.Array, _size: jax.Array, weights: jax.Array) -> tuple[jax.Array]:
        each = weights.reshape(-1) if is_weighted else jnp.ones(x.size, dtype)
        place = jnp.where(x < 0, n, x).reshape(-1)  # negative: an error of TensorFlow's
        return (jnp.zeros(n, dtype).at[place].add(each, mode="drop"),)

    return bincount


# ---- DenseBincount: values, of one row or of several, size, weights (empty: ones)


def _why_not_dense_bincount(op: Op[FlexCountOptions]) -> str | None:
    x, size, weights = op.inputs[:3]
    fits = 0 in weights.shape or weights.shape == x.shape
    return first_reason(
        why_not_dtype(x, INDICES),
        _why_not_number(size),
        why_not_dtype(weights, _NUMBERS),
        why_not_result(op.outputs[0], weights.dtype),
        None if len(x.shape) in (1, 2) else f"{x.name!r} has rank {len(x.shape)}, not 1 or 2",
        None if fits else f"weights {list(weights.shape)} for values {list(x.shape)}",
    )


def _lower_dense_bincount(op: Op[FlexCountOptions]) -> Function:
    """A negative value is an error of TensorFlow's; here it does not count."""
    shape, dtype = op.outputs[0].shape, op.outputs[0].dtype
    rows = np.indices(op.inputs[0].shape)[:-1]  # of each value
    once = op.options.binary_output
    is_weighted = 0 not in op.inputs[2].shape and not once

    def bincount(x: jax.Array, _size: jax.Array, weights: jax.Array) -> tuple[jax.Array]:
        each = jnp.asarray(weights) if is_weighted else jnp.ones(x.shape, dtype)
        places = jnp.zeros(shape, dtype).at[(*rows, jnp.where(x < 0, shape[-1], x))]
        return (places.set(each, mode="drop") if once else places.add(each, mode="drop"),)

    return bincount


RULES = table(
    *(unary(f"{FLEX}{name}", FlexOptions, 1, function) for name, function in _UNARY.items()),
    *(
        binary(f"{FLEX}{name}", FlexOptions, 1, function, dtypes=FLOATS, why_not=_why_not_gradient)
        for name, function in (
            ("EluGrad", _elu_grad),
            ("Relu6Grad", _relu6_grad),
            ("ReluGrad", _relu_grad),
            ("SoftsignGrad", _softsign_grad),
        )
    ),
    unary(f"{FLEX}Invert", FlexOptions, 1, jnp.invert, dtypes=INTEGERS),
    *(
        binary(f"{FLEX}{name}", FlexOptions, 1, function, dtypes=INTEGERS)
        for name, function in (
            ("BitwiseAnd", jnp.bitwise_and),
            ("BitwiseOr", jnp.bitwise_or),
            ("LeftShift", _left_shift),
        )
    ),
    binary(f"{FLEX}TruncateMod", FlexOptions, 1, lax.rem, dtypes=_NUMBERS),
    pointwise(f"{FLEX}AddN", FlexOptions, 1, _add_n, Operands(_NUMBERS | COMPLEX, variadic=True)),
    pointwise(
        f"{FLEX}LeakyReluGrad",
        FlexSlopeOptions,
        1,
        _leaky_relu_grad,
        Operands(FLOATS, 2),
        why_not=_why_not_gradient,
    ),
    OpRule(
        f"{FLEX}BiasAddGrad", FlexGradientOptions, 1, _why_not_bias_add_grad, _lower_bias_add_grad
    ),
    OpRule(f"{FLEX}Bincount", FlexOptions, 1, _why_not_bincount, _lower_bincount, arity=3),
    OpRule(
        f"{FLEX}DenseBincount",
        FlexCountOptions,
        1,
        _why_not_dense_bincount,
        _lower_dense_bincount,
        arity=3,
    ),
    OpRule(f"{FLEX}Cumprod", FlexScanOptions, 1, _why_not_cumprod, _lower_cumprod, arity=2),
    OpRule(f"{FLEX}Identity", FlexOptions, 1, _why_not_same, _lower_identity),
    OpRule(f"{FLEX}InvertPermutation", FlexOptions, 1, _why_not_permutation, _lower_permutation),
    OpRule(f"{FLEX}Roll", FlexOptions, 1, _why_not_roll, _lower_roll, arity=3),
)
