"""Merges operators of a file into others, which get new constants."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from jaxdelegate.model.records import Model, Operator
from jaxdelegate.model.rewriting import Rewriting
from jaxdelegate.op_lowering.options import ActivationFunctionType


@dataclasses.dataclass(frozen=True, eq=False)
class Constant:
    """Values of a new tensor."""

    name: str
    values: np.ndarray  # float32
    replaced: int | None  # None: the tensor is added


@dataclasses.dataclass(frozen=True, eq=False)
class Merged:
    """An operator that replaces others, which are removed."""

    subgraph: int
    operator: Operator  # the original one
    others: tuple[Operator, ...]
    inputs: tuple[int | Constant, ...]  # tensors of the file, or new constants
    output: int
    activation: ActivationFunctionType
    version: int  # the minimum


def with_merged(model: Model, merged: Sequence[Merged], purpose: str) -> bytes:
    """The file with operators merged, and without tensors that only they used.

    No operator may be in two of `merged`. Errors name the purpose, see `Rewriting`.
    """
    file = Rewriting(model, purpose)
    for subgraph in model.subgraphs:
        own = [m for m in merged if m.subgraph == subgraph.index]
        for m in own:
            _merge(file, m)
        gone = {other.index for m in own for other in m.others}
        table = file.t.subgraphs[subgraph.index]
        table.operators = [o for i, o in enumerate(table.operators or []) if i not in gone]
        used = (i for m in own for o in (m.operator, *m.others) for i in (*o.inputs, *o.outputs))
        file.drop_tensors(subgraph.index, set(used))
    return file.content()


def _merge(file: Rewriting, m: Merged) -> None:
    table = file.t.subgraphs[m.subgraph].operators[m.operator.index]
    inputs = [_tensor(file, m.subgraph, i) if isinstance(i, Constant) else i for i in m.inputs]
    table.inputs, table.outputs = inputs, [m.output]
    table.opcodeIndex = file.with_version(table.opcodeIndex, m.version)
    if m.activation is not getattr(m.operator.options, "fused_activation_function", None):
        _options(table, m.operator).fusedActivationFunction = int(m.activation)


def _tensor(file: Rewriting, subgraph: int, constant: Constant) -> int:
    tensor = schema.TensorT()
    tensor.shape, tensor.type = list(constant.values.shape), schema.TensorType.FLOAT32
    tensor.hasRank, tensor.name = True, constant.name
    tensor.buffer = file.add_buffer(constant.values)
    if constant.replaced is None:
        return file.add_tensor(subgraph, tensor)
    file.t.subgraphs[subgraph].tensors[constant.replaced] = tensor
    return constant.replaced


def _options(table: Any, operator: Operator) -> Any:
    name = type(operator.options).__name__
    number = getattr(schema.BuiltinOptions, name)
    if table.builtinOptionsType != number:
        table.builtinOptionsType = number
        table.builtinOptions = getattr(schema, f"{name}T")()
    return table.builtinOptions
