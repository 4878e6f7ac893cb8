"""Stores weights in fewer bytes: as float16, or as int8 for kernels of dynamic range."""

from typing import Literal

import numpy as np

from jaxdelegate.conversion.graph import Graph, Node, Value
from jaxdelegate.errors import ConversionError, OptionError
from jaxdelegate.model.half import castable, with_halves
from jaxdelegate.model.records import read_model
from jaxdelegate.quant.affine import symmetric_quantize
from jaxdelegate.quant.params import Quantization

Weights = Literal["float32", "float16", "int8"]
_KINDS = ("float32", "float16", "int8")
_MIN_SIZE = 1024  # elements from which weights are int8, as with TFLite's converter
_CHANNELS = {"FULLY_CONNECTED": 0, "CONV_2D": 0, "DEPTHWISE_CONV_2D": 3}
_VERSIONS = {"FULLY_CONNECTED": 12, "CONV_2D": 5, "DEPTHWISE_CONV_2D": 6}


def checked(weights: str) -> str:
    if weights not in _KINDS:
        raise OptionError(
            f"from_jax: weights: expected {' or '.join(map(repr, _KINDS))}, got {weights!r}"
        )
    return weights


def with_int8(graph: Graph) -> None:
    """Store the weights of products as int8, with a scale for each output channel."""
    for called in graph.called():
        with_int8(called)
    known: dict[int, Value] = {}
    for node in graph.nodes:
        weights = node.inputs[1] if node.op in _CHANNELS and not node.keeps else None
        if weights is not None and _is_large(weights) and _has_kernel(node):
            if id(weights) not in known:
                known[id(weights)] = _quantized(weights, _CHANNELS[node.op])
            node.inputs[1], node.version = known[id(weights)], _VERSIONS[node.op]


def _is_large(weights: Value) -> bool:
    data = weights.data
    return isinstance(data, np.ndarray) and data.dtype == np.float32 and data.size >= _MIN_SIZE


def _has_kernel(node: Node) -> bool:
    """Convolutions in groups have no kernel for int8 weights and float inputs."""
    x, weights = node.inputs[:2]
    return node.op != "CONV_2D" or x.shape[-1] == weights.shape[-1]


def _quantized(weights: Value, axis: int) -> Value:
    rows = np.moveaxis(np.asarray(weights.data), axis, 0)
    steps, scale = symmetric_quantize(rows.reshape(len(rows), -1))
    data = np.moveaxis(steps.reshape(rows.shape), 0, axis)
    q = Quantization(scale, np.zeros(len(scale), np.int64), axis)
    return Value(weights.shape, np.dtype(np.int8), weights.name, data, quantization=q)


def with_float16(content: bytes) -> bytes:
    """The file with float32 constants as float16, with a DEQUANTIZE operator for each."""
    model = read_model(content)
    places = list(castable(model))
    for subgraph, i in places:
        tensor = model.subgraphs[subgraph].tensors[i]
        largest = np.max(np.abs(np.asarray(tensor.data)), initial=0)
        if largest > np.finfo(np.float16).max:
            raise ConversionError(
                f"from_jax: weights='float16': {tensor.name!r} has the value {largest:g}, more "
                "than float16 has; scale it, or use weights='int8'"
            )
    return with_halves(model, places)
