"""The parts of a key that come from the model: operators, tensors, and every constant's elements.

A partition is keyed by all that it holds, not by the file's name or a token: stock interpreters do
not show the file, and small constants are baked into the program.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.cache.key import Part
from jaxdelegate.model import Operator, Subgraph
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.simple_delegate import DelegateParams, Node

_OWN_RULES = "jaxdelegate.op_lowering."
_OTHER_FIELDS = tuple(
    f.name
    for f in dataclasses.fields(TensorSpec)
    if f.name not in ("name", "const", "quantization")
)


def read_constants(
    nodes: Iterable[Node], outputs: Sequence[int], specs: Mapping[int, TensorSpec]
) -> dict[int, np.ndarray]:
    """The constants that operators with something left to compute read, or that leave."""
    touched = {i for node in nodes if not node.is_constant for i in node.operator.inputs if i >= 0}
    consts = {i: specs[i].const for i in sorted(touched.union(outputs))}
    return {i: const for i, const in consts.items() if const is not None}


def partition_parts(params: DelegateParams, specs: Mapping[int, TensorSpec]) -> dict[str, Part]:
    """What of the model a partition's program depends on, but for its constants' elements.

    Args:
        params: the partition.
        specs: of every tensor that its operators touch.

    Raises:
        TypeError: options of a kind that is not known to be the same in every process.
    """
    live = [node for node in params.nodes if not node.is_constant]
    operators = [node.operator for node in live]
    touched = {i for op in operators for i in (*op.inputs, *op.outputs, *op.intermediates)}
    arriving = sorted(params.inputs)
    called = live[0].subgraphs if calls_subgraphs(live) else ()
    values: dict[str, Any] = {
        "partition": [
            [_operator(op) for op in operators],
            [[i, _spec(specs[i])] for i in sorted(touched) if i >= 0],
            sorted(params.outputs),
            [_subgraph(subgraph) for subgraph in called],
        ],
        "inputs": [[i, specs[i].dtype, specs[i].shape] for i in arriving if i in specs],
    }
    return {name: Part.of(value) for name, value in values.items()}


def model_part(constants: Mapping[int, str]) -> Part:
    """The part that the constants' elements make up, from their digests by tensor."""
    return Part.of(sorted(constants.items()))


def foreign_rule(nodes: Sequence[Node]) -> str | None:
    """The name of an operator whose rule is not of this package; its source is not known here."""
    called = nodes[0].subgraphs if calls_subgraphs(nodes) else ()
    names = [operator.name for subgraph in called for operator in subgraph.operators]
    return next((n for n in [*(node.name for node in nodes), *names] if not _is_own(n)), None)


def calls_subgraphs(nodes: Iterable[Node]) -> bool:
    """Whether one of them runs subgraphs of the model."""
    return any("subgraph" in name for node in nodes for name in vars(node.operator.options))


def _is_own(name: str) -> bool:
    rule = RULES.get(name)
    return rule is None or all(
        _module(function).startswith(_OWN_RULES) for function in (rule.lower, rule.why_not)
    )


def _module(function: Callable[..., Any]) -> str:
    inner: Any = function
    while inner is not None:
        function, inner = inner, getattr(inner, "func", None) or getattr(inner, "__func__", None)
    return getattr(function, "__module__", None) or ""


def _operator(operator: Operator) -> list[Any]:
    return [
        operator.index,
        operator.name,
        operator.version,
        operator.inputs,
        operator.outputs,
        operator.intermediates,
        operator.options,
    ]


def _spec(spec: TensorSpec) -> list[Any]:
    """All that a spec says, but its name and its value, which has a digest of its own."""
    quantization = spec.quantization
    if quantization is not None:  # what the converter observed changes nothing
        quantization = dataclasses.replace(quantization, minimum=None, maximum=None)
    return [quantization, *(getattr(spec, name) for name in _OTHER_FIELDS)]


def _subgraph(subgraph: Subgraph) -> list[Any]:
    hidden = {"name": None}
    tensors = [
        {f.name: getattr(t, f.name) for f in dataclasses.fields(t)} | hidden
        for t in subgraph.tensors
    ]
    operators = [_operator(operator) for operator in subgraph.operators]
    return [tensors, subgraph.inputs, subgraph.outputs, operators]
