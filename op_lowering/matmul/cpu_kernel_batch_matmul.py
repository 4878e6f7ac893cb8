"""Float32 BATCH_MATMUL by this package's CPU kernel.

For few rows the kernel reads the right matrices once, where they are. XLA copies them first, which
takes longer than the product, for example of a query and all keys in a cache. For more rows each
task copies a part that stays in a cache.
"""

import math

import numpy as np

from jaxdelegate.op_lowering.common.basics import SMALL
from jaxdelegate.op_lowering.common.quantized_products import Tensors
from jaxdelegate.op_lowering.matmul.options import BatchMatMulOptions
from jaxdelegate.op_lowering.precision import FLOAT32
from jaxdelegate.op_lowering.rule import LoweringContext

# Measured on AVX2: XLA is as fast for smaller matrices, and for so few values that each call takes
# longer than reading them. But it leaves products of more than SMALL values to a library, and then
# the program cannot be called directly.
_LEAST_SIDE, _LEAST_VALUES = 64, 1 << 14


def takes(context: LoweringContext, options: BatchMatMulOptions, tensors: Tensors) -> bool:
    """Whether the kernel multiplies x by w: a single matrix, or as many as there are in y."""
    x, w, _, y = tensors
    policy, count = context.precision, math.prod(w.shape[:-2])
    rows, columns = math.prod(y.shape[:-1]) // count, y.shape[-1]
    operand = policy.operand_dtype(w.dtype, w.const, rows=rows, output_channels=columns)
    return (
        context.kernels.cpu
        and policy.storage == operand == FLOAT32
        and all(spec.dtype == np.float32 for spec in (x, w, y))
        and w.const is None
        and count in (1, math.prod(y.shape[:-2]))
        and not options.adj_x
        and rows > 0
        and _pays(tensors)
    )


def _pays(tensors: Tensors) -> bool:
    sizes = [math.prod(spec.shape) for spec in (tensors.x, tensors.w, tensors.y)]
    is_large = min(tensors.w.shape[-2:]) >= _LEAST_SIDE and sizes[1] >= _LEAST_VALUES
    return is_large or max(sizes) > SMALL
