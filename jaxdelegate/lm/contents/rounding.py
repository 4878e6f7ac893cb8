"""How products with integer weights round an encoder's activations: as XNNPACK does.

XNNPACK, which runs encoders in LiteRT-LM on a CPU, rounds each row from its least to its largest
value; LiteRT's own kernel, whose tokens are a language model's here, between both signs of its
largest magnitude. An image goes through more such products than a token of an answer.
"""

import dataclasses

from jaxdelegate.model.records import Model, Operator, Subgraph
from jaxdelegate.op_lowering.matmul.options import FullyConnectedOptions


def rounded_as_xnnpack(model: Model) -> Model:
    """The model whose FULLY_CONNECTED operators of dynamic range round rows asymmetrically."""
    return dataclasses.replace(model, subgraphs=tuple(map(_of_subgraph, model.subgraphs)))


def _of_subgraph(graph: Subgraph) -> Subgraph:
    return dataclasses.replace(graph, operators=tuple(map(_of_operator, graph.operators)))


def _of_operator(op: Operator) -> Operator:
    if not isinstance(op.options, FullyConnectedOptions):
        return op
    options = dataclasses.replace(op.options, asymmetric_quantize_inputs=True)
    return dataclasses.replace(op, options=options)
