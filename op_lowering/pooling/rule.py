"""Pools: AVERAGE_POOL_2D, MAX_POOL_2D, L2_POOL_2D; TensorFlow's custom AvgPool3D and MaxPool3D."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.algorithms import chosen
from jaxdelegate.op_lowering.common.basics import finite
from jaxdelegate.op_lowering.common.derivatives import root
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
from jaxdelegate.op_lowering.pooling.quantized import fused_activation, why_not_pooled
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.records.enums import Padding
from jaxdelegate.op_lowering.records.protocols import Pool2D
from jaxdelegate.op_lowering.rule import (
    Algorithms,
    Function,
    Lower,
    LoweringContext,
    OpRule,
    WhyNot,
    first_reason,
    table,
)
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec

_INTEGERS = frozenset(np.dtype(t) for t in (np.uint8, np.int8, np.int16))
_FEW_TAPS = 16  # on a CPU: windows that do not overlap are read in one fused loop up to here
_LONGEST_SUM = 64  # beyond, that loop is not even an alternative


@dataclasses.dataclass(frozen=True)
class _Pool:
    """What a pool does with the values under its window."""

    dtypes: frozenset[np.dtype]
    fold: "_Fold"
    enter: Callable[[jax.Array, LoweringContext], jax.Array]  # before folding
    # (folded, how many values each window read) -> result
    leave: Callable[[jax.Array, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class _Fold:
    """An associative way to put two values together."""

    pair: Callable[[jax.Array, jax.Array], jax.Array]
    lax_pair: Callable[[jax.Array, jax.Array], jax.Array]
    over: Callable[..., jax.Array]  # reduction over axes
    identity: Callable[[np.dtype], Any]


def _bottom(dtype: np.dtype) -> Any:
    return -np.inf if dtype in FLOATS else np.iinfo(dtype).min


def _sum(x: jax.Array, axis: tuple[int, ...], *, keepdims: bool) -> jax.Array:
    """In the dtype of `x`: numpy's rule would add up int32 in int64."""
    return jnp.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


_SUM = _Fold(jnp.add, lax.add, _sum, lambda _dtype: 0)
_MAXIMUM = _Fold(jnp.maximum, lax.max, jnp.max, _bottom)


def _accumulate(x: jax.Array, context: LoweringContext) -> jax.Array:
    dtype = np.dtype(x.dtype)
    return x.astype(np.int32 if dtype in _INTEGERS else context.precision.accumulator(dtype))


def _squares(x: jax.Array, context: LoweringContext) -> jax.Array:
    return jnp.square(_accumulate(x, context))


def numbers(x: jax.Array) -> jax.Array:
    """NaN and -infinity become the lowest number: kernels begin there and take what is greater."""
    if np.dtype(x.dtype) in _INTEGERS:
        return x
    bottom = jnp.asarray(lowest(x.dtype), x.dtype)
    return jnp.where(x > bottom, x, bottom)


def lowest(dtype: np.dtype) -> Any:
    """The most negative finite number of a float dtype."""
    return ml_dtypes.finfo(dtype).min  # type: ignore[no-untyped-call]


