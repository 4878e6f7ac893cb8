"""SOFTMAX of float32 by this package's CPU kernel, whose exponential is vectorized."""

import math

import jax
import numpy as np

from jaxdelegate.kernels.library import SOFTMAX
from jaxdelegate.op_lowering.common.native_call import native_call
from jaxdelegate.op_lowering.common.row_batches import by_rows
from jaxdelegate.op_lowering.normalization.options import SoftmaxOptions
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.op_lowering.spec import TensorSpec

_LEAST = 32  # values of a row; whatever the number of rows, so that it does not change their bits


def takes(context: LoweringContext, options: SoftmaxOptions, x: TensorSpec) -> bool:
    """Whether it normalizes x, which is not quantized."""
    return (
        context.kernels.cpu
        and context.precision.storage == x.dtype == np.float32
        and options.beta == 1
        and x.shape[-1] >= _LEAST
        and math.prod(x.shape) > 0
    )


def softmax(x: jax.Array) -> tuple[jax.Array]:
    return (_of_rows(x.reshape(-1, x.shape[-1])).reshape(x.shape),)


@by_rows
def _of_rows(x: jax.Array) -> jax.Array:
    return native_call(SOFTMAX, x.shape)(x)
