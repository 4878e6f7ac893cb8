"""What of a model depends on random numbers that differ from run to run."""

from collections.abc import Collection

from jaxdelegate.model.operator_tables import called_subgraphs
from jaxdelegate.model.records import Model, Operator
from jaxdelegate.op_lowering.options import RandomOptions


def random_outputs(record: Model) -> frozenset[int]:
    drawing, main, drawn = _drawing_subgraphs(record), record.subgraphs[0], set[int]()
    for operator in main.operators:
        if _draws(operator, drawing) or not drawn.isdisjoint(operator.inputs):
            drawn.update(operator.outputs)
    return frozenset(drawn.intersection(main.outputs))


def drawing_operators(record: Model) -> frozenset[int]:
    drawing = _drawing_subgraphs(record)
    return frozenset(o.index for o in record.subgraphs[0].operators if _draws(o, drawing))


def _drawing_subgraphs(record: Model) -> set[int]:
    drawing: set[int] = set()
    for _ in record.subgraphs:  # a caller may be before what it calls
        drawing.update(
            subgraph.index
            for subgraph in record.subgraphs
            if any(_draws(operator, drawing) for operator in subgraph.operators)
        )
    return drawing


def _draws(operator: Operator, drawing: Collection[int]) -> bool:
    if isinstance(operator.options, RandomOptions):
        return operator.options.seed == operator.options.seed2 == 0
    return any(index in drawing for _, index in called_subgraphs(operator.options))
