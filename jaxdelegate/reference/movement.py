"""Common parts of kernels that only move data: axes, integers that determine a shape, scales."""

import numpy as np

from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.reference.kernel import Array


def ints(array: Array) -> list[int]:
    if array.dtype.kind in "fcO":
        raise TypeError(f"expected integers, got {array.dtype}")
    return [int(value) for value in np.ravel(array)]


def known(*specs: TensorSpec) -> list[list[int]] | None:
    """None if one of the integer tensors is not constant."""
    values = [ints(spec.const) for spec in specs if spec.const is not None]
    return values if len(values) == len(specs) else None


def resolved_axis(axis: int, rank: int, operator: str) -> int:
    if not -rank <= axis < rank:
        raise ValueError(f"{operator}: axis must be in [{-rank}, {rank}), got {axis}")
    return axis + rank if axis < 0 else axis


def scaling(spec: TensorSpec) -> tuple[list[float], list[int]]:
    """Empty lists if the tensor has none."""
    q = spec.quantization if spec.is_quantized else None
    return ([], []) if q is None else (q.scale.tolist(), q.zero_point.tolist())


def require_one_scaling(operator: str, *specs: TensorSpec) -> None:
    for spec in specs[1:]:
        if scaling(spec) != scaling(specs[0]):
            names = f"{specs[0].name!r} and {spec.name!r}"
            raise TypeError(f"{operator}: {names} are quantized differently")
