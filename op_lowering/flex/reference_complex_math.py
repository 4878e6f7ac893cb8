"""Arithmetic of complex numbers and doubles, which TFLite's kernels lack (core/kernels/cwise_*)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.flex.options import FlexMatrixOptions, FlexReductionOptions
from jaxdelegate.op_lowering.flex.reference_named import named
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel, broadcast_shape, same_shape
from jaxdelegate.reference.movement import ints, resolved_axis
from jaxdelegate.reference.pointwise import elementwise, widen

_Shapes = tuple[Shape | None, ...]


def _div_no_nan(x: Array, y: Array) -> Array:
    return np.where(y == 0, 0, x / y)


_UNARY: dict[str, Callable[[Array], Any]] = {
    "Angle": np.angle,
    "Conj": np.conj,
    "Cos": np.cos,
    "Exp": np.exp,
    "Log": np.log,
    "Rsqrt": lambda x: 1 / np.sqrt(x),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Sin": np.sin,
    "Sqrt": np.sqrt,
    "Square": np.square,
    "Tanh": np.tanh,
}


# ---- MatMul


def _matrices(o: FlexMatrixOptions, x: Shape, y: Shape) -> tuple[Shape, Shape]:
    left, right = x[::-1] if o.transpose_a else x, y[::-1] if o.transpose_b else y
    if not len(left) == len(right) == 2 or left[1] != right[0]:
        raise ValueError(f"{list(left)} times {list(right)}: expected matrices that fit")
    return left, right


def matmul_shape(o: FlexMatrixOptions, inputs: Specs) -> _Shapes:
    left, right = _matrices(o, inputs[0].shape, inputs[1].shape)
    return ((left[0], right[1]),)


def matmul(o: FlexMatrixOptions, _i: Specs, outputs: Specs, x: Array, y: Array) -> tuple[Array]:
    x, y = widen(x.T if o.transpose_a else x), widen(y.T if o.transpose_b else y)
    return (np.matmul(x, y).astype(outputs[0].dtype),)


# ---- Mean, Prod, Sum: values, axes


def reduced_shape(o: FlexReductionOptions, inputs: Specs) -> _Shapes:
    x, axes = inputs[:2]
    if axes.const is None:
        return (None,)
    gone = _axes(np.asarray(axes.const), len(x.shape))
    kept = ((i, n) for i, n in enumerate(x.shape) if o.keep_dims or i not in gone)
    return (tuple(1 if i in gone else n for i, n in kept),)


def _axes(axes: Array, rank: int) -> tuple[int, ...]:
    return tuple({resolved_axis(axis, rank, "a reduction") for axis in ints(axes)})


def _reduction(function: Callable[..., Any]) -> Kernel:
    def run(
        o: FlexReductionOptions, _inputs: Specs, outputs: Specs, x: Array, axes: Array
    ) -> tuple[Array]:
        with np.errstate(all="ignore"):
            y = function(widen(x), axis=_axes(axes, x.ndim), keepdims=o.keep_dims)
        return (np.asarray(y).astype(outputs[0].dtype),)

    return Kernel(run, reduced_shape)


# ---- ConcatV2: values, axis


def concat_shape(_o: FlexOptions, inputs: Specs) -> _Shapes:
    *values, axis = inputs
    if axis.const is None:
        return (None,)
    shapes = [list(spec.shape) for spec in values]
    at = resolved_axis(_axis(np.asarray(axis.const)), len(shapes[0]), "ConcatV2")
    if any([*s[:at], *s[at + 1 :]] != [*shapes[0][:at], *shapes[0][at + 1 :]] for s in shapes):
        raise ValueError(f"values {shapes} along axis {at}")
    return ((*shapes[0][:at], sum(s[at] for s in shapes), *shapes[0][at + 1 :]),)


def _axis(axis: Array) -> int:
    if axis.size != 1:
        raise ValueError(f"axes {ints(axis)}: expected one")
    return ints(axis)[0]


def concat(_o: FlexOptions, _inputs: Specs, _outputs: Specs, *arrays: Array) -> tuple[Array]:
    return (np.concatenate(arrays[:-1], _axis(arrays[-1])),)


KERNELS = named(
    {
        **{f"{FLEX}{name}": Kernel(elementwise(f), same_shape) for name, f in _UNARY.items()},
        f"{FLEX}ConcatV2": Kernel(concat, concat_shape),
        f"{FLEX}DivNoNan": Kernel(elementwise(_div_no_nan), broadcast_shape),
        f"{FLEX}MatMul": Kernel(matmul, matmul_shape),
        f"{FLEX}Mean": _reduction(np.mean),
        f"{FLEX}Pow": Kernel(elementwise(np.power), broadcast_shape),
        f"{FLEX}Prod": _reduction(np.prod),
        f"{FLEX}Sum": _reduction(np.sum),
    }
)
