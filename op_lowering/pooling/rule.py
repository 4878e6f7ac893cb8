"""Pools: AVERAGE_POOL_2D, MAX_POOL_2D, L2_POOL_2D; TensorFlow's custom AvgPool3D and MaxPool3D."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common import basics, quantization
from jaxdelegate.op_lowering.common.algorithms import chosen
from jaxdelegate.op_lowering.common.basics import finite
from jaxdelegate.op_lowering.common.derivatives import derived_as, root
from jaxdelegate.op_lowering.common.products import PRODUCT_FLOATS, nothing, why_not_fused
from jaxdelegate.op_lowering.common.window import (
    Window,
    Windows,
    pad_windows,
    read_tap,
    taps,
    why_not_windows,
)
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.pooling.options import (
    Pool2DOptions,
    Pool3DOptions,
    TensorFlowPoolOptions,
)
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType, Padding
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.records.record import Pool2D
from jaxdelegate.op_lowering.rule import (
    Function,
    LoweringContext,
    Op,
    OpRule,
    first_reason,
    rule,
    table,
    why_not_dtype,
    why_not_result,
)
from jaxdelegate.op_lowering.spec import Shape, TensorSpec
from jaxdelegate.quant.params import activation_range, integer_range

# ---- integers: int8, uint8 and int16
#
# Input and output share a scale, so a pool reduces the stored integers; only the fused activation
# depends on the scale. Semantics: kernels/pooling.cc, pooling3d.cc, and pooling.h and
# integer_ops/pooling.h of kernels/internal/reference.

_SCALE_TOLERANCE = 1e-6  # kernels/pooling.cc


def why_not_pooled(
    x: TensorSpec, y: TensorSpec, dtypes: frozenset[np.dtype], activation: ActivationFunctionType
) -> str | None:
    """`dtypes` are the operator's inputs."""
    if not x.is_quantized:
        return why_not_dtype(x, dtypes) or why_not_result(y, x.dtype)
    return (
        quantization.why_not_same(x, y, dtypes & _INTEGERS)
        or _why_not_one_scale(x, y)
        or quantization.why_not_activation_range(activation, y)
    )


def _why_not_one_scale(x: TensorSpec, y: TensorSpec) -> str | None:
    apart = abs(quantization.scale_of(x) - quantization.scale_of(y))
    if apart <= _SCALE_TOLERANCE and quantization.zero_point_of(x) == quantization.zero_point_of(y):
        return None
    return f"{x.name!r} and {y.name!r} are quantized differently; pools do not requantize"


def fused_activation(
    activation: ActivationFunctionType, y: TensorSpec
) -> Callable[[jax.Array], jax.Array]:
    if not y.is_quantized:
        return basics.fused_activation(activation)
    low, high = activation_range(activation, quantization.quantization_of(y), y.dtype)
    if (low, high) == integer_range(y.dtype):
        return lambda pooled: pooled
    return lambda pooled: basics.clamp(pooled, low, high)


# ---- reductions of windows

_INTEGERS = frozenset(np.dtype(t) for t in (np.uint8, np.int8, np.int16))
_FEW_TAPS = 16  # a CPU reads windows that do not overlap in one fused loop up to this size
_LONGEST_SUM = 64  # beyond this size that loop is not a candidate


