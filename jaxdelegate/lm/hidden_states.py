"""The hidden state of a language model's last token: what its logits are computed from."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from jaxdelegate.lm.graph import LOGITS

if TYPE_CHECKING:
    from jaxdelegate.model.records import Model, SignatureDef, Subgraph

HIDDEN = "hidden_states"
NO_HIDDEN_STATES = (
    "the model's logits are not the product of one tensor of floats and a constant, so it has no "
    "hidden states to return"
)
_PRODUCTS = frozenset({"BATCH_MATMUL", "CONV_2D", "FULLY_CONNECTED"})


def hidden_size(model: Model, signature: SignatureDef) -> int:
    """How many elements a signature's hidden states have; 0: they cannot be found."""
    if LOGITS not in signature.outputs:
        return 0
    subgraph = model.subgraphs[signature.subgraph]
    index = _hidden_tensor(subgraph, signature.outputs[LOGITS])
    return 0 if index is None else math.prod(subgraph.tensors[index].shape)


def with_hidden_states(model: Model, signature: SignatureDef) -> Model:
    """The model with them as one more output of a signature, which has them."""
    subgraph = model.subgraphs[signature.subgraph]
    index = _hidden_tensor(subgraph, signature.outputs[LOGITS])
    assert index is not None
    more = dataclasses.replace(subgraph, outputs=(*subgraph.outputs, index))
    named = dataclasses.replace(signature, outputs={**signature.outputs, HIDDEN: index})
    return dataclasses.replace(
        model,
        subgraphs=tuple(more if s is subgraph else s for s in model.subgraphs),
        signatures=tuple(named if s is signature else s for s in model.signatures),
    )


def _hidden_tensor(subgraph: Subgraph, logits: int) -> int | None:
    """The tensor of floats that the last product multiplies by a constant."""
    computed_by = {index: op for op in subgraph.operators for index in op.outputs}
    index = logits
    while index in computed_by:
        operator = computed_by[index]
        computed = [i for i in operator.inputs if i in computed_by]
        if len(computed) != 1:
            return None
        (index,) = computed
        if operator.name in _PRODUCTS:
            return index if subgraph.tensors[index].dtype.kind == "f" else None
    return None
