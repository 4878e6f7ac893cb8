"""What the kernels that only move data share: axes, and integers that decide a shape."""

import numpy as np

from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.reference.kernel import Array


def ints(array: Array) -> list[int]:
    """The values of an integer tensor, in row-major order."""
    return [int(value) for value in np.ravel(array)]


def known(*specs: TensorSpec) -> list[list[int]] | None:
    """The values of integer tensors, None while one of them is not known."""
    values = [ints(spec.const) for spec in specs if spec.const is not None]
    return values if len(values) == len(specs) else None


def resolved_axis(axis: int, rank: int, operator: str) -> int:
    """A dimension counted from the front; a negative axis counts from the end.

    Raises:
        ValueError: there is no such dimension.
    """
    if not -rank <= axis < rank:
        raise ValueError(f"{operator}: axis must be in [{-rank}, {rank}), got {axis}")
    return axis + rank if axis < 0 else axis
