"""Reductions over axes, in numpy.

Source: kernels/reduce.cc, kernels/internal/reference/{reduce,arg_min_max,cumsum}.h.
"""

import math

import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.dtypes import FLOATS, HALVES
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.reduction.options import CumsumOptions, ReducerOptions
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.quant.affine import round_half_away
from jaxdelegate.quant.fixed_point import multiply_by_quantized_multiplier_64, wrap
from jaxdelegate.quant.multiplier import quantize_multiplier
from jaxdelegate.quant.params import integer_range, tensor_scale, tensor_zero_point
from jaxdelegate.quant.requantize import requantize_accumulator, rescale_multiplier
from jaxdelegate.reference.kernel import Array, Kernel, Run, same_shape, without_specs
from jaxdelegate.reference.movement import require_one_scaling
from jaxdelegate.reference.quantization import quantization_of, require_symmetric

# ---- integers; quantized.py names the sources

_INT32 = np.dtype(np.int32)
_SUMMED, _MULTIPLIED = (np.int8, np.uint8, np.int16), (np.int8, np.int16)
_Axes = tuple[int, ...]


def _count(x: Array, axes: _Axes) -> int:
    return math.prod(x.shape[axis] for axis in axes)


def _reduced(x: Array, axes: _Axes) -> tuple[int, ...]:
    return tuple(n for axis, n in enumerate(x.shape) if axis not in axes)


def _scaled_sum(
    x_spec: TensorSpec, y_spec: TensorSpec, x: Array, axes: _Axes, multiplier: int, shift: int
) -> Array:
    source, target = (quantization_of("SUM", s, *_SUMMED) for s in (x_spec, y_spec))
    total = x.sum(axis=axes, dtype=np.int64) - tensor_zero_point(source) * _count(x, axes)
    bounds = integer_range(y_spec.dtype)
    return requantize_accumulator(
        wrap(total, _INT32), multiplier, shift, tensor_zero_point(target), bounds, y_spec.dtype
    )


def _multiplier(operator: str, x: TensorSpec, y: TensorSpec) -> tuple[int, int]:
    require_symmetric(operator, x, y)
    source = quantization_of(operator, x, *_SUMMED)
    return rescale_multiplier(source, quantization_of(operator, y, x.dtype))


def quantized_sum(x_spec: TensorSpec, y_spec: TensorSpec, x: Array, axes: _Axes) -> Array:
    """The sum of differences from the zero point, without the axes; 0 for an empty tensor."""
    multiplier, shift = _multiplier("SUM", x_spec, y_spec)
    if x.size == 0:
        return np.zeros(_reduced(x, axes), y_spec.dtype)
    if x.dtype != np.uint8:
        return _float_sum(x_spec, y_spec, x, axes)
    return _scaled_sum(x_spec, y_spec, x, axes, multiplier, shift)


@np.errstate(all="ignore")
def _float_sum(x_spec: TensorSpec, y_spec: TensorSpec, x: Array, axes: _Axes) -> Array:
    source, target = (quantization_of("SUM", s, *_SUMMED) for s in (x_spec, y_spec))
    scale = np.float32(tensor_scale(source)) / np.float32(tensor_scale(target))
    bias = np.float32(-tensor_zero_point(source)) * scale * np.float32(_count(x, axes))
    total = wrap(x.sum(axis=axes, dtype=np.int64), _INT32).astype(np.float32)
    y = round_half_away(total * scale + bias).astype(np.float64) + tensor_zero_point(target)
    low, high = integer_range(y_spec.dtype)
    return np.asarray(np.clip(y, low, high), y_spec.dtype)


