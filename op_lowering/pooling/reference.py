"""Pools, as pooling.h and integer_ops/pooling.h of kernels/internal/reference have them.

The pools that name the maximum's place, and MaxUnpooling2D, follow kernels/perception/ and
mediapipe/util/tflite/operations/.
"""

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.pooling.options import (
    MaxPoolWithArgmaxOptions,
    Pool2DOptions,
    Pool3DOptions,
    PoolParamsOptions,
)
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType, Padding
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.quant import requantize
from jaxdelegate.quant.params import activation_range
from jaxdelegate.reference.kernel import Array, Kernel
from jaxdelegate.reference.quantization import quantization_of
from jaxdelegate.reference.window import clamp, image_shape, pad_before, require_floats, windows

_INTEGERS = (np.uint8, np.int8, np.int16)
_Dimension = tuple[int, int, int, int]  # size, stride, padding before, places


def pool_2d_shape(o: Pool2DOptions | PoolParamsOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """[N, H, W, C] -> [N, H', W', C]."""
    return (_shape(_dimensions_2d(o, image_shape("pool", inputs[0].shape, 4)), inputs[0].shape),)


def argmax_pool_2d_shape(o: PoolParamsOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """[N, H, W, C] -> [N, H', W', C], for values and positions."""
    return pool_2d_shape(o, inputs) * 2


def pool_3d_shape(o: Pool3DOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """[N, D, H, W, C] -> [N, D', H', W', C]."""
    if o.data_format != "NDHWC":
        raise ValueError(f"pool: data_format {o.data_format!r} is not NDHWC")
    x = image_shape("pool", inputs[0].shape, 5)
    return (_shape(_dimensions_tensorflow(o, x), x),)


def max_pool_with_argmax_shape(
    o: MaxPoolWithArgmaxOptions, inputs: Specs
) -> tuple[Shape | None, ...]:
    """[N, H, W, C] -> [N, H', W', C], for values and positions."""
    x = image_shape("MaxPoolWithArgmax", inputs[0].shape, 4)
    shape = _shape(_dimensions_tensorflow(o, x), x)
    return shape, shape


def average_pool_2d(o: Pool2DOptions, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """Padding does not count."""
    y = _average("AVERAGE_POOL_2D", inputs, outputs, x, _dimensions_2d(o, x.shape))
    return _finished(o.fused_activation_function, inputs, outputs, y)


def max_pool_2d(o: Pool2DOptions, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    y = _maximum("MAX_POOL_2D", inputs, outputs, x, _dimensions_2d(o, x.shape))
    return _finished(o.fused_activation_function, inputs, outputs, y)


def l2_pool_2d(o: Pool2DOptions, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """Values whose squares float32 cannot hold give an infinite sum, as in the kernel."""
    require_floats("L2_POOL_2D", *inputs, *outputs)
    dimensions = _dimensions_2d(o, x.shape)
    with np.errstate(over="ignore"):
        total = _total(np.square(x.astype(np.float64)), dimensions).astype(np.float32)
    return _finished(
        o.fused_activation_function, inputs, outputs, np.sqrt(total / _count(x, dimensions))
    )


def average_pool_3d(o: Pool3DOptions, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    y = _average("AvgPool3D", inputs, outputs, x, _dimensions_tensorflow(o, x.shape))
    return _finished(None, inputs, outputs, y)


def max_pool_3d(o: Pool3DOptions, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    y = _maximum("MaxPool3D", inputs, outputs, x, _dimensions_tensorflow(o, x.shape))
    return _finished(None, inputs, outputs, y)


def _dimensions_2d(o: Pool2DOptions | PoolParamsOptions, x: Shape) -> list[_Dimension]:
    return [
        _dimension(o.padding, x[1], o.filter_height, o.stride_h),
        _dimension(o.padding, x[2], o.filter_width, o.stride_w),
    ]


def _dimensions_tensorflow(
    o: Pool3DOptions | MaxPoolWithArgmaxOptions, x: Shape
) -> list[_Dimension]:
    for named in (o.ksize, o.strides):
        if len(named) != len(x) or named[0] != 1 or named[-1] != 1:
            raise ValueError(f"pool: window {o.ksize}, strides {o.strides} on {list(x)}")
    if o.padding not in ("SAME", "VALID"):
        raise ValueError(f"pool: padding {o.padding!r} is neither SAME nor VALID")
    sizes = zip(x[1:-1], o.ksize[1:-1], o.strides[1:-1], strict=True)
    return [_dimension(Padding[o.padding], *size) for size in sizes]


def _dimension(padding: Padding, n: int, size: int, stride: int) -> _Dimension:
    if min(size, stride) <= 0:
        raise ValueError(f"pool: window {size} by stride {stride}: both must be positive")
    if padding is Padding.SAME:
        n_out = (n + stride - 1) // stride
    else:
        n_out = max(n + stride - size, 0) // stride
    return size, stride, pad_before(padding, n, size, stride, n_out), n_out


def _shape(dimensions: list[_Dimension], x: Shape) -> Shape:
    return (x[0], *(n_out for *_, n_out in dimensions), x[-1])


def _windows(
    x: Array, dimensions: list[_Dimension], fill: float
) -> Iterator[tuple[tuple[int, ...], Array]]:
    sizes, strides, before, out = (list(column) for column in zip(*dimensions, strict=True))
    return windows(x, out, before, sizes, strides, dilations=[1] * len(sizes), fill=fill)


def _total(x: Array, dimensions: list[_Dimension]) -> Array:
    total = np.zeros(_shape(dimensions, x.shape), x.dtype)
    for _, read in _windows(x, dimensions, 0):
        total += read
    return total


def _count(x: Array, dimensions: list[_Dimension]) -> Array:
    """The number of values of the image that each window reads, [1, *out, 1]."""
    return _total(np.ones((1, *x.shape[1:-1], 1), np.int32), dimensions)


def _check(name: str, inputs: Specs, outputs: Specs) -> None:
    if inputs[0].is_quantized:
        quantization_of(name, inputs[0], *_INTEGERS)
    elif inputs[0].dtype not in _INTEGERS:
        require_floats(name, *inputs, *outputs)


def _average(
    name: str, inputs: Specs, outputs: Specs, x: Array, dimensions: list[_Dimension]
) -> Array:
    _check(name, inputs, outputs)
    count = _count(x, dimensions)
    if x.dtype in FLOATS:
        mean: Array = _total(x.astype(np.float64), dimensions) / count  # global pools sum thousands
        return mean
    total = _total(x.astype(np.int64), dimensions)
    rounded: Array = np.sign(total) * ((np.abs(total) + count // 2) // count)  # half away from zero
    return rounded


def _maximum(
    name: str, inputs: Specs, outputs: Specs, x: Array, dimensions: list[_Dimension]
) -> Array:
    _check(name, inputs, outputs)
    lowest = _lowest(x.dtype)
    best = np.full(_shape(dimensions, x.shape), lowest, x.dtype)
    for _, read in _windows(x, dimensions, lowest):
        best = np.where(read > best, read, best)  # NaN never compares greater
    return best


def _lowest(dtype: np.dtype) -> Any:
    limits: Any = ml_dtypes.finfo(dtype) if dtype in FLOATS else np.iinfo(dtype)  # type: ignore[no-untyped-call]
    return limits.min


def _finished(
    activation: ActivationFunctionType | None, inputs: Specs, outputs: Specs, y: Array
) -> tuple[Array]:
    # Input and output share their scale, which only the fused activation reads.
    dtype = outputs[0].dtype
    if inputs[0].is_quantized:
        target = quantization_of("pool", outputs[0], *_INTEGERS)
        bounds = activation_range(activation or ActivationFunctionType.NONE, target, dtype)
        return (requantize.clamp(y, *bounds, dtype),)
    if y.dtype in FLOATS and activation is not None:
        y = clamp(activation, y)
    elif activation:
        raise TypeError(f"pool: a fused {activation.name} on integers needs a scale")
    return (y.astype(dtype),)


def max_pool_with_argmax(
    o: MaxPoolWithArgmaxOptions, inputs: Specs, outputs: Specs, x: Array
) -> tuple[Array, Array]:
    """A position is (y * W + x) * C + c, perhaps with the batch in front (TensorFlow)."""
    require_floats("MaxPoolWithArgmax", *inputs, outputs[0])
    n, h, w, c = x.shape
    dimensions = _dimensions_tensorflow(o, x.shape)
    (_, stride_y, top, n_y), (_, stride_x, left, n_x) = dimensions
    corner_y = (np.arange(n_y) * stride_y - top).reshape(-1, 1, 1)
    corner_x = (np.arange(n_x) * stride_x - left).reshape(-1, 1)
    best, i, j = _first_maximum(x, dimensions)
    none = i < 0
    y, x_ = np.where(none, 0, corner_y + i), np.where(none, 0, corner_x + j)
    place = (y * w + x_) * c + np.arange(c)
    if o.include_batch_in_index:
        place = place + (np.arange(n) * h * w * c).reshape(-1, 1, 1, 1)
    return best.astype(outputs[0].dtype), place.astype(outputs[1].dtype)


def max_pooling_with_argmax_2d(
    o: PoolParamsOptions, inputs: Specs, outputs: Specs, x: Array
) -> tuple[Array, Array]:
    """MediaPipe's: a position is an index into the window; as float32 it has 0.1 more."""
    require_floats("MaxPoolingWithArgmax2D", *inputs, outputs[0])
    best, i, j = _first_maximum(x, _dimensions_2d(o, x.shape))
    place = np.maximum(i, 0) * o.filter_width + np.maximum(j, 0)
    if outputs[1].dtype == np.float32:
        place = place + np.float32(0.1)
    best = clamp(o.fused_activation_function, best)
    return best.astype(outputs[0].dtype), place.astype(outputs[1].dtype)


def _first_maximum(x: Array, dimensions: list[_Dimension]) -> tuple[Array, Array, Array]:
    """The maximum, its row and its column in the window; -1 where all values are the lowest."""
    lowest = _lowest(x.dtype)
    best = np.full(_shape(dimensions, x.shape), lowest, x.dtype)
    row, column = np.full(best.shape, -1), np.full(best.shape, -1)
    for (i, j), read in _windows(x, dimensions, lowest):
        better = read > best
        best, row, column = (
            np.where(better, new, old) for new, old in ((read, best), (i, row), (j, column))
        )
    return best, row, column


def max_unpooling_2d_shape(o: PoolParamsOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """[N, H, W, C] -> [N, H', W', C]: windows side by side; flat places go by the strides."""
    n, h, w, c = image_shape("MaxUnpooling2D", inputs[0].shape, 4)
    if inputs[1].shape != inputs[0].shape:
        raise ValueError(
            f"MaxUnpooling2D: places {list(inputs[1].shape)} for values {[n, h, w, c]}"
        )
    _dimensions_2d(o, inputs[0].shape)
    if inputs[1].dtype == np.float32:
        return ((n, h * o.filter_height, w * o.filter_width, c),)
    if o.padding is Padding.SAME:
        return ((n, h * o.stride_h, w * o.stride_w, c),)
    height = (h - 1) * o.stride_h + o.filter_height
    return ((n, height, (w - 1) * o.stride_w + o.filter_width, c),)


def max_unpooling_2d(
    o: PoolParamsOptions, inputs: Specs, outputs: Specs, x: Array, places: Array
) -> tuple[Array]:
    """Put every value where its pool found it; zeros elsewhere. Places outside are left out.

    int32 places index the output image [H', W', C] (kernels/perception/max_unpooling_2d.cc),
    float32 ones the window (mediapipe/util/tflite/operations/max_unpooling.cc).
    """
    require_floats("MaxUnpooling2D", inputs[0], *outputs)
    y = np.zeros(outputs[0].shape, outputs[0].dtype)
    image = y.reshape(y.shape[0], -1)
    flat = places if places.dtype == np.int32 else _flat_places(o, places.astype(np.int32), y.shape)
    for index in np.ndindex(*x.shape):
        if 0 <= flat[index] < image.shape[1]:
            image[index[0], flat[index]] = x[index]
    return (y,)


def _flat_places(o: PoolParamsOptions, within: Array, y: Shape) -> Array:
    _, h, w, c = within.shape
    top = max((h - 1) * o.stride_h + o.filter_height - y[1], 0) // 2
    left = max((w - 1) * o.stride_w + o.filter_width - y[2], 0) // 2
    rows = np.arange(h).reshape(-1, 1, 1) * o.stride_h - top + within // o.filter_width
    columns = np.arange(w).reshape(-1, 1) * o.stride_w - left + within % o.filter_width
    inside = (rows >= 0) & (rows < y[1]) & (columns >= 0) & (columns < y[2])
    inside &= (within >= 0) & (within < o.filter_height * o.filter_width)
    flat: Array = np.where(inside, (rows * y[2] + columns) * c + np.arange(c), -1)
    return flat


KERNELS = {
    "AVERAGE_POOL_2D": Kernel(average_pool_2d, pool_2d_shape),
    "MAX_POOL_2D": Kernel(max_pool_2d, pool_2d_shape),
    "L2_POOL_2D": Kernel(l2_pool_2d, pool_2d_shape),
    "AvgPool3D": Kernel(average_pool_3d, pool_3d_shape),
    "MaxPool3D": Kernel(max_pool_3d, pool_3d_shape),
    "MaxPoolWithArgmax": Kernel(max_pool_with_argmax, max_pool_with_argmax_shape),
    "MaxPoolingWithArgmax2D": Kernel(max_pooling_with_argmax_2d, argmax_pool_2d_shape),
    "MaxUnpooling2D": Kernel(max_unpooling_2d, max_unpooling_2d_shape),
}
