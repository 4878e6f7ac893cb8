"""Sparsity records of [4, 4] matrices."""

from typing import Any

import numpy as np

from jaxdelegate.op_lowering.spec import DimensionSparsity, Sparsity


def csr(index_type: Any) -> Sparsity:
    """[4, 4] in CSR rows: three values, in the rows 0, 2 and 2."""
    rows = DimensionSparsity(
        0, np.array([0, 1, 1, 3, 3], index_type), np.array([2, 0, 3], index_type)
    )
    return Sparsity((0, 1), (), (DimensionSparsity(4), rows))


BLOCKS = Sparsity(  # [4, 4] in blocks of 2 x 1: one block column in each block row
    (0, 1, 2),
    (0,),
    (
        DimensionSparsity(2),
        DimensionSparsity(0, np.array([0, 1, 2], np.int32), np.array([3, 1], np.int32)),
        DimensionSparsity(2),
    ),
)
