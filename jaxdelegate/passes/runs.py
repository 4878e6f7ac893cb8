"""Several runs of a graph in one program: which part of an array is one run's."""

import dataclasses
from collections.abc import Collection, Mapping

import numpy as np

from jaxdelegate.op_lowering.spec import Shape, TensorSpec


@dataclasses.dataclass(frozen=True)
class Runs:
    """How often a program runs a partition, and how the runs' arrays lie in its own.

    Attributes:
        count: of runs.
        shared: tensors that every run reads whole.
        are_single: each run is the model's own, with a batch of 1 or none: what has no first
            dimension of 1 gets a new one in front. False: all lies side by side along the first
            dimension that it has.
    """

    count: int
    shared: frozenset[int] = frozenset()
    are_single: bool = False

    def shape(self, index: int, shape: Shape) -> Shape:
        """The shape of all runs together, for a tensor of this shape in one of them."""
        return shape if index in self.shared else self.joined(shape)

    def joined(self, shape: Shape) -> Shape:
        """The same for a tensor that is not shared."""
        if self.are_single and shape[:1] != (1,):
            return (self.count, *shape)
        if not self.are_single and self.count == 1:  # of any rank
            return shape
        return (shape[0] * self.count, *shape[1:])

    def specs(
        self, specs: Mapping[int, TensorSpec], indices: Collection[int]
    ) -> dict[int, TensorSpec]:
        """These tensors' specs for all runs together; a constant is repeated for each run."""
        return {i: self._spec(i, specs[i]) for i in indices}

    def _spec(self, index: int, spec: TensorSpec) -> TensorSpec:
        shape, const = self.shape(index, spec.shape), spec.const
        if const is not None and index not in self.shared:
            const = np.broadcast_to(const, (self.count, *const.shape)).reshape(shape)
        return dataclasses.replace(spec, shape=shape, const=const)


ONCE = Runs(1)
