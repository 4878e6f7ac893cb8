"""The records of a model, or of the part that a view selects."""

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from jaxdelegate.errors import TensorError
from jaxdelegate.function.records import (
    Signature,
    TensorInfo,
    computed_names,
    info_of,
    unique_names,
)
from jaxdelegate.function.views import View
from jaxdelegate.model.records import Model, SignatureDef, Subgraph
from jaxdelegate.op_lowering.spec import Shape, TensorSpec
from jaxdelegate.passes.cut import cut
from jaxdelegate.passes.limits import Limits
from jaxdelegate.passes.propagation import Subgraphs
from jaxdelegate.plan.planner import EntryPoint
from jaxdelegate.plan.shape_signatures import shape_signatures
from jaxdelegate.plan.whole import WholePlans

_KEY = "serving_default"  # the signature of converted models
# About the operators and the file. Other metadata is about the whole model's inputs and outputs.
_KEPT_METADATA = ("min_runtime_version", "CONVERSION_METADATA", "reduced_precision_support")


def signatures_of(graph: Model, limits: Limits) -> dict[str, Signature]:
    """The signatures of a model by key, with -1 for free dimensions."""

    def infos(subgraph: Subgraph, named: Mapping[str, int]) -> dict[str, TensorInfo]:
        return named_infos(graph, subgraph, named, limits)

    return {
        s.key: Signature(
            infos(graph.subgraphs[s.subgraph], s.inputs),
            infos(graph.subgraphs[s.subgraph], s.outputs),
        )
        for s in graph.signatures
    }


def named_infos(
    graph: Model, subgraph: Subgraph, named: Mapping[str, int], limits: Limits
) -> dict[str, TensorInfo]:
    """Records of a subgraph's tensors, by the names that they are given."""
    shapes = shape_signatures(subgraph, graph.subgraphs, tuple(named.values()), limits)
    return {name: info_of(subgraph.tensors[i], shapes[i]) for name, i in named.items()}


def planned(
    graph: Model, signature: SignatureDef, shapes: Mapping[str, Shape], limits: Limits
) -> Mapping[int, TensorSpec]:
    """The specs of a signature's tensors for inputs of these shapes, by name.

    Raises:
        InterpreterError: an operator cannot take them.
    """
    subgraphs = Subgraphs(graph.subgraphs)
    entry = EntryPoint(graph.subgraphs[signature.subgraph], subgraphs, limits)
    inputs, outputs = tuple(signature.inputs.values()), tuple(signature.outputs.values())
    plans = WholePlans(entry, inputs, outputs, 1)
    return plans.plan(tuple(shapes[name] for name in signature.inputs)).specs


def selected(file: Model, view: View) -> Model:
    """The file with the part of the main subgraph that a view selects, and one signature for it.

    The signature has the key and the names of the main subgraph's first signature; tensors that
    are new among inputs and outputs have their own names.
    """
    if not view.is_cut:
        return file
    main = file.subgraphs[0]
    inputs = None if view.inputs is None else _indices(main, view.inputs)
    outputs = main.outputs if view.outputs is None else _indices(main, view.outputs)
    part = cut(main, inputs, outputs)
    metadata = {name: data for name, data in file.metadata.items() if name in _KEPT_METADATA}
    return dataclasses.replace(
        file,
        subgraphs=(part, *file.subgraphs[1:]),
        signatures=(_signature(file, part),),
        metadata=MappingProxyType(metadata),
    )


def _signature(file: Model, part: Subgraph) -> SignatureDef:
    whole = next((s for s in file.signatures if s.subgraph == 0), SignatureDef(_KEY, {}, {}, 0))
    return SignatureDef(
        whole.key,
        _named(part, part.inputs, whole.inputs),
        _named(part, part.outputs, whole.outputs),
        0,
    )


def _named(part: Subgraph, indices: Sequence[int], known: Mapping[str, int]) -> dict[str, int]:
    names = {i: name for name, i in known.items()}
    return dict(zip(unique_names(part, indices, names), indices, strict=True))


def _indices(subgraph: Subgraph, names: Sequence[str]) -> tuple[int, ...]:
    by_name = computed_names(subgraph)
    for name in names:
        if name not in by_name:
            raise TensorError(
                f"the model computes no tensor {name!r}{did_you_mean(name, by_name)}; "
                "model.tensors lists all of them"
            )
    return tuple(by_name[name] for name in names)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """What an error adds about names that are similar to an unknown one."""
    close = difflib.get_close_matches(name, [*dict.fromkeys(known)], n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
