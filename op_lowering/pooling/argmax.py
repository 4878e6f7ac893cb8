"""Custom pools that return the position of each maximum, and their inverse.

MaxPoolWithArgmax (TensorFlow), MaxPoolingWithArgmax2D and MaxUnpooling2D (MediaPipe). A position is
a flat index into the image [H, W, C], or an index into the window [h, w], mostly as float32.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.common.basics import finite, fused_activation
from jaxdelegate.op_lowering.common.movement import with_last
from jaxdelegate.op_lowering.common.products import nothing, why_not_floats, why_not_fused
from jaxdelegate.op_lowering.common.window import (
    Windows,
    pad_windows,
    read_tap,
    taps,
    why_not_windows,
)
from jaxdelegate.op_lowering.pooling.options import MaxPoolWithArgmaxOptions, PoolParamsOptions
from jaxdelegate.op_lowering.pooling.rule import (
    largest,
    lowest,
    numbers,
    tensorflow_windows,
    why_not_tensorflow,
    windows_2d,
)
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType
from jaxdelegate.op_lowering.rule import Function, Op, first_reason, rule, table, why_not_dtype
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec

_FRACTION = 0.1  # MediaPipe adds it to a float index, so that truncation finds the integer again

# The tap that read each maximum, -1 for none -> the position that the operator returns.
_Position = Callable[[jax.Array], jax.Array]


def _why_not_image(x: TensorSpec) -> str | None:
    return None if len(x.shape) == 4 else f"input {list(x.shape)} must have 4 dimensions"


def _why_not_positions(x: TensorSpec, outputs: Specs, *dtypes: type) -> str | None:
    if len(outputs) != 2:
        return f"{len(outputs)} outputs instead of values and positions"
    return first_reason(why_not_floats(x, outputs[0]), why_not_dtype(outputs[1], *dtypes))


def _why_not_tensorflow(op: Op[MaxPoolWithArgmaxOptions]) -> str | None:
    x = op.inputs[0]
    reason = first_reason(
        _why_not_positions(x, op.outputs, np.int32, np.int64),
        _why_not_image(x),
        why_not_tensorflow(op.options, 4),
    )
    return reason or why_not_windows(tensorflow_windows(op.options, x.shape))


def _lower_tensorflow(op: Op[MaxPoolWithArgmaxOptions]) -> Function:
    o, (n, h, w, c) = op.options, op.inputs[0].shape
    windows = tensorflow_windows(o, op.inputs[0].shape)
    dtype = op.outputs[1].dtype
    top, left = (np.arange(d.n_out, dtype=dtype) * d.stride - d.pads[0] for d in windows)
    image = np.arange(n, dtype=dtype) * (h * w * c if o.include_batch_in_index else 0)
    corner = image.reshape(-1, 1, 1, 1) + np.arange(c, dtype=dtype)

    def position(tap: jax.Array) -> jax.Array:  # the image's corner if no value is a number
        tap = tap.astype(dtype)
        y = top.reshape(1, -1, 1, 1) + tap // windows[1].size
        x = left.reshape(1, 1, -1, 1) + tap % windows[1].size
        return jnp.where(tap < 0, 0, (y * w + x) * c) + corner

    return _with_argmax(windows, position, ActivationFunctionType.NONE, op.outputs)


def _why_not_mediapipe(op: Op[PoolParamsOptions]) -> str | None:
    x = op.inputs[0]
    reason = first_reason(
        _why_not_positions(x, op.outputs, np.float32, np.int32),
        why_not_fused(op.options.fused_activation_function),
        _why_not_image(x),
    )
    return reason or why_not_windows(windows_2d(op.options, x.shape))


def _lower_mediapipe(op: Op[PoolParamsOptions]) -> Function:
    dtype = op.outputs[1].dtype
    fraction = dtype.type(_FRACTION if dtype == np.float32 else 0)

    def position(tap: jax.Array) -> jax.Array:
        index: jax.Array = jnp.maximum(tap, 0).astype(dtype) + fraction
        return index

    windows = windows_2d(op.options, op.inputs[0].shape)
    return _with_argmax(windows, position, op.options.fused_activation_function, op.outputs)


def _with_argmax(
    windows: Windows, position: _Position, activation: ActivationFunctionType, outputs: Specs
) -> Function:
    """The first maxima in row-major order (kernels/perception/max_pool_with_argmax.cc)."""
    values = outputs[0]
    if 0 in values.shape:
        return nothing(outputs)

    def argmax_pool(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        padded = pad_windows(numbers(x), windows, -np.inf)
        best = jnp.full(values.shape, lowest(x.dtype), x.dtype)
        where = jnp.full(values.shape, -1, jnp.int32)
        for i, tap in enumerate(taps(windows)):
            value = read_tap(padded, windows, tap)
            where = jnp.where(value > best, i, where)
            best = largest(best, value)
        best = finite(fused_activation(activation)(best))
        return best.astype(values.dtype), position(where)

    return argmax_pool


def _why_not_unpool(op: Op[PoolParamsOptions]) -> str | None:
    x, positions = op.inputs[:2]
    reason = first_reason(
        why_not_floats(x, op.outputs[0]),
        why_not_dtype(positions, np.float32, np.int32),
        _why_not_image(x),
        None if x.shape == positions.shape else "values and positions must have one shape",
    )
    return reason or why_not_windows(windows_2d(op.options, x.shape))


def _lower_unpool(op: Op[PoolParamsOptions]) -> Function:
    (x_spec, positions_spec), y, o = op.inputs[:2], op.outputs[0], op.options
    if 0 in y.shape:
        return nothing(op.outputs)
    if positions_spec.dtype == np.int32:
        return lambda x, positions: (_scatter(x, positions, y),)
    if (o.filter_height, o.filter_width) == (o.stride_h, o.stride_w):
        return lambda x, positions: (_fill_tiles(o, x, positions, y),)
    origins = _origins(o, x_spec.shape)
    return lambda x, positions: (_scatter(x, _flat_positions(o, origins, positions, y.shape), y),)


def _fill_tiles(
    o: PoolParamsOptions, x: jax.Array, positions: jax.Array, y: TensorSpec
) -> jax.Array:
    """Fill windows that tile the output: every other value of a window is zero."""
    n, h, w, c = x.shape
    inside = jnp.arange(o.filter_height * o.filter_width, dtype=jnp.int32)
    inside = inside.reshape(1, 1, o.filter_height, 1, o.filter_width, 1)
    named = positions.astype(jnp.int32).reshape(n, h, 1, w, 1, c) == inside
    tiles = jnp.where(named, x.reshape(n, h, 1, w, 1, c), jnp.zeros((), x.dtype))
    return tiles.reshape(y.shape).astype(y.dtype)


def _origins(o: PoolParamsOptions, x: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Where each window starts in the output, which is as large as all windows side by side."""
    sizes = zip(x[1:3], (o.filter_height, o.filter_width), (o.stride_h, o.stride_w), strict=True)
    rows, columns = (
        np.arange(n) * stride - max((n - 1) * (stride - window), 0) // 2
        for n, window, stride in sizes
    )
    return rows.reshape(1, -1, 1, 1), columns.reshape(1, 1, -1, 1)


