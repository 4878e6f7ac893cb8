"""Programs that run a partition once for each of several slices of a batch."""

import dataclasses
from collections.abc import Collection, Mapping

import numpy as np

from jaxdelegate.op_lowering.spec import Shape, TensorSpec


@dataclasses.dataclass(frozen=True)
class BatchSlices:
    """The slices of a batch, and how a program's arrays contain them.

    With `are_single`, for a model with a batch of 1 or without a batch dimension, each slice is one
    item, and tensors without a first dimension of 1 are stacked along a new one. Otherwise slices
    are concatenated along the first dimension.
    """

    count: int  # the partition runs once for each
    shared: frozenset[int] = frozenset()  # tensors that every run reads whole
    are_single: bool = False

    def shape(self, index: int, shape: Shape) -> Shape:
        """The program's shape of a tensor that has `shape` in one slice."""
        return shape if index in self.shared else self.joined(shape)

    def joined(self, shape: Shape) -> Shape:
        """The shape of all slices together, for a tensor that is not shared."""
        if self.are_single and shape[:1] != (1,):
            return (self.count, *shape)
        if not self.are_single and self.count == 1:  # the tensor may have any rank
            return shape
        return (shape[0] * self.count, *shape[1:])

    def specs(
        self, specs: Mapping[int, TensorSpec], indices: Collection[int]
    ) -> dict[int, TensorSpec]:
        """The program's specs of these tensors; a constant is repeated for each slice."""
        return {i: self._spec(i, specs[i]) for i in indices}

    def _spec(self, index: int, spec: TensorSpec) -> TensorSpec:
        shape, const = self.shape(index, spec.shape), spec.const
        if const is not None and index not in self.shared:
            const = np.broadcast_to(const, (self.count, *const.shape)).reshape(shape)
        return dataclasses.replace(spec, shape=shape, const=const)


WHOLE_BATCH = BatchSlices(1)
