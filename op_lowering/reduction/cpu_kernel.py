"""Means of float32 over whole images, by a native CPU kernel."""

import math
from collections.abc import Callable

import jax
import numpy as np

from jaxdelegate.kernels.library import LEAST_CHANNELS, MEAN
from jaxdelegate.op_lowering.common.native_call import native_call
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.op_lowering.spec import TensorSpec

# The reduction of an operator's input over these axes; None: the kernel does not support it.
Native = Callable[
    [LoweringContext, TensorSpec, tuple[int, ...]], Callable[[jax.Array], jax.Array] | None
]


def mean(
    context: LoweringContext, x: TensorSpec, axes: tuple[int, ...]
) -> Callable[[jax.Array], jax.Array] | None:
    """The mean over all axes except the first and the last; None for other tensors and contexts."""
    is_float32 = x.dtype == np.float32 and not x.is_quantized
    fits = axes == tuple(range(1, len(x.shape) - 1)) != () and 0 not in x.shape
    is_asked = context.kernels.cpu and context.precision.storage == np.float32
    if not (is_asked and is_float32 and fits and x.shape[-1] >= LEAST_CHANNELS):
        return None
    return None if context.follows_kernels else _mean


def _mean(x: jax.Array) -> jax.Array:
    """[N, ..., C] -> [N, C]."""
    n, *pixels, c = x.shape
    return native_call(MEAN, (n, c))(x.reshape(n, math.prod(pixels), c))
