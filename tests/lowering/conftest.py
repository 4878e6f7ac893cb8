from collections.abc import Callable, Collection
from typing import Any

import jax
import numpy as np
import pytest

from jaxdelegate.lowering.computation import LoweredPartition
from jaxdelegate.lowering.partition import lower_partition
from jaxdelegate.model.records import read_model
from jaxdelegate.op_lowering.options import Options
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.passes.propagation import declared_specs, propagate
from jaxdelegate.testing import ModelBuilder


class Graph:
    """A graph written as it is read: `graph("MUL", 0.5, x)`; numbers and arrays are constants."""

    def __init__(self) -> None:
        self.builder = ModelBuilder()
        self.random = np.random.default_rng(0)

    def input(self, *shape: int) -> int:
        return self.builder.input(shape)

    def __call__(self, name: str, *operands: Any, options: Options | None = None) -> int:
        inputs = [self._tensor(operand) for operand in operands]
        y = self.builder.tensor((1,))  # shapes are propagated
        self.builder.operator(name, inputs, [y], *([options] if options else []))
        return y

    def _tensor(self, operand: Any) -> int:
        if isinstance(operand, int):
            return operand
        is_float = isinstance(operand, float)
        return self.builder.constant(np.asarray(operand, np.float32 if is_float else None))

    def values(self, *shape: int) -> np.ndarray:
        return self.random.uniform(0.5, 1.5, shape).astype(np.float32)

    def content(self, *outputs: int) -> bytes:
        self.builder.outputs(*outputs)
        return self.builder.build()


@pytest.fixture
def graph() -> Graph:
    return Graph()


Lowered = tuple[LoweredPartition, list[np.ndarray]]


@pytest.fixture
def lowered() -> Callable[..., Lowered]:
    """A model as one partition, and its outputs for seeded inputs."""

    def lower(
        content: bytes,
        rewrites: Collection[str] = (),
        context: LoweringContext = LoweringContext(),  # noqa: B008 (immutable)
        spread: float = 1.0,
    ) -> Lowered:
        subgraph = read_model(content).subgraphs[0]
        specs = dict(enumerate(propagate(subgraph.operators, declared_specs(subgraph))))
        partition = lower_partition(
            subgraph.operators,
            specs,
            subgraph.inputs,
            subgraph.outputs,
            context,
            rewrites=rewrites,
        )
        random = np.random.default_rng(1)
        inputs = [
            random.normal(0, spread, specs[i].shape).astype(specs[i].dtype)
            for i in partition.inputs
        ]
        weights = {w: partition.value(w) for w in partition.preparations}
        with jax.enable_x64(True):
            return partition, [np.asarray(y) for y in partition.call(weights, inputs)]

    return lower
