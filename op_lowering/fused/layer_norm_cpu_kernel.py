"""Normalization of rows of float32 by this package's CPU kernel: one call instead of four.

A row has the same bits however many rows there are.
"""

import functools
import math

import jax
import numpy as np

from jaxdelegate.kernels.library import LAYER_NORM
from jaxdelegate.op_lowering.common.native_call import native_call
from jaxdelegate.op_lowering.common.row_batches import OfRows, by_rows
from jaxdelegate.op_lowering.fused.options import LayerNormOptions
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.rule import Function, LoweringContext
from jaxdelegate.op_lowering.spec import Shape, Specs


def takes(context: LoweringContext, options: LayerNormOptions, arrays: Specs) -> bool:
    """Whether it normalizes x, the first of `arrays`; the others are scale and offset, or None."""
    x, *others = (spec for spec in arrays if spec is not None)
    count = x.shape[-1] if x.shape else 0
    return (
        context.kernels.cpu
        and context.precision.storage == np.float32
        and all(spec.dtype == np.float32 and not spec.is_quantized for spec in (x, *others))
        and options.axes == (len(x.shape) - 1,)
        and options.fused_activation_function is Act.NONE
        and all(math.prod(spec.shape) == spec.shape[-1] == count for spec in others)
        and math.prod(x.shape) > 0
    )


def layer_norm(options: LayerNormOptions, shape: Shape) -> Function:
    """The function of x of a shape, and of a scale and an offset, or None."""

    def run(
        x: jax.Array, scale: jax.Array | None = None, offset: jax.Array | None = None
    ) -> tuple[jax.Array]:
        others = [None if a is None else a.reshape(-1) for a in (scale, offset)]
        has = options.is_centered, *(a is not None for a in others)
        normalized = _normalized(options.epsilon, has)
        rows = x.reshape(-1, shape[-1])
        return (normalized(rows, *(a for a in others if a is not None)).reshape(shape),)

    return run


@functools.cache
def _normalized(epsilon: float, has: tuple[bool, ...]) -> OfRows:
    attributes = {"epsilon": np.array([epsilon], np.float32), "has": np.array(has, np.int64)}

    @by_rows
    def normalized(x: jax.Array, *others: jax.Array) -> jax.Array:
        return native_call(LAYER_NORM, x.shape, **attributes)(x, *others)

    return normalized
