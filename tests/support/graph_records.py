"""A graph as plain records that can be split and written as a .tflite file."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from jaxdelegate.op_lowering.options import Options
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing.builder import ModelBuilder, SubgraphBuilder


@dataclasses.dataclass(frozen=True, eq=False)
class GraphTensor:
    """A tensor. `value`: a constant's data, or the value of a graph input."""

    shape: Shape
    dtype: np.dtype
    quantization: Quantization | None = None
    value: np.ndarray | None = None
    is_variable: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """An operator; tensors are named by their index, None is an absent one.

    Attributes:
        options: None for the operator's defaults.
        accumulated: how many products each value sums, K of the tolerance table.
        bodies: subgraphs that the operator calls.
        calling: makes the options from the bodies' indices in the file.
        intermediates: tensors that only hold scales.
    """

    name: str
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    options: Options | None = None
    version: int = 1
    accumulated: int = 1
    bodies: tuple["Graph", ...] = ()
    calling: Callable[[Sequence[int]], Options] | None = None
    intermediates: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """Tensors, operators in the order in which they run, inputs and outputs."""

    tensors: tuple[GraphTensor, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def feeds(self) -> list[np.ndarray]:
        """The values of the inputs."""
        values = [self.tensors[i].value for i in self.inputs]
        return [v for v in values if v is not None]

    @property
    def operators(self) -> list[str]:
        """The operators' names; those of bodies follow their caller's."""
        return [n for node in self.nodes for n in (node.name, *_names(node.bodies))]

    @property
    def units(self) -> list[tuple[int, ...]]:
        """Positions of operators that must run together because they share a variable's handle."""
        found: dict[int, list[int]] = {}
        for i, node in enumerate(self.nodes):
            handles = [
                t
                for t in (*node.inputs, *node.outputs)
                if t is not None and self.tensors[t].dtype.kind == "V"
            ]
            found.setdefault(min(handles, default=-1 - i), []).append(i)
        return sorted(map(tuple, found.values()))

    def model(self) -> bytes:
        builder = ModelBuilder("random graph")
        _write(self, builder, builder)
        return builder.build()

    def part(self, kept: Collection[int], values: Mapping[int, np.ndarray]) -> "Graph":
        """The operators at these positions.

        Args:
            kept: positions in `nodes`.
            values: what the graph computed, by tensor; operands whose operator is left out become
                inputs with these values.
        """
        nodes = [self.nodes[i] for i in sorted(kept)]
        made = {t for node in nodes for t in node.outputs}
        read = {t for node in nodes for t in node.inputs if t is not None}
        tensors = list(self.tensors)
        inputs = sorted(t for t in read - made if self._is_fed(t))
        for t in inputs:
            value = values.get(t, tensors[t].value)
            shape = tensors[t].shape if value is None else value.shape
            tensors[t] = dataclasses.replace(tensors[t], value=value, shape=shape)
        last = [t for node in nodes for t in node.outputs if t not in read or t in self.outputs]
        return _renumbered(Graph(tuple(tensors), tuple(nodes), tuple(inputs), tuple(last)))

    def _is_fed(self, tensor: int) -> bool:
        t = self.tensors[tensor]
        return tensor in self.inputs or (t.value is None and not t.is_variable)


def _names(graphs: Sequence[Graph]) -> list[str]:
    return [name for graph in graphs for name in graph.operators]


def _renumbered(graph: Graph) -> Graph:
    """Drop unused tensors."""
    named = {t for n in graph.nodes for t in (*n.inputs, *n.outputs, *n.intermediates)}
    kept = sorted(t for t in {*named, *graph.inputs, *graph.outputs} if t is not None)
    place = {t: i for i, t in enumerate(kept)}
    nodes = [
        dataclasses.replace(
            n,
            inputs=tuple(None if t is None else place[t] for t in n.inputs),
            outputs=tuple(place[t] for t in n.outputs),
            intermediates=tuple(place[t] for t in n.intermediates),
        )
        for n in graph.nodes
    ]
    return Graph(
        tuple(graph.tensors[t] for t in kept),
        tuple(nodes),
        tuple(place[t] for t in graph.inputs),
        tuple(place[t] for t in graph.outputs),
    )


def _write(graph: Graph, to: SubgraphBuilder, model: ModelBuilder) -> None:
    fed = set(graph.inputs)
    for i, t in enumerate(graph.tensors):
        if t.value is None or i in fed:
            to.tensor(t.shape, t.dtype, quantization=t.quantization, is_variable=t.is_variable)
        else:
            to.constant(t.value, quantization=t.quantization)
    to.inputs(*graph.inputs)
    for node in graph.nodes:
        options = node.options
        if node.calling is not None:
            options = node.calling([_added(body, model) for body in node.bodies])
        to.operator(
            node.name,
            node.inputs,
            node.outputs,
            options,
            version=node.version,
            intermediates=node.intermediates,
        )
    to.outputs(*graph.outputs)


def _added(body: Graph, model: ModelBuilder) -> int:
    index = model.n_subgraphs
    _write(body, model.subgraph(f"body_{index}"), model)
    return index
