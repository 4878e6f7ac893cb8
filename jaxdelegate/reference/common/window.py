"""Windows over [N, *spatial, C] (kernels/padding.h); clamps and checks that kernels share."""

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.options import ActivationFunctionType, Padding
from jaxdelegate.op_lowering.spec import Shape, TensorSpec
from jaxdelegate.reference.kernel import Array

_MOST_PADDED = 1 << 30  # bytes; or four times the image
_RANGES = {
    ActivationFunctionType.RELU: (0, np.inf),
    ActivationFunctionType.RELU_N1_TO_1: (-1, 1),
    ActivationFunctionType.RELU6: (0, 6),
}


def require_floats(name: str, *specs: TensorSpec | None) -> None:
    """Check that no tensor is quantized and all are floats.

    Raises:
        TypeError: the first that is not.
    """
    for spec in specs:
        if spec is not None and (spec.is_quantized or spec.dtype not in FLOATS):
            kind = "quantized " if spec.is_quantized else ""
            raise TypeError(
                f"{name}: {spec.name!r} is {kind}{spec.dtype}, and this kernel is float"
            )


def sums_of(x: Array) -> Array:
    """The values in the dtype that sums run in: float32, as the kernels, but for float64."""
    return x.astype(np.result_type(x.dtype, np.float32) if x.dtype.kind == "f" else np.float32)


def clamp(activation: ActivationFunctionType, y: Array) -> Array:
    """The fused activation. These kernels know ranges only: TANH and SIGN_BIT are as NONE.

    The range ends with the largest float32 (CalculateActivationRange, kernels/kernel_util.h); of
    half types, which no kernel has, with infinity.
    """
    low, high = _RANGES.get(activation, (-np.inf, np.inf))
    largest = float(np.finfo(np.float32).max) if y.dtype.itemsize >= 4 else np.inf
    low, high = max(low, -largest), min(high, largest)
    clamped: Array = np.minimum(np.maximum(y, y.dtype.type(low)), y.dtype.type(high))
    return clamped


def size_out(padding: Padding, n: int, window: int, stride: int, dilation: int = 1) -> int:
    """How many places a window takes along n values.

    Raises:
        ValueError: window, stride or dilation is not positive, or the window is far too large.
    """
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
    """How far the first window begins ahead of the values; the larger half of padding is after."""
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
    """Walk over the places within a window.

    Yields:
        The place, and what all windows read there: [N, *out, C], `fill` where that is outside.

    Raises:
        ValueError: windows spread so wide that the padding would take gigabytes.
    """
    dims = list(zip(out, before, sizes, strides, dilations, strict=True))
    behind = [
        max((o - 1) * s + (k - 1) * d + 1 - b - n, 0)
        for n, (o, b, k, s, d) in zip(x.shape[1:-1], dims, strict=True)
    ]
    padded_sizes = map(sum, zip(x.shape[1:-1], before, behind, strict=True))
    nbytes = math.prod((x.shape[0], *padded_sizes, x.shape[-1])) * x.itemsize
    if nbytes > max(_MOST_PADDED, 4 * x.nbytes):
        raise ValueError(
            f"windows {list(sizes)}, dilated by {list(dilations)}: {nbytes} bytes of padding"
        )
    padded = np.pad(x, [(0, 0), *zip(before, behind, strict=True), (0, 0)], constant_values=fill)
    for place in itertools.product(*map(range, sizes)):
        reads = [
            slice(i * d, i * d + (o - 1) * s + 1 if o else i * d, s)
            for i, (o, _, _, s, d) in zip(place, dims, strict=True)
        ]
        yield place, padded[(slice(None), *reads)]


def image_shape(name: str, shape: Shape, rank: int) -> Shape:
    """The shape, if it has `rank` dimensions.

    Raises:
        ValueError: it has not.
    """
    if len(shape) != rank:
        raise ValueError(f"{name}: {list(shape)} must have {rank} dimensions")
    return shape