def quantized_mean(x_spec: TensorSpec, y_spec: TensorSpec, x: Array, axes: _Axes) -> Array:
    """The multiplier includes the division by the count; stored 0 for an empty tensor."""
    multiplier, shift = _multiplier("MEAN", x_spec, y_spec)
    if x.size == 0:
        return np.zeros(_reduced(x, axes), y_spec.dtype)
    count = _count(x, axes)
    up = min(int(math.log2(count)), 32, 31 + shift)
    return _scaled_sum(x_spec, y_spec, x, axes, (multiplier << up) // count, shift - up)


def quantized_product(x_spec: TensorSpec, y_spec: TensorSpec, x: Array, axes: _Axes) -> Array:
    """The product in row-major order; every factor is rescaled by its part of the output's scale.

    An empty tensor gives stored 0; the kernel does not write the output.
    """
    require_symmetric("REDUCE_PROD", x_spec, y_spec)
    source = quantization_of("REDUCE_PROD", x_spec, *_MULTIPLIED)
    target = quantization_of("REDUCE_PROD", y_spec, x_spec.dtype)
    if x.size == 0:
        return np.zeros(_reduced(x, axes), y_spec.dtype)
    count = _count(x, axes)
    part = tensor_scale(source) / tensor_scale(target) ** (1.0 / count)
    multiplier, shift = quantize_multiplier(part)
    last = tuple(range(-len(axes), 0))
    factors = np.moveaxis(x, axes, last).reshape(*_reduced(x, axes), count)
    factors = factors.astype(np.int64) - tensor_zero_point(source)
    product = factors[..., 0]
    for i in range(1, count):
        product = multiply_by_quantized_multiplier_64(product * factors[..., i], multiplier, shift)
        product = product.astype(np.int64)
    bounds = integer_range(y_spec.dtype)
    return requantize_accumulator(
        product, multiplier, shift, tensor_zero_point(target), bounds, y_spec.dtype
    )


# ---- the operators

_NEEDS_SCALE = frozenset(np.dtype(t) for t in (np.int8, np.uint8, np.int16))


def refuse_quantized(operator: str, *specs: TensorSpec) -> None:
    for spec in specs:
        if spec.is_quantized:
            raise TypeError(f"{operator}: no kernel for quantized {spec.dtype} {spec.name!r}")


def accumulator(dtype: np.dtype) -> np.dtype:
    """Half-precision floats are summed in float32, anything else in its own dtype."""
    return np.dtype(np.float32) if dtype in HALVES else dtype


def _resolve(axes: Array, rank: int) -> tuple[int, ...]:
    """The axes, each once and not negative; a scalar has none."""
    if rank == 0:
        return ()
    resolved = set()
    for axis in axes.ravel().tolist():
        if not -rank <= axis < rank:
            raise ValueError(f"axis {axis} is outside rank {rank}")
        resolved.add(axis + rank if axis < 0 else axis)
    return tuple(sorted(resolved))


def reduced_shape(o: ReducerOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    x, axes = inputs[:2]
    if axes.const is None:
        return (None,)
    over = _resolve(axes.const, len(x.shape))
    kept = (1 if i in over else n for i, n in enumerate(x.shape) if i not in over or o.keep_dims)
    return (tuple(kept),)


def _check_scale(operator: str, x: TensorSpec) -> None:
    if x.dtype in _NEEDS_SCALE and not x.is_quantized:
        raise TypeError(f"{operator}: {x.dtype} {x.name!r} has no scale, which the kernel needs")


def _kept(y: Array, over: tuple[int, ...], o: ReducerOptions) -> Array:
    """`y`, which lacks the axes, with size 1 in their place if the options keep them."""
    return np.expand_dims(y, over) if o.keep_dims else y


def _total(o: ReducerOptions, x: Array, over: tuple[int, ...], dtype: np.dtype) -> Array:
    """The sum, value after value in the array's order, as the kernel rounds it.

    numpy.sum adds pairs along some axes, which is more exact.
    """
    if dtype not in FLOATS or not x.size or not over:
        return np.asarray(np.sum(x, axis=over, keepdims=o.keep_dims, dtype=dtype))
    front = np.moveaxis(x, over, range(len(over)))
    rest = front.shape[len(over) :]
    total = np.add.accumulate(front.reshape(-1, *rest), axis=0, dtype=dtype)[-1]
    return _kept(total, over, o)


@np.errstate(all="ignore")
def reduce_sum(
    o: ReducerOptions, inputs: Specs, outputs: Specs, x: Array, axes: Array
) -> tuple[Array]:
    """Integers wrap."""
    _check_scale("SUM", inputs[0])
    over = _resolve(axes, x.ndim)
    if inputs[0].is_quantized:
        return (_kept(quantized_sum(inputs[0], outputs[0], x, over), over, o),)
    return (_total(o, x, over, accumulator(x.dtype)).astype(outputs[0].dtype),)


@np.errstate(all="ignore")
def mean(o: ReducerOptions, inputs: Specs, outputs: Specs, x: Array, axes: Array) -> tuple[Array]:
    """Integers are summed in int64 and truncated. No values: NaN, or 0."""
    _check_scale("MEAN", inputs[0])
    over = _resolve(axes, x.ndim)
    if inputs[0].is_quantized:
        return (_kept(quantized_mean(inputs[0], outputs[0], x, over), over, o),)
    count = int(np.prod([x.shape[a] for a in over], dtype=np.int64))
    if x.dtype in FLOATS:
        total = _total(o, x, over, accumulator(x.dtype))
        return (np.asarray(total / np.asarray(count, total.dtype), outputs[0].dtype),)
    total = np.asarray(np.sum(x, axis=over, keepdims=o.keep_dims, dtype=np.int64))
    if count == 0:
        return (np.zeros(total.shape, outputs[0].dtype),)
    toward_zero = total // count + ((total % count != 0) & (total < 0))
    return (toward_zero.astype(outputs[0].dtype),)


@np.errstate(all="ignore")
def reduce_prod(
    o: ReducerOptions, inputs: Specs, outputs: Specs, x: Array, axes: Array
) -> tuple[Array]:
    """Integers wrap."""
    over = _resolve(axes, x.ndim)
    if inputs[0].is_quantized:
        return (_kept(quantized_product(inputs[0], outputs[0], x, over), over, o),)
    y = np.prod(x, axis=over, keepdims=o.keep_dims, dtype=accumulator(x.dtype))
    return (np.asarray(y, outputs[0].dtype),)


def _extreme(o: ReducerOptions, x: Array, axes: Array, reduce: np.ufunc, worst: float) -> Array:
    """`reduce` is fmax or fmin: a comparison with NaN never replaces the best so far.

    The start is the worst finite value, or the first value if all axes are reduced.
    """
    over = _resolve(axes, x.ndim)
    first = x.ravel()[:1] if len(over) == x.ndim and x.size else None
    if first is not None and _is_nan(first).all():
        return first.reshape((1,) * x.ndim if o.keep_dims else ())
    start = np.asarray(worst, x.dtype) if first is None else first[0]
    return np.asarray(reduce.reduce(x, axis=over, keepdims=o.keep_dims, initial=start))


def _is_nan(x: Array) -> Array:
    return np.isnan(x) if x.dtype in FLOATS else np.zeros(x.shape, bool)


def reduce_max(
    o: ReducerOptions, inputs: Specs, outputs: Specs, x: Array, axes: Array
) -> tuple[Array]:
    """An empty tensor has the dtype's lowest value."""
    require_one_scaling("REDUCE_MAX", inputs[0], outputs[0])
    return (_extreme(o, x, axes, np.fmax, limits(x.dtype)[0]).astype(outputs[0].dtype),)


def reduce_min(
    o: ReducerOptions, inputs: Specs, outputs: Specs, x: Array, axes: Array
) -> tuple[Array]:
    """An empty tensor has the dtype's highest value."""
    require_one_scaling("REDUCE_MIN", inputs[0], outputs[0])
    return (_extreme(o, x, axes, np.fmin, limits(x.dtype)[1]).astype(outputs[0].dtype),)


def limits(dtype: np.dtype) -> tuple[float, float]:
    """The lowest and the highest finite value."""
    if dtype in FLOATS:
        info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        return float(info.min), float(info.max)
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def reduce_any(o: ReducerOptions, x: Array, axes: Array) -> Array:
    return np.asarray(np.any(x, axis=_resolve(axes, x.ndim), keepdims=o.keep_dims))


def reduce_all(o: ReducerOptions, x: Array, axes: Array) -> Array:
    return np.asarray(np.all(x, axis=_resolve(axes, x.ndim), keepdims=o.keep_dims))


def arg_shape(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    x, axis = inputs[:2]
    if axis.const is None:
        return (None,)
    gone = _resolve(axis.const, len(x.shape))
    return (tuple(n for i, n in enumerate(x.shape) if i not in gone),)


def _arg(better: np.ufunc) -> Run:
    def kernel(_o: Options, _i: Specs, outputs: Specs, x: Array, axis: Array) -> tuple[Array]:
        rows = np.moveaxis(x, int(axis.ravel()[0]), 0)
        if not len(rows):
            raise ValueError("no values along the axis")
        best, index = rows[0], np.zeros(rows.shape[1:], outputs[0].dtype)
        for i, row in enumerate(rows[1:], 1):
            # NaN never replaces a number, and a number replaces NaN.
            replaces = ~_is_nan(row) & (better(row, best) | _is_nan(best))
            best, index = np.where(replaces, row, best), np.where(replaces, i, index)
        return (np.asarray(index, outputs[0].dtype),)

    return kernel


arg_max, arg_min = _arg(np.greater), _arg(np.less)


@np.errstate(all="ignore")
def cumsum(o: CumsumOptions, inputs: Specs, outputs: Specs, x: Array, axis: Array) -> tuple[Array]:
    """Running sums up to a value, or up to the one before it; or from the end."""
    refuse_quantized("CUMSUM", inputs[0])
    rows = np.moveaxis(x, int(axis.ravel()[0]), 0).astype(accumulator(x.dtype))
    rows = rows[::-1] if o.reverse else rows
    sums = np.cumsum(rows, axis=0, dtype=rows.dtype)
    if o.exclusive:
        sums = np.concatenate([np.zeros_like(sums[:1]), sums[:-1]])
    sums = sums[::-1] if o.reverse else sums
    return (np.moveaxis(sums, 0, int(axis.ravel()[0])).astype(outputs[0].dtype),)


KERNELS = {
    "MEAN": Kernel(mean, reduced_shape),
    "SUM": Kernel(reduce_sum, reduced_shape),
    "REDUCE_PROD": Kernel(reduce_prod, reduced_shape),
    "REDUCE_MAX": Kernel(reduce_max, reduced_shape),
    "REDUCE_MIN": Kernel(reduce_min, reduced_shape),
    "REDUCE_ANY": Kernel(without_specs(reduce_any), reduced_shape),
    "REDUCE_ALL": Kernel(without_specs(reduce_all), reduced_shape),
    "ARG_MAX": Kernel(arg_max, arg_shape),
    "ARG_MIN": Kernel(arg_min, arg_shape),
    "CUMSUM": Kernel(cumsum, same_shape),
}
