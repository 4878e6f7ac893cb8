"""How a tensor's integers represent real numbers."""

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np


@dataclasses.dataclass(frozen=True)
class Blockwise:
    """One scale for each block of values; scales and zero points are tensors of the subgraph.

    `scale` and `zero_point` are the values of those tensors, None where they are not known; see
    affine.block_parameters for how they apply to the values.
    """

    scales: int  # tensor index
    zero_points: int  # tensor index, negative: none
    block_size: int
    quantized_dimensions: tuple[int, ...] = ()  # empty: the last dimension (BlockwiseQuantization)
    scale: np.ndarray | None = dataclasses.field(default=None, compare=False, repr=False)
    zero_point: np.ndarray | None = dataclasses.field(default=None, compare=False, repr=False)


@dataclasses.dataclass(frozen=True, eq=False)
class Quantization:
    """real = scale * (q - zero_point), per tensor or along `quantized_dimension`.

    Source: QuantizationParameters of schema.fbs.
    """

    scale: np.ndarray  # [1] or [channels], float32
    zero_point: np.ndarray  # same length, int64
    quantized_dimension: int = 0
    minimum: np.ndarray | None = None  # the converter's record of the observed range, float32
    maximum: np.ndarray | None = None
    blockwise: Blockwise | None = None
    custom: bytes | None = None  # CustomQuantization, opaque

    @property
    def has_scale(self) -> bool:
        """Whether integers represent reals: the table may hold a range only."""
        return self.scale.size > 0 or self.blockwise is not None

    @property
    def is_per_channel(self) -> bool:
        """Whether each slice along `quantized_dimension` has its own scale."""
        return self.scale.size > 1


def integer_range(dtype: np.dtype, *, narrow: bool = False) -> tuple[int, int]:
    """The smallest and the largest integer of a dtype, which may be ml_dtypes' int4, uint4 or int2.

    With `narrow`, without the smallest one, so that a signed range is symmetric.
    """
    info: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    return int(info.min) + narrow, int(info.max)


def tensor_scale(quantization: Quantization) -> float:
    """The tensor's only scale; a float32 value that is exact in this float64."""
    return float(_only(quantization.scale, "scale"))


def tensor_zero_point(quantization: Quantization) -> int:
    """The tensor's only zero point, 0 where it has none."""
    points = quantization.zero_point
    return int(_only(points, "zero point")) if points.size else 0


def _only(values: np.ndarray, what: str) -> Any:
    if values.size != 1:
        raise ValueError(f"expected a tensor with one {what}, got {values.size}")
    return values.reshape(())[()]


def channel_scales(quantization: Quantization, channels: int) -> np.ndarray:
    """float32 [channels]; a single scale applies to every channel."""
    scale = quantization.scale.astype(np.float32)
    if scale.size not in (1, channels):
        raise ValueError(f"{scale.size} scales do not fit {channels} channels")
    return np.broadcast_to(scale.reshape(-1), (channels,))


def along_axis(values: np.ndarray, rank: int, axis: int) -> np.ndarray:
    """`values` [n] as [1, ..., n, ..., 1] of this rank, n at `axis` (negative: from the end)."""
    if not -rank <= axis < rank:
        raise ValueError(f"{values.size} scales along axis {axis} of a tensor of rank {rank}")
    shape = [1] * rank
    shape[axis] = -1
    return values.reshape(shape)


# ActivationFunctionType of schema.fbs -> the reals it clamps to; None: the dtype's own bound.
_BOUNDS: dict[int, tuple[float | None, float | None]] = {
    1: (0.0, None),  # RELU
    2: (-1.0, 1.0),  # RELU_N1_TO_1
    3: (0.0, 6.0),  # RELU6
}


def activation_range(
    activation: int, quantization: Quantization, dtype: np.dtype
) -> tuple[int, int]:
    """The range of the output's integers under a fused activation, as (low, high).

    Activations other than the RELUs, and NONE, leave the whole range. Source:
    CalculateActivationRangeQuantized in kernels/kernel_util.cc, which fails too if a bound
    exceeds int32: the bound is divided by the scale in float32, then rounded half away from
    zero.
    """
    low, high = integer_range(dtype)
    least, most = _BOUNDS.get(int(activation), (None, None))
    if least is not None:
        low = max(low, _nearest(least, quantization))
    if most is not None:
        high = min(high, _nearest(most, quantization))
    return low, high


def _nearest(real: float, quantization: Quantization) -> int:
    with np.errstate(all="ignore"):
        steps = float(np.float32(real) / np.float32(tensor_scale(quantization)))
    if not -(2.0**31) <= steps <= 2.0**31:
        raise ValueError(f"{real} is {steps} steps of the output's scale, more than int32 holds")
    whole = int(abs(steps) + 0.5)  # exact: a float32 and 0.5, added in float64
    return tensor_zero_point(quantization) + (whole if steps >= 0 else -whole)
