"""Stores float32 constants as float16, with DEQUANTIZE operators before their readers.

TFLite's converter writes this form for float16 quantization.
"""

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from jaxdelegate.model.editing import Place
from jaxdelegate.model.records import Model, Operator, Subgraph
from jaxdelegate.model.rewriting import Rewriting
from jaxdelegate.op_lowering.records.enums import TensorType

_DEQUANTIZE = schema.BuiltinOperator.DEQUANTIZE
_VERSION = 3  # the first that accepts float16
_SUFFIX = b"_dequantize"  # ends the result's name, as in converted files


def castable(model: Model) -> Iterator[Place]:
    """The float32 constants that can become float16: dense arrays that builtin operators read.

    Constants of operators with quantized inputs stay: stock kernels require float32 biases.
    """
    for subgraph in model.subgraphs:
        kept = {i for o in subgraph.operators if _keeps(o, subgraph) for i in o.inputs}
        read = {i for o in subgraph.operators for i in o.inputs if i >= 0}
        for i in sorted(read - kept - set(subgraph.outputs)):
            tensor = subgraph.tensors[i]
            is_plain = tensor.shape and tensor.sparsity is None and 0 not in tensor.shape
            if tensor.type is TensorType.FLOAT32 and tensor.stored is not None and is_plain:
                yield subgraph.index, i


def _keeps(operator: Operator, subgraph: Subgraph) -> bool:
    inputs = (subgraph.tensors[i] for i in operator.inputs if i >= 0)
    return operator.custom or any(tensor.spec().is_quantized for tensor in inputs)


def with_halves(model: Model, places: Collection[Place]) -> bytes:
    """The file with constants of `castable`, within float16's range, as float16."""
    if not places:
        return bytes(model.content)
    halves = _Halves(Rewriting(model, "casting to float16"))
    for subgraph, i in places:
        data = model.subgraphs[subgraph].tensors[i].data
        assert data is not None
        halves.cast(subgraph, i, data)
    return halves.content()


class _Halves:
    def __init__(self, file: Rewriting) -> None:
        self._file = file
        self._buffers: dict[tuple[int, tuple[int, ...]], int] = {}
        self._first: dict[int, list[Any]] = {}

    def cast(self, subgraph: int, index: int, values: np.ndarray) -> None:
        wide = self._file.t.subgraphs[subgraph].tensors[index]
        half = schema.TensorT()
        half.shape, half.type, half.hasRank = wide.shape, schema.TensorType.FLOAT16, wide.hasRank
        half.name, half.buffer = wide.name, self._buffer(wide.buffer, values)
        wide.buffer = 0
        wide.name = (wide.name or b"") + _SUFFIX
        source = self._file.add_tensor(subgraph, half)
        operator = self._file.operator(_DEQUANTIZE, _VERSION, source, index)
        self._first.setdefault(subgraph, []).append(operator)

    def content(self) -> bytes:
        for subgraph, operators in self._first.items():
            graph = self._file.t.subgraphs[subgraph]
            graph.operators = [*operators, *(graph.operators or [])]
        return self._file.content()

    def _buffer(self, old: int, values: np.ndarray) -> int:
        key = old, values.shape
        if key not in self._buffers:
            self._buffers[key] = self._file.add_buffer(values.astype(np.float16))
        return self._buffers[key]
