"""Writes graphs as a .tflite file."""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from jaxdelegate.conversion.graph import Graph, Node, Value, distinct, unused
from jaxdelegate.conversion.tracing import Traced
from jaxdelegate.errors import ConversionError
from jaxdelegate.model.rewriting import AlignedBuilder
from jaxdelegate.op_lowering.options import FullyConnectedOptions, default_options
from jaxdelegate.testing.builder import ModelBuilder, SubgraphBuilder

_REPEATED = 1 << 16  # bytes from which a constant of equal parts is computed, not stored
_OUTSIDE = 1 << 30  # bytes of constants from which they are after the flatbuffer
_DESCRIPTION = "Written by jaxdelegate.from_jax"


class _File(ModelBuilder):
    """A file that stores equal constants once."""

    def __init__(self) -> None:
        super().__init__(_DESCRIPTION)
        self._known: dict[bytes, int] = {}
        self.nbytes = 0

    def buffer(self, data: bytes) -> int:
        digest = hashlib.sha256(data).digest()
        if digest not in self._known:
            self.nbytes += len(data)
            self._known[digest] = super().buffer(data)
        return self._known[digest]

    def _pack(self, t: schema.ModelT) -> bytes:
        builder = AlignedBuilder(1024)
        builder.Finish(t.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def written(traced: Mapping[str, Traced]) -> bytes:
    """The file with a signature for each graph."""
    writer = _Writer()
    for key, one in traced.items():
        writer.reserve(one.graph, key)
    for key, one in traced.items():
        tensors, ends = writer.graph(one.graph)
        inputs = {name: tensors[id(v)] for name, v in one.inputs.items()}
        outputs = dict(zip(one.outputs, ends, strict=True))
        writer.file.signature(key, inputs, outputs, writer.places[id(one.graph)])
    return writer.file.build(outside=writer.file.nbytes > _OUTSIDE)


class _Writer:
    def __init__(self) -> None:
        self.file = _File()
        self.places: dict[int, int] = {}
        self._builders: dict[int, SubgraphBuilder] = {}

    def reserve(self, graph: Graph, name: str) -> int:
        """The position of a graph in the file, which is the next one for a new graph."""
        if id(graph) not in self.places:
            self.places[id(graph)] = len(self.places)
            first = len(self.places) == 1
            self._builders[id(graph)] = self.file if first else self.file.subgraph(name)
        return self.places[id(graph)]

    def graph(self, graph: Graph) -> tuple[dict[int, int], list[int]]:
        """Write a graph and those that it calls.

        Returns:
            The tensors by the ids of their values, and those of the outputs.
        """
        for node in graph.nodes:
            for called in node.graphs.values():
                self.reserve(called, called.name)
        written = _Subgraph(self, self._builders[id(graph)], graph).write()
        for called in graph.called():
            self.graph(called)
        return written


class _Subgraph:
    def __init__(self, writer: _Writer, builder: SubgraphBuilder, graph: Graph) -> None:
        self._writer, self._builder, self._graph = writer, builder, graph
        self._tensors: dict[int, int] = {}
        self._names: Counter[str] = Counter()
        self._written: list[Value] = []  # ids are of objects that live

    def write(self) -> tuple[dict[int, int], list[int]]:
        for v in self._graph.inputs:
            self._tensors[id(v)] = self._builder.input(*_declared(v), self._name(v), **_details(v))
        for node in self._graph.nodes:
            self._node(node)
        ends = self._ends()
        self._builder.outputs(*ends)
        return self._tensors, ends

    def _ends(self) -> list[int]:
        """The outputs; what is a constant or twice there is copied."""
        ends: list[int] = []
        for v in self._graph.outputs:
            copied = v.is_constant or self._tensors.get(id(v)) in ends
            ends.append(self._tensors[id(self._copy(v) if copied else v)])
        return ends

    def _copy(self, v: Value) -> Value:
        output = Value(v.shape, v.dtype, f"{v.name}_copy", quantization=v.quantization)
        if not all(isinstance(n, int) for n in v.shape):
            zeros = Value((), v.dtype, "zero", np.zeros((), v.dtype))
            self._node(Node("ADD", [v, zeros], [output]))
            return output
        shape = np.asarray(v.shape, np.int32).reshape(-1)
        self._node(Node("RESHAPE", [v, Value(shape.shape, shape.dtype, "shape", shape)], [output]))
        return output

    def _name(self, v: Value) -> str:
        return unused(self._names, v.name or "tensor")

    def _add(self, v: Value, *, is_variable: bool = False) -> int:
        details = {**_details(v), "is_variable": is_variable}
        return self._builder.tensor(*_declared(v), self._name(v), **details)

    def _tensor(self, v: Value | None) -> int | None:
        if v is None:
            return None
        if id(v) not in self._tensors:
            known = (self._constant if v.is_constant else self._variable)(v)
            self._tensors[id(v)] = known
        return self._tensors[id(v)]

    def _variable(self, v: Value) -> int:
        assert v.is_variable, f"{v.name} is read before it is computed"
        return self._add(v, is_variable=True)

    def _constant(self, v: Value) -> int:
        if not isinstance(v.data, np.ndarray):
            raise ConversionError(
                f"from_jax: {self._graph.name}: a random key is not a tensor; create random "
                "numbers from a constant key, or pass them as an input"
            )
        if v.sparsity is not None:
            details = {**_details(v), "shape": v.shape, "sparsity": v.sparsity}
            return self._builder.constant(v.data, self._name(v), **details)
        small = distinct(v.data)
        if v.data.nbytes < _REPEATED or small.nbytes * 4 > v.data.nbytes:
            return self._builder.constant(v.data, self._name(v), **_details(v))
        output = Value(v.shape, v.dtype, v.name or "repeated")
        shape = np.asarray(v.shape, np.int32)
        sizes = Value(shape.shape, shape.dtype, "shape", shape)
        part = Value(small.shape, v.dtype, f"{output.name}_part", small)
        self._node(Node("BROADCAST_TO", [part, sizes], [output]))
        return self._tensors[id(output)]

    def _node(self, node: Node) -> None:
        inputs = [self._tensor(v) for v in node.inputs]
        self._written += [v for v in (*node.inputs, *node.outputs) if v is not None]
        for v in node.outputs:
            self._tensors[id(v)] = self._add(v)
        outputs = [self._tensors[id(v)] for v in node.outputs]
        options = default_options(node.op) if node.options is None else node.options
        called = {o: self._writer.places[id(g)] for o, g in node.graphs.items()}
        if called:
            options = dataclasses.replace(options, **called)
        version = max(node.version, _version(node))
        inner = list(map(self._add, node.intermediates))
        self._builder.operator(
            node.op, inputs, outputs, options, version=version, intermediates=inner
        )


def _declared(v: Value) -> tuple[Sequence[int], np.dtype]:
    return [n if isinstance(n, int) else 1 for n in v.shape], v.dtype


def _details(v: Value) -> dict[str, Any]:
    free = [n if isinstance(n, int) else -1 for n in v.shape]
    signature = free if -1 in free else None
    return {"quantization": v.quantization, "shape_signature": signature}


def _version(node: Node) -> int:
    """The version of an operator that its use needs."""
    if node.op == "BROADCAST_TO":
        return 2  # the first one
    if isinstance(node.options, FullyConnectedOptions):
        return 6 if node.inputs[2] is None else 5
    if node.op == "TRANSPOSE_CONV":
        return 3 if len(node.inputs) > 3 else 1
    groups = node.op == "CONV_2D" and node.inputs[0].shape[-1] != node.inputs[1].shape[-1]
    return 6 if groups else 1
