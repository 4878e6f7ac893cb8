"""Common parts of dynamic range convolutions and GEMMs: float32 activations by integer filters."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import overload

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.common.basics import Array
from jaxdelegate.op_lowering.common.derivatives import underivable
from jaxdelegate.op_lowering.common.quantization import (
    quantization_of,
    why_not_kernel,
    why_not_one_scale,
)
from jaxdelegate.op_lowering.common.quantized_products import UINT8, Tensors, why_not_scales
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.rule import first_reason, why_not_dtype
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.affine import block_parameters, spread
from jaxdelegate.quant.jax_affine import asymmetric_quantize, rounded, symmetric_quantize
from jaxdelegate.quant.params import channel_scales

# The ranges of dynamic range kernels' results on a CPU.
RANGES = {
    Act.NONE: (-math.inf, math.inf),
    Act.RELU: (0.0, math.inf),
    Act.RELU_N1_TO_1: (-1.0, 1.0),
    Act.RELU6: (0.0, 6.0),
}


@dataclasses.dataclass(frozen=True)
class DynamicRange:
    """What an operator's dynamic range kernels support.

    `symmetric`: one of them quantizes activations symmetrically; the other one, CONV_2D's, scales
    sums by the filter, then by the activations.
    `why_not_blocks`: the check of the kernel of blockwise filters; None: there is no such kernel.
    """

    filters: frozenset[np.dtype] = frozenset()
    symmetric: bool = False
    why_not_blocks: Callable[[TensorSpec], str | None] | None = None

    def why_not(self, tensors: Tensors, channel_axis: int) -> str | None:
        x, w, bias, y = tensors
        floats = (spec for spec in (x, bias, y) if spec is not None)
        return first_reason(
            why_not_kernel(w, self.filters),
            *(why_not_dtype(spec, np.float32) for spec in floats),
            self._why_not_scales(w, channel_axis),
        )

    def _why_not_scales(self, w: TensorSpec, channel_axis: int) -> str | None:
        if self.symmetric and w.dtype == UINT8:
            return why_not_one_scale(w)
        if w.blocks is not None and self.why_not_blocks is not None:
            return self.why_not_blocks(w)
        return why_not_scales(w, channel_axis)


@overload
def signed(w: jax.Array) -> jax.Array: ...


@overload
def signed(w: np.ndarray) -> np.ndarray: ...


def signed(w: Array) -> Array:
    """A stored filter as int8; the kernels read the bytes of a uint8 filter as signed."""
    return w.view(np.int8) if np.dtype(w.dtype) == UINT8 else w.astype(np.int8, copy=False)


def filter_scales(w: TensorSpec, channels: int) -> np.ndarray:
    """float32 [channels]; the kernels ignore zero points."""
    return channel_scales(quantization_of(w), channels)


def row_scales(w: TensorSpec) -> np.ndarray:
    """The scales of the blocks of each row, float32 [N, blocks], of a filter [N, K] in blocks."""
    if w.blocks is None:
        raise ValueError(f"{w.name!r} is not quantized in blocks")
    scale, _ = block_parameters(w.blocks, w.shape)
    shape = w.shape[0], scale.shape[1]
    return np.broadcast_to(spread(scale, shape), shape)


def quantize_rows(
    x: jax.Array, *, asymmetric: bool
) -> tuple[jax.Array, jax.Array, jax.Array | int]:
    """float32 [..., n] -> int8 [..., n], scales, float32 [...], zero points, int32 [...], or 0."""
    return _ASYMMETRIC(x) if asymmetric else (*_SYMMETRIC(x), 0)


_STEP = "a dynamic range operator quantizes its floats on the fly"
_ASYMMETRIC, _SYMMETRIC = (underivable(f, _STEP) for f in (asymmetric_quantize, symmetric_quantize))


@functools.partial(jax.jit, static_argnames=["in_turn"])
def rescaled(
    total: jax.Array, scale: jax.Array, scales: np.ndarray, *, in_turn: bool = False
) -> jax.Array:
    """Sums, int32 [..., O], scaled back to float32, as the kernels round them.

    The scale of the activations is float32 [..., 1], the scales of the filter [O]. `in_turn`: by
    the filter, then by the activations; not by the product of both.
    """
    each = jnp.asarray(scales).reshape((1,) * (total.ndim - 1) + (-1,))
    sums = total.astype(np.float32)
    if in_turn:  # XLA would move a factor that all channels share to the smaller operand
        return rounded(rounded(sums * each) * scale)
    return rounded(sums * (scale * each))