def _mean(total: jax.Array, count: jax.Array) -> jax.Array:
    """A quotient; integers round half away from zero, as reference/integer_ops/pooling.h has it."""
    if not jnp.issubdtype(total.dtype, jnp.integer):
        return total / count
    return jnp.sign(total) * ((jnp.abs(total) + count // 2) // count)


def _root_mean(total: jax.Array, count: jax.Array) -> jax.Array:
    return root(total / count)


_AVERAGE = _Pool(PRODUCT_FLOATS | _INTEGERS, _SUM, _accumulate, _mean)
_MAX = _Pool(PRODUCT_FLOATS | _INTEGERS, _MAXIMUM, lambda x, _c: numbers(x), lambda y, _count: y)
_L2 = _Pool(PRODUCT_FLOATS, _SUM, _squares, _root_mean)


_PoolT = TypeVar("_PoolT", bound=Pool2DOptions | Pool3DOptions)
_Geometry = Callable[[_PoolT, Shape], Windows]


def windows_2d(o: Pool2D, x: Shape) -> Windows:
    """The windows of Pool2DOptions, or of MediaPipe's pools, over [N, H, W, C]."""
    return (
        Window(x[1], o.filter_height, o.stride_h, o.padding),
        Window(x[2], o.filter_width, o.stride_w, o.padding),
    )


def tensorflow_windows(o: TensorFlowPoolOptions, x: Shape) -> Windows:
    """The windows of a TensorFlow pool, whose `ksize` and `strides` name every dimension."""
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


def _why_not(pool: _Pool, geometry: _Geometry[_PoolT], rank: int) -> WhyNot[_PoolT]:
    def why_not(_context: LoweringContext, o: _PoolT, inputs: Specs, outputs: Specs) -> str | None:
        x = inputs[0]
        activation = getattr(o, "fused_activation_function", Act.NONE)
        reason = first_reason(
            why_not_pooled(x, outputs[0], pool.dtypes, activation),
            why_not_fused(activation),
            None if len(x.shape) == rank else f"input {list(x.shape)} must have {rank} dimensions",
            why_not_tensorflow(o, rank) if isinstance(o, Pool3DOptions) else None,
        )
        return reason or first_reason(
            _why_not_integer(x, activation), why_not_windows(geometry(o, x.shape))
        )

    return why_not


def _why_not_integer(x: TensorSpec, activation: Act) -> str | None:
    if x.dtype in _INTEGERS and not x.is_quantized and activation is not Act.NONE:
        return f"a fused {activation.name} on {x.dtype} needs a scale, and {x.name!r} has none"
    return None


def _lower(pool: _Pool, geometry: _Geometry[_PoolT]) -> Lower[_PoolT]:
    def lower(context: LoweringContext, o: _PoolT, inputs: Specs, outputs: Specs) -> Function:
        windows = geometry(o, inputs[0].shape)
        if 0 in (*inputs[0].shape, *(w.n_out for w in windows)):
            return nothing(outputs)
        count = _count(windows)
        slide = chosen(_algorithms(context.platform, windows), context.algorithm)
        activation = fused_activation(getattr(o, "fused_activation_function", Act.NONE), outputs[0])

        def pooled(x: jax.Array) -> tuple[jax.Array]:  # [N, *spatial, C] -> [N, *out, C]
            folded = slide(pool.fold, pool.enter(x, context), windows)
            y = pool.leave(folded, jnp.asarray(count, folded.dtype))
            return (activation(finite(y)).astype(outputs[0].dtype),)

        return pooled

    return lower


def _offered(geometry: _Geometry[_PoolT]) -> Algorithms[_PoolT]:
    def algorithms(
        context: LoweringContext, o: _PoolT, inputs: Specs, _outputs: Specs
    ) -> Mapping[str, "_Slide"]:
        windows = geometry(o, inputs[0].shape)
        if 0 in (*inputs[0].shape, *(w.n_out for w in windows)):
            return {}
        return _algorithms(context.platform, windows)

    return algorithms


def _count(windows: Windows) -> np.ndarray:
    """How many values of the image each window reads, [1, *out, 1]."""
    per_axis = []
    for w in windows:
        first = np.arange(w.n_out) * w.stride - w.pads[0]
        per_axis.append(np.minimum(first + w.size, w.n_in) - np.maximum(first, 0))
    return functools.reduce(np.multiply.outer, per_axis)[None, ..., None]


_Slide = Callable[[_Fold, jax.Array, Windows], jax.Array]


def _algorithm(platform: str, windows: Windows) -> _Slide:
    """How to slide on this platform. XLA:CPU's reduce-window is slow in two dimensions."""
    if all(w.is_whole for w in windows):
        return _whole
    if platform != "cpu":
        return _reduce_window
    apart = all(w.stride >= w.size for w in windows)
    few = math.prod(w.size for w in windows) <= _FEW_TAPS
    return _tap_by_tap if apart and few else _axis_by_axis


def _algorithms(platform: str, windows: Windows) -> Mapping[str, _Slide]:
    """All of them that can be worth measuring, the default first."""
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
    """One fused loop over strided slices."""
    padded = pad_windows(x, windows, fold.identity(np.dtype(x.dtype)))
    slices = (read_tap(padded, windows, tap) for tap in taps(windows))
    folded: jax.Array = functools.reduce(fold.pair, slices)
    return folded


def _axis_by_axis(fold: _Fold, x: jax.Array, windows: Windows) -> jax.Array:
    """H + W steps instead of H * W, over a copy that needs no bounds."""
    x = pad_windows(x, windows, fold.identity(np.dtype(x.dtype)))
    for axis, window in enumerate(windows):
        passes = [Window(n, 1, 1, Padding.VALID) for n in x.shape[1:-1]]
        passes[axis] = dataclasses.replace(window, n_in=x.shape[1 + axis], padding=Padding.VALID)
        x = _reduce_window(fold, x, tuple(passes))
    folded: jax.Array = x
    return folded


AVERAGE_POOL_2D = OpRule(
    "AVERAGE_POOL_2D",
    Pool2DOptions,
    3,
    _why_not(_AVERAGE, windows_2d, 4),
    _lower(_AVERAGE, windows_2d),
    algorithms=_offered(windows_2d),
)
MAX_POOL_2D = OpRule(
    "MAX_POOL_2D",
    Pool2DOptions,
    3,
    _why_not(_MAX, windows_2d, 4),
    _lower(_MAX, windows_2d),
    algorithms=_offered(windows_2d),
)
L2_POOL_2D = OpRule(
    "L2_POOL_2D",
    Pool2DOptions,
    1,
    _why_not(_L2, windows_2d, 4),
    _lower(_L2, windows_2d),
    algorithms=_offered(windows_2d),
)
AVG_POOL_3D = OpRule(
    "AvgPool3D",
    Pool3DOptions,
    1,
    _why_not(_AVERAGE, tensorflow_windows, 5),
    _lower(_AVERAGE, tensorflow_windows),
    algorithms=_offered(tensorflow_windows),
)
MAX_POOL_3D = OpRule(
    "MaxPool3D",
    Pool3DOptions,
    1,
    _why_not(_MAX, tensorflow_windows, 5),
    _lower(_MAX, tensorflow_windows),
    algorithms=_offered(tensorflow_windows),
)

RULES = table(AVERAGE_POOL_2D, MAX_POOL_2D, L2_POOL_2D, AVG_POOL_3D, MAX_POOL_3D)
