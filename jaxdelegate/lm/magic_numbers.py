"""Models whose number of cache entries is a magic number: a prime, which stands for any number.

Source: litert/runtime/magic_number_utils.cc of LiteRT and magic_number_configs_helper.cc of
LiteRT-LM, which write another number into the model's shapes when they open it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxdelegate.model.records import Model, Operator, Subgraph, Tensor

_SMALLEST = 11
# Which inputs of operators are shapes or ends.
_INPUTS = {"FILL": 0, "RESHAPE": 1, "BROADCAST_TO": 1, "RANGE": 1, "SLICE": 2}


def is_magic(number: int) -> bool:
    """Whether it is one of the primes that LiteRT-LM replaces."""
    divisors = range(2, int(number**0.5) + 1)
    return number >= _SMALLEST and all(number % n for n in divisors)


def with_number(model: Model, magic: int, number: int) -> Model:
    """The model with another number in all shapes; multiples become multiples of that number."""
    subgraphs = (_with_number(subgraph, magic, number) for subgraph in model.subgraphs)
    return dataclasses.replace(model, subgraphs=tuple(subgraphs))


def _with_number(subgraph: Subgraph, magic: int, number: int) -> Subgraph:
    indices = {index for operator in subgraph.operators for index in _parameters(operator)}

    def changed(tensor: Tensor) -> Tensor:
        if tensor.stored is None:
            shape = tuple(n if n % magic else n // magic * number for n in tensor.shape)
            return dataclasses.replace(tensor, shape=shape, stored_shape=shape)
        values = tensor.data if tensor.index in indices else None
        if values is None or values.dtype.kind != "i":
            return tensor
        new = np.where(values % magic, values, values // magic * number).astype(values.dtype)
        return dataclasses.replace(tensor, stored=new.reshape(-1).view(np.uint8))

    return dataclasses.replace(subgraph, tensors=tuple(map(changed, subgraph.tensors)))


def _parameters(operator: Operator) -> tuple[int, ...]:
    place = _INPUTS.get(operator.name)
    return () if place is None else operator.inputs[place : place + 1]