def _flat_positions(
    o: PoolParamsOptions, origins: tuple[np.ndarray, np.ndarray], positions: jax.Array, y: Shape
) -> jax.Array:
    """Window indices -> indices into the output image; -1 outside of it."""
    within = positions.astype(jnp.int32)
    rows = jnp.asarray(origins[0], jnp.int32) + within // o.filter_width
    columns = jnp.asarray(origins[1], jnp.int32) + within % o.filter_width
    flat = (rows * y[2] + columns) * y[3] + jnp.arange(y[3], dtype=jnp.int32).reshape(1, 1, 1, -1)
    inside = (rows >= 0) & (rows < y[1]) & (columns >= 0) & (columns < y[2])
    inside &= (within >= 0) & (within < o.filter_height * o.filter_width)
    return jnp.where(inside, flat, -1)


def _scatter(x: jax.Array, flat: jax.Array, y: TensorSpec) -> jax.Array:
    """The last value for a position is kept; a position outside drops its value."""
    n, size = y.shape[0], y.shape[1] * y.shape[2] * y.shape[3]
    flat = jnp.where(flat < 0, size, flat).reshape(n, -1)
    batch = jnp.arange(n, dtype=flat.dtype).reshape(-1, 1)
    values = x.reshape(n, -1).astype(y.dtype)
    images = with_last(
        jnp.zeros((n, size), y.dtype),
        values,
        lambda none, order: none.at[batch, flat].max(order, mode="drop"),
    )
    return images.reshape(y.shape)


RULES = table(
    rule("MaxPoolWithArgmax", 1, _why_not_tensorflow, _lower_tensorflow),
    rule("MaxPoolingWithArgmax2D", 1, _why_not_mediapipe, _lower_mediapipe),
    rule("MaxUnpooling2D", 1, _why_not_unpool, _lower_unpool, arity=2),
)