@dataclasses.dataclass(frozen=True)
class _Reduction:
    dtypes: frozenset[np.dtype]
    fold: "_Fold"
    before: Callable[[jax.Array, LoweringContext], jax.Array]
    # (folded, the number of values that each window read) -> result
    after: Callable[[jax.Array, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class _Fold:
    """An associative function of two values."""

    pair: Callable[[jax.Array, jax.Array], jax.Array]
    lax_pair: Callable[[jax.Array, jax.Array], jax.Array]
    over: Callable[..., jax.Array]  # reduction over axes
    identity: Callable[[np.dtype], Any]


def _bottom(dtype: np.dtype) -> Any:
    return -np.inf if dtype in FLOATS else np.iinfo(dtype).min


def _sum(x: jax.Array, axis: tuple[int, ...], *, keepdims: bool) -> jax.Array:
    # In the dtype of `x`: numpy's rule would add up int32 in int64.
    return jnp.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


_SUM = _Fold(jnp.add, lax.add, _sum, lambda _dtype: 0)
# The first of equal values has the slope, as in TensorFlow, PyTorch and `lax.reduce_window`.
largest = derived_as(jnp.maximum, lambda x, y: jnp.where(x >= y, x, y))
_MAXIMUM = _Fold(largest, lax.max, jnp.max, _bottom)


def _accumulate(x: jax.Array, context: LoweringContext) -> jax.Array:
    dtype = np.dtype(x.dtype)
    return x.astype(np.int32 if dtype in _INTEGERS else context.precision.accumulator(dtype))


def _squares(x: jax.Array, context: LoweringContext) -> jax.Array:
    return jnp.square(_accumulate(x, context))


def numbers(x: jax.Array) -> jax.Array:
    """NaN and -infinity become the lowest number, with which kernels initialize a maximum."""
    if np.dtype(x.dtype) in _INTEGERS:
        return x
    bottom = jnp.asarray(lowest(x.dtype), x.dtype)
    return jnp.where(x > bottom, x, bottom)


def lowest(dtype: np.dtype) -> Any:
    return ml_dtypes.finfo(dtype).min  # type: ignore[no-untyped-call]


def _mean(total: jax.Array, count: jax.Array) -> jax.Array:
    """Quotients; integers round half away from zero, as in reference/integer_ops/pooling.h."""
    if not jnp.issubdtype(total.dtype, jnp.integer):
        return total / count
    return jnp.sign(total) * ((jnp.abs(total) + count // 2) // count)


def _root_mean(total: jax.Array, count: jax.Array) -> jax.Array:
    return root(total / count)


_AVERAGE = _Reduction(PRODUCT_FLOATS | _INTEGERS, _SUM, _accumulate, _mean)
_MAX = _Reduction(
    PRODUCT_FLOATS | _INTEGERS, _MAXIMUM, lambda x, _c: numbers(x), lambda y, _count: y
)
_L2 = _Reduction(PRODUCT_FLOATS, _SUM, _squares, _root_mean)

_OptionsT = TypeVar("_OptionsT", bound=Pool2DOptions | Pool3DOptions)


def windows_2d(o: Pool2D, x: Shape) -> Windows:
    """The windows over [N, H, W, C]."""
    return (
        Window(x[1], o.filter_height, o.stride_h, o.padding),
        Window(x[2], o.filter_width, o.stride_w, o.padding),
    )


def tensorflow_windows(o: TensorFlowPoolOptions, x: Shape) -> Windows:
    """`ksize` and `strides` name every dimension."""
    sizes = zip(x[1:-1], o.ksize[1:-1], o.strides[1:-1], strict=True)
    return tuple(Window(n, size, stride, Padding[o.padding]) for n, size, stride in sizes)


def why_not_tensorflow(o: TensorFlowPoolOptions, rank: int) -> str | None:
    """A reason for a TensorFlow pool over batches or channels, or with malformed attributes."""
    if o.padding not in Padding.__members__:
        return f"padding is {o.padding!r}, neither 'SAME' nor 'VALID'"
    for name, sizes in (("ksize", o.ksize), ("strides", o.strides)):
        if len(sizes) != rank or sizes[0] != 1 or sizes[-1] != 1:
            return f"{name} {list(sizes)} must have {rank} entries, the first and the last 1"
    if isinstance(o, Pool3DOptions) and o.data_format != "NDHWC":
        return f"data_format {o.data_format!r} is not NDHWC"
    return None


@dataclasses.dataclass(frozen=True)
class _Pool(Generic[_OptionsT]):
    reduction: _Reduction
    geometry: Callable[[_OptionsT, Shape], Windows]
    rank: int

    def rule(self, name: str, max_version: int) -> OpRule[_OptionsT]:
        return rule(name, max_version, self.why_not, self.lower, algorithms=self.algorithms)

    def why_not(self, op: Op[_OptionsT]) -> str | None:
        x, y, rank = op.inputs[0], op.outputs[0], self.rank
        activation = _activation(op.options)
        reason = first_reason(
            why_not_pooled(x, y, self.reduction.dtypes, activation),
            why_not_fused(activation),
            None if len(x.shape) == rank else f"input {list(x.shape)} must have {rank} dimensions",
            why_not_tensorflow(op.options, rank) if isinstance(op.options, Pool3DOptions) else None,
        )
        return reason or first_reason(
            _why_not_integer(x, activation), why_not_windows(self.geometry(op.options, x.shape))
        )

    def lower(self, op: Op[_OptionsT]) -> Function:
        windows = self._windows(op)
        if windows is None:
            return nothing(op.outputs)
        context, y_spec, reduction = op.context, op.outputs[0], self.reduction
        count = _count(windows)
        algorithm = chosen(_algorithms(context.platform, windows), context.algorithm)
        slide = _derived(algorithm, reduction.fold, windows)
        activate = fused_activation(_activation(op.options), y_spec)

        def pool(x: jax.Array) -> tuple[jax.Array]:  # [N, *spatial, C] -> [N, *out, C]
            folded = slide(reduction.before(x, context))
            y = reduction.after(folded, jnp.asarray(count, folded.dtype))
            return (activate(finite(y)).astype(y_spec.dtype),)

        return pool

    def algorithms(self, op: Op[_OptionsT]) -> Mapping[str, "_Slide"]:
        windows = self._windows(op)
        return {} if windows is None else _algorithms(op.context.platform, windows)

    def _windows(self, op: Op[_OptionsT]) -> Windows | None:
        x = op.inputs[0].shape
        windows = self.geometry(op.options, x)
        return None if 0 in (*x, *(w.n_out for w in windows)) else windows


def _activation(options: Pool2DOptions | Pool3DOptions) -> Act:
    return options.fused_activation_function if isinstance(options, Pool2DOptions) else Act.NONE


def _why_not_integer(x: TensorSpec, activation: Act) -> str | None:
    if x.dtype in _INTEGERS and not x.is_quantized and activation is not Act.NONE:
        return f"a fused {activation.name} on {x.dtype} needs a scale, and {x.name!r} has none"
    return None


def _count(windows: Windows) -> np.ndarray:
    """The number of values of the image that each window reads, [1, *out, 1]."""
    per_axis = []
    for w in windows:
        first = np.arange(w.n_out) * w.stride - w.pads[0]
        per_axis.append(np.minimum(first + w.size, w.n_in) - np.maximum(first, 0))
    return functools.reduce(np.multiply.outer, per_axis)[None, ..., None]


_Slide = Callable[[_Fold, jax.Array, Windows], jax.Array]


def _algorithm(platform: str, windows: Windows) -> _Slide:
    """XLA:CPU's reduce-window is slow in two dimensions."""
    if all(w.is_whole for w in windows):
        return _whole
    if platform != "cpu":
        return _reduce_window
    apart = all(w.stride >= w.size for w in windows)
    few = math.prod(w.size for w in windows) <= _FEW_TAPS
    return _tap_by_tap if apart and few else _axis_by_axis


def _algorithms(platform: str, windows: Windows) -> Mapping[str, _Slide]:
    default = _algorithm(platform, windows)
    algorithms = {"reduce_window": _reduce_window, "axis_by_axis": _axis_by_axis}
    if math.prod(w.size for w in windows) <= _LONGEST_SUM:
        algorithms["tap_by_tap"] = _tap_by_tap
    if all(w.is_whole for w in windows):
        algorithms["whole"] = _whole
    first = next(name for name, slide in algorithms.items() if slide is default)
    return {first: default} | algorithms


def _whole(fold: _Fold, x: jax.Array, windows: Windows) -> jax.Array:
    """Windows that cover the image (global pools)."""
    folded: jax.Array = fold.over(x, axis=tuple(range(1, 1 + len(windows))), keepdims=True)
    return folded.astype(x.dtype)


def _reduce_window(fold: _Fold, x: jax.Array, windows: Windows) -> jax.Array:
    folded: jax.Array = lax.reduce_window(
        x,
        np.asarray(fold.identity(np.dtype(x.dtype)), x.dtype),
        fold.lax_pair,
        (1, *(w.size for w in windows), 1),
        (1, *(w.stride for w in windows), 1),
        [(0, 0), *(w.pads for w in windows), (0, 0)],
    )
    return folded


def _tap_by_tap(fold: _Fold, x: jax.Array, windows: Windows) -> jax.Array:
    padded = pad_windows(x, windows, fold.identity(np.dtype(x.dtype)))
    slices = (read_tap(padded, windows, tap) for tap in taps(windows))
    folded: jax.Array = functools.reduce(fold.pair, slices)
    return folded


def _axis_by_axis(fold: _Fold, x: jax.Array, windows: Windows) -> jax.Array:
    """H + W steps instead of H * W, over a padded copy."""
    x = pad_windows(x, windows, fold.identity(np.dtype(x.dtype)))
    for axis, window in enumerate(windows):
        passes = [Window(n, 1, 1, Padding.VALID) for n in x.shape[1:-1]]
        passes[axis] = dataclasses.replace(window, n_in=x.shape[1 + axis], padding=Padding.VALID)
        x = _reduce_window(fold, x, tuple(passes))
    folded: jax.Array = x
    return folded


def _derived(slide: _Slide, fold: _Fold, windows: Windows) -> Callable[[jax.Array], jax.Array]:
    """`slide`, with the slope of a maximum at the first of its equal values in row-major order."""
    if fold is not _MAXIMUM or slide in (_tap_by_tap, _reduce_window):
        return lambda x: slide(fold, x, windows)
    is_short = math.prod(w.size for w in windows) <= _LONGEST_SUM
    like = _tap_by_tap if is_short else _reduce_window
    return derived_as(lambda x: slide(fold, x, windows), lambda x: like(fold, x, windows))


RULES = table(
    _Pool[Pool2DOptions](_AVERAGE, windows_2d, 4).rule("AVERAGE_POOL_2D", 3),
    _Pool[Pool2DOptions](_MAX, windows_2d, 4).rule("MAX_POOL_2D", 3),
    _Pool[Pool2DOptions](_L2, windows_2d, 4).rule("L2_POOL_2D", 1),
    _Pool[Pool3DOptions](_AVERAGE, tensorflow_windows, 5).rule("AvgPool3D", 1),
    _Pool[Pool3DOptions](_MAX, tensorflow_windows, 5).rule("MaxPool3D", 1),
)
