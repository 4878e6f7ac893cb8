"""Which tensors of a subgraph are compared, and how."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from jaxdelegate.comparison.bounds import Bounds
from jaxdelegate.comparison.metrics import Comparer, largest_magnitude
from jaxdelegate.model.records import Model, Operator, Subgraph, Tensor
from jaxdelegate.op_lowering.dtypes import HANDLES
from jaxdelegate.passes.propagation import declared_specs, propagate
from jaxdelegate.runtime.tensor_details import array_type


def comparable(subgraph: Subgraph) -> frozenset[int]:
    """The tensors with readers and values.

    Stock interpreters do not write results of control flow that have no reader.
    """
    read = {i for operator in subgraph.operators for i in operator.inputs if i >= 0}
    read.update(subgraph.outputs)
    return frozenset(i for i in read if subgraph.tensors[i].dtype not in HANDLES)


def computed(model: Model, values: Mapping[int, np.ndarray]) -> list[int]:
    """The tensors in `values`, which include the inputs, that operators compute at run time."""
    subgraph = model.subgraphs[0]
    specs = declared_specs(subgraph)
    for i in subgraph.inputs:
        specs[i] = dataclasses.replace(specs[i], shape=values[i].shape)
    specs = propagate(subgraph.operators, specs, model.subgraphs)
    kept = {*subgraph.inputs, *(i for i, s in enumerate(specs) if s.is_variable)}
    return [i for i in values if i not in kept and specs[i].const is None]


def comparer_for(tensor: Tensor, bounds: Bounds) -> Comparer:
    quantization = tensor.quantization if tensor.spec().is_quantized else None
    dtype = np.dtype(array_type(tensor))
    return Comparer(tensor.index, tensor.name, dtype, bounds, quantization)


def read_by(operator: Operator, values: Mapping[int, np.ndarray]) -> float:
    return max((largest_magnitude(values[i]) for i in operator.inputs if i in values), default=0.0)
