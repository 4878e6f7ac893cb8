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
from jaxdelegate.op_lowering.spec import TensorSpec

# Measured on AVX2: XLA is as fast for smaller matrices, and for so few values that each call takes
# longer than reading them. But it leaves products of more than SMALL values to a library, and those
# of several matrices unless their results are tiny, and then the program cannot be called directly.
_LEAST_SIDE, _LEAST_VALUES, _LEAST_OF_SEVERAL = 64, 1 << 14, 2


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
        and rows > 0
        and (_is_left_to_library(tensors, count) or (not options.adj_x and _is_large(w)))
    )


def _is_large(w: TensorSpec) -> bool:
    return min(w.shape[-2:]) >= _LEAST_SIDE and math.prod(w.shape) >= _LEAST_VALUES


def _is_left_to_library(tensors: Tensors, count: int) -> bool:
    sizes = [math.prod(spec.shape) for spec in (tensors.x, tensors.w, tensors.y)]
    is_small = max(sizes) <= SMALL
    return not is_small or (count > 1 and min(tensors.y.shape[-2:]) >= _LEAST_OF_SEVERAL)
