"""Which results XLA:CPU is to lay out in memory instead of fusing them into what reads them."""

import math
from collections.abc import Collection, Mapping, Sequence

from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.options import record_of
from jaxdelegate.op_lowering.spec import TensorSpec

# Smaller results cost less than to lay them out in memory.
_LEAST_BYTES = 4096


def shared_results(
    operators: Sequence[Operator], specs: Mapping[int, TensorSpec], kept: Collection[int]
) -> frozenset[int]:
    """Results to lay out in memory once.

    Those with several readers that do not meet again at once, or with one that reads them several
    times, and each time would compute them again: `x` of x * sigmoid(x) is not among them. And
    quantized convolutions, which cost too much.

    Args:
        operators: of one program, in execution order.
        specs: of every tensor that they touch.
        kept: tensors that somebody outside of the program reads.
    """
    readers: dict[int, list[Operator]] = {}
    for operator in operators:
        for i in dict.fromkeys(operator.inputs):
            readers.setdefault(i, []).append(operator)
    made = (i for operator in operators for i in operator.outputs if i in specs)
    several = (i for i in made if _is_read_again(readers.get(i, ())) and _is_large(specs[i]))
    apart = (i for i in several if not _meet(i, readers, specs, kept))
    costly = (op.outputs[0] for op in operators if record_of(op.name).is_costly_requantized)
    quantized = (i for i in costly if specs[i].is_quantized and _is_large(specs[i]))
    return frozenset((*apart, *quantized))


def _is_read_again(readers: Sequence[Operator]) -> bool:
    return len(readers) > 1 or any(record_of(op.name).rereads for op in readers)


def _is_large(spec: TensorSpec) -> bool:
    return math.prod(spec.shape) * spec.dtype.itemsize >= _LEAST_BYTES


def _meet(
    tensor: int,
    readers: Mapping[int, Sequence[Operator]],
    specs: Mapping[int, TensorSpec],
    kept: Collection[int],
) -> bool:
    """Whether all that is made of a tensor ends in one value, before anything else sees it."""
    waiting = {op.index: op for op in readers[tensor]}
    while len(waiting) > 1:
        operator = waiting.pop(min(waiting))
        if not record_of(operator.name).is_elementwise or len(operator.outputs) != 1:
            return False
        (y,) = operator.outputs
        if y in kept or specs[y].shape != specs[tensor].shape:
            return False
        waiting.update((op.index, op) for op in readers.get(y, ()))
    return all(record_of(op.name).is_elementwise for op in waiting.values())
