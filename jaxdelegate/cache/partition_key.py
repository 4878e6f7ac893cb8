"""The parts of a key that come from the model: operators, tensors, and every constant's elements.

A partition is keyed by its content, not by the file's name or a token: stock interpreters do not
expose the file, and small constants are baked into the program.
"""

from __future__ import annotations

import dataclasses
import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxdelegate.cache.constants import ConstantDigests
from jaxdelegate.cache.key import Part, dtype_name, field_names

if TYPE_CHECKING:
    import numpy as np

    from jaxdelegate.model.records import Operator, Subgraph
    from jaxdelegate.op_lowering.spec import TensorSpec
    from jaxdelegate.simple_delegate import DelegateParams, Node

_OWN_RULES = "jaxdelegate.op_lowering."
_HANDLED_SEPARATELY = ("name", "const", "quantization", "dtype")  # fields of specs


def tensors_of(nodes: Iterable[Node]) -> set[int]:
    """The tensors that operators read or write, intermediates included."""
    operators = [node.operator for node in nodes]
    return {i for op in operators for i in (*op.inputs, *op.outputs, *op.intermediates) if i >= 0}


def read_constants(
    nodes: Iterable[Node], outputs: Sequence[int], specs: Mapping[int, TensorSpec]
) -> dict[int, np.ndarray]:
    """The constants among `outputs` and the inputs of operators that are not folded."""
    read = {i for node in nodes if not node.is_constant for i in node.operator.inputs if i >= 0}
    consts = {i: specs[i].const for i in sorted(read.union(outputs))}
    return {i: const for i, const in consts.items() if const is not None}


class KnownModel:
    """Digests and key parts that were computed for an open model."""

    def __init__(self, constants: ConstantDigests | None = None) -> None:
        self.constants = constants or ConstantDigests()
        self.name = ""  # for people
        self._latest: tuple[tuple[Node, ...], dict[str, Part]] = (), {}

    def operators(self, nodes: Sequence[Node], specs: Mapping[int, TensorSpec]) -> dict[str, Part]:
        """The part of operators in order and their tensors; the latest call's is remembered.

        Nodes identify the specs of their tensors, too. A TypeError as by `operators_part`.
        """
        known, part = self._latest
        if not part or len(known) != len(nodes) or not all(map(operator.is_, known, nodes)):
            part = {"partition": operators_part(nodes, specs)}
            self._latest = tuple(nodes), part
        return part


def operators_part(nodes: Sequence[Node], specs: Mapping[int, TensorSpec]) -> Part:
    """What operators and their tensors add to a key, except for the constants' elements.

    A TypeError for options of a kind that is not known to be the same in every process.
    """
    live = [node for node in nodes if not node.is_constant]
    operators = [node.operator for node in live]
    called = live[0].subgraphs if calls_subgraphs(live) else ()
    return Part.of(
        [
            [_operator(op) for op in operators],
            [[i, _spec(specs[i])] for i in sorted(tensors_of(live))],
            [_subgraph(subgraph) for subgraph in called],
        ]
    )


def boundary_parts(params: DelegateParams, specs: Mapping[int, TensorSpec]) -> dict[str, Part]:
    inputs, slices = sorted(params.inputs), params.slices
    sliced = {} if slices is None else {"slices": Part.of(slices)}
    return sliced | {
        "inputs": Part.of([[i, specs[i].dtype, specs[i].shape] for i in inputs if i in specs]),
        "outputs": Part.of(sorted(params.outputs)),
    }


def model_part(constants: Mapping[int, str]) -> dict[str, Part]:
    """The part for the constants' elements, from their digests by tensor."""
    return {"model": Part.of(sorted(constants.items()))}


def foreign_rule(nodes: Sequence[Node]) -> str | None:
    """The first operator whose rule is not from this package: keys do not cover its source."""
    registry = sys.modules.get("jaxdelegate.op_lowering.registry")
    if registry is None:  # so no rule can have been registered
        return None
    called = nodes[0].subgraphs if calls_subgraphs(nodes) else ()
    operators = [node.operator for node in nodes]
    operators += [op for subgraph in called for op in subgraph.operators]
    names = dict.fromkeys(op.name for op in operators)
    return next((name for name in names if not _is_own(registry.RULES.get(name))), None)


def calls_subgraphs(nodes: Iterable[Node]) -> bool:
    by_kind = {type(node.operator.options): node.operator.options for node in nodes}
    return any("subgraph" in name for options in by_kind.values() for name in vars(options))


def _is_own(rule: Any) -> bool:
    return rule is None or all(
        _module(function).startswith(_OWN_RULES) for function in (rule.lower, rule.why_not)
    )


def _module(function: Callable[..., Any]) -> str:
    inner: Any = function
    while inner is not None:
        function, inner = inner, getattr(inner, "func", None) or getattr(inner, "__func__", None)
    return getattr(function, "__module__", None) or ""


def _operator(op: Operator) -> list[Any]:
    return [op.index, op.name, op.version, op.inputs, op.outputs, op.intermediates, op.options]


def _spec(spec: TensorSpec) -> list[Any]:
    """A spec's fields without its name and its value, which has its own digest."""
    quantization = spec.quantization
    if quantization is not None:  # the ranges that the converter observed do not matter
        quantization = dataclasses.replace(quantization, minimum=None, maximum=None)
    kind: Any = type(spec)
    others = [name for name in field_names(kind) if name not in _HANDLED_SEPARATELY]
    return [quantization, dtype_name(spec.dtype), *(getattr(spec, name) for name in others)]


def _subgraph(subgraph: Subgraph) -> list[Any]:
    hidden = {"name": None}
    tensors = [
        {f.name: getattr(t, f.name) for f in dataclasses.fields(t)} | hidden
        for t in subgraph.tensors
    ]
    operators = [_operator(op) for op in subgraph.operators]
    return [tensors, subgraph.inputs, subgraph.outputs, operators]
