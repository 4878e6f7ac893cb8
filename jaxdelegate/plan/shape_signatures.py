"""The shapes that a graph's users see: the file's, and planned ones where the file has none."""

from collections.abc import Sequence

from jaxdelegate.errors import InterpreterError
from jaxdelegate.model.records import Subgraph
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.passes.limits import Limits
from jaxdelegate.passes.propagation import Subgraphs
from jaxdelegate.plan.planner import EntryPoint, GraphSpecs


def shape_signatures(
    subgraph: Subgraph, subgraphs: Sequence[Subgraph], tensors: Sequence[int], limits: Limits
) -> dict[int, Shape]:
    """The shapes of some tensors of a subgraph, by index, with -1 for free dimensions.

    A file may have no shape for a result, for instance of TFLite_Detection_PostProcess. It looks
    like a scalar there; here its shape follows from the inputs', unless it depends on data.
    """
    records = subgraph.tensors
    shapes = {i: tuple(records[i].shape_signature or records[i].shape) for i in tensors}
    computed = {i for operator in subgraph.operators for i in operator.outputs}
    missing = [i for i in tensors if i in computed and not shapes[i]]
    if missing:
        shapes.update(_planned(EntryPoint(subgraph, Subgraphs(subgraphs), limits), missing))
    return shapes


def _planned(entry: EntryPoint, tensors: Sequence[int]) -> dict[int, Shape]:
    """Dimensions that vary with a free dimension of an input are -1; none if planning fails."""
    declared = entry.declared_shapes
    larger = {i: _enlarged(shape, entry.signature(i)) for i, shape in declared.items()}
    try:
        specs = entry.specs(declared)
        others = specs if larger == declared else entry.specs(larger)
    except InterpreterError:
        return {}
    return {i: shape for i in tensors if (shape := _common(i, specs, others)) is not None}


def _enlarged(shape: Shape, signature: Shape) -> Shape:
    return tuple(n + 1 if free == -1 else n for n, free in zip(shape, signature, strict=True))


def _common(tensor: int, specs: GraphSpecs, others: GraphSpecs) -> Shape | None:
    one, other = specs[tensor], others[tensor]
    if one.is_dynamic or other.is_dynamic or len(one.shape) != len(other.shape):
        return None
    return tuple(n if n == m else -1 for n, m in zip(one.shape, other.shape, strict=True))
