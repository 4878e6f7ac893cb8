"""The integer grids of litert-quantizer for activations, weights and biases. numpy only.

Source: litert_quantizer/algorithms/uniform_quantize/uniform_quantize_tensor.py.
"""

import dataclasses

import ml_dtypes
import numpy as np

from jaxdelegate.quant.params import Quantization, along_axis

_MIN_RANGE = 1e-9
_DTYPES: dict[int, np.dtype] = {8: np.dtype(np.int8), 16: np.dtype(np.int16)}
_BIAS_LIMIT = 2.0**31 - 1


Range = tuple[float, float]  # the smallest and the largest value


@dataclasses.dataclass(frozen=True)
class Grid:
    """Integers of `dtype` that represent scale * (q - zero_point)."""

    scale: np.float32
    zero_point: int
    dtype: np.dtype

    @property
    def quantization(self) -> Quantization:
        return Quantization(np.array([self.scale], np.float32), np.array([self.zero_point]))


def grid_of(seen: Range, bits: int) -> Grid:
    """The grid for activations of a range: int8 asymmetric and including zero, int16 symmetric."""
    if bits == 16:
        bound = max(*map(abs, seen), _MIN_RANGE)
        return Grid(np.float32(bound / 32767), 0, _DTYPES[bits])
    low, high = min(seen[0], 0.0), max(seen[1], 0.0)
    scale = max(high - low, _MIN_RANGE) / 255
    return Grid(np.float32(scale), int(np.rint(-128 - low / scale)), _DTYPES[bits])


def fixed_grid(operator: str, bits: int) -> Grid | None:
    """The grid that kernels require for an operator's result; None: they accept any."""
    if operator in ("SOFTMAX", "LOGISTIC"):
        if bits == 8:
            return Grid(np.float32(1 / 256), -128, _DTYPES[8])
        return Grid(np.float32(1 / 32768), 0, _DTYPES[16])
    if operator == "TANH":
        return Grid(np.float32(1 / 2 ** (bits - 1)), 0, _DTYPES[bits])
    return None


def channel_scales(weights: np.ndarray, axis: int) -> np.ndarray:
    """float32 [channels]: the symmetric int8 scale of the weights at each index of an axis."""
    others = tuple(i for i in range(weights.ndim) if i != axis % weights.ndim)
    bound = np.maximum(np.abs(weights).max(others, initial=0), _MIN_RANGE)
    return np.asarray(bound / 127, np.float32)


def by_channel(weights: np.ndarray, axis: int) -> np.ndarray:
    """float32: weights rounded to int8 grids, one for each index of an axis."""
    scale = along_axis(channel_scales(weights, axis), weights.ndim, axis)
    return _rounded(weights, scale, -127, 127)


def in_blocks(weights: np.ndarray, block_size: int) -> np.ndarray:
    """float32 [rows, n]: weights rounded to int4 grids, one for each block of a row.

    n must be a multiple of the block size. The file stores scales as bfloat16 values in float16.
    """
    blocks = weights.reshape(weights.shape[0], -1, block_size)
    scale = np.maximum(np.abs(blocks).max(-1, keepdims=True), _MIN_RANGE) / np.float32(7)
    stored = scale.astype(ml_dtypes.bfloat16).astype(np.float16).astype(np.float32)
    return _rounded(blocks, stored, -8, 7).reshape(weights.shape)


def bias_on_grid(bias: np.ndarray, input_scale: np.float32, scales: np.ndarray) -> np.ndarray:
    """float32 [channels]: a bias rounded to the scale of the products, as int32; may saturate."""
    scale = np.float64(input_scale) * scales.astype(np.float64)
    steps = np.clip(np.rint(bias.astype(np.float64) / scale), -_BIAS_LIMIT, _BIAS_LIMIT)
    return np.asarray(steps * scale, np.float32)


def on_grid(values: np.ndarray, grid: Grid) -> np.ndarray:
    """float32: a constant activation rounded to a grid."""
    info = np.iinfo(grid.dtype)
    return _rounded(values, grid.scale, info.min - grid.zero_point, info.max - grid.zero_point)


def _rounded(values: np.ndarray, scale: np.ndarray | np.float32, low: int, high: int) -> np.ndarray:
    with np.errstate(all="ignore"):  # a float16 scale may be zero, and then its values are
        steps = np.clip(np.rint(values / scale), low, high)
        return np.where(scale > 0, steps * scale, 0).astype(np.float32)
