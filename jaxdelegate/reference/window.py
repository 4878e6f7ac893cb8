"""Windows over [N, *spatial, C] (kernels/padding.h); common clamps and checks."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType, Padding
from jaxdelegate.op_lowering.spec import Shape, TensorSpec
from jaxdelegate.reference.kernel import Array

_RANGES = {
    ActivationFunctionType.RELU: (0, np.inf),
    ActivationFunctionType.RELU_N1_TO_1: (-1, 1),
    ActivationFunctionType.RELU6: (0, 6),
}


def require_floats(name: str, *specs: TensorSpec | None) -> None:
    for spec in specs:
        if spec is not None and (spec.is_quantized or spec.dtype not in FLOATS):
            kind = "quantized " if spec.is_quantized else ""
            raise TypeError(
                f"{name}: {spec.name!r} is {kind}{spec.dtype}, and this kernel is float"
            )


def sums_of(x: Array) -> Array:
    """The values in the dtype of sums: float32 as in the kernels, or float64."""
    return x.astype(np.result_type(x.dtype, np.float32) if x.dtype.kind == "f" else np.float32)


def clamp(activation: ActivationFunctionType, y: Array) -> Array:
    """Apply a fused activation. These kernels only clamp: TANH and SIGN_BIT count as NONE.

    The range ends at the largest float32 (CalculateActivationRange, kernels/kernel_util.h); for
    half precision, which no kernel has, at infinity.
    """
    low, high = _RANGES.get(activation, (-np.inf, np.inf))
    largest = float(np.finfo(np.float32).max) if y.dtype.itemsize >= 4 else np.inf
    low, high = max(low, -largest), min(high, largest)
    clamped: Array = np.minimum(np.maximum(y, y.dtype.type(low)), y.dtype.type(high))
    return clamped


def size_out(padding: Padding, n: int, window: int, stride: int, dilation: int = 1) -> int:
    """How many places a window takes along n values."""
    if min(window, stride, dilation) <= 0:
        raise ValueError(
            f"window {window}, stride {stride}, dilation {dilation}: all must be positive"
        )
    if padding is Padding.SAME:
        return (n + stride - 1) // stride
    span = (window - 1) * dilation + 1
    if n + stride - span <= -stride:
        raise ValueError(f"a VALID window over {span} values does not fit into {n}")
    return max(n + stride - span, 0) // stride


def pad_before(
    padding: Padding, n: int, window: int, stride: int, n_out: int, dilation: int = 1
) -> int:
    """How far the first window starts before the values; the larger half of padding is after."""
    if padding is Padding.VALID:
        return 0
    return max((n_out - 1) * stride + (window - 1) * dilation + 1 - n, 0) // 2


def windows(
    x: Array,
    out: Sequence[int],
    before: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    fill: float = 0,
) -> Iterator[tuple[tuple[int, ...], Array]]:
    """Iterate over the places within a window that read any of the values; at least the first.

    All other places, of which a file's options may request a billion, read only padding. Yields
    the place, and the elements that all windows read there: [N, *out, C], `fill` outside.
    """
    dims = list(zip(x.shape[1:-1], out, before, sizes, strides, dilations, strict=True))
    places = [_places_inside(*dim) for dim in dims]
    spans = []  # what they read, along each dimension: first value, end, number of values
    for taken, (n, o, b, _, s, d) in zip(places, dims, strict=True):
        spans.append((taken[0] * d - b, taken[-1] * d - b + max(o - 1, 0) * s + 1, n))
    if any(start >= n or end <= 0 for start, end, n in spans):
        yield tuple(p[0] for p in places), np.full((len(x), *out, x.shape[-1]), fill, x.dtype)
        return
    inside = tuple(slice(max(start, 0), min(end, n)) for start, end, n in spans)
    around = [(max(-start, 0), max(end - n, 0)) for start, end, n in spans]
    padded = np.pad(x[(slice(None), *inside)], [(0, 0), *around, (0, 0)], constant_values=fill)
    for place in itertools.product(*places):
        reads = [
            slice((i - p[0]) * d, (i - p[0]) * d + (o - 1) * s + 1 if o else (i - p[0]) * d, s)
            for i, p, (_, o, _, _, s, d) in zip(place, places, dims, strict=True)
        ]
        yield place, padded[(slice(None), *reads)]


def _places_inside(n: int, out: int, before: int, size: int, stride: int, dilation: int) -> range:
    first = max(-(((out - 1) * stride - before) // dilation), 0)
    last = min((before + n - 1) // dilation, size - 1)
    return range(first, last + 1) if first <= last else range(1)


def image_shape(name: str, shape: Shape, rank: int) -> Shape:
    if len(shape) != rank:
        raise ValueError(f"{name}: {list(shape)} must have {rank} dimensions")
    return shape
