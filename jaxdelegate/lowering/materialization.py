"""Chooses the results that XLA:CPU materializes instead of fusing them into their readers."""

import math
from collections.abc import Collection, Mapping, Sequence

from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.options import record_of
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.spec import TensorSpec

# Computing smaller results again is cheaper than storing them, unless they are the last of a chain.
_MIN_BYTES = 4096
_MOST_AGAIN = 4  # operators, functions such as SIN counting as more


def shared_results(
    operators: Sequence[Operator], specs: Mapping[int, TensorSpec], kept: Collection[int]
) -> frozenset[int]:
    """Results to materialize, because XLA would otherwise compute them for each reader.

    They have several readers whose results are not combined right away (as those of `x` are in x *
    sigmoid(x)), or a reader that reads them several times. Of small ones, only ends of chains of
    operators are materialized. Results of quantized convolutions always are, because they are
    expensive. `kept` tensors are read outside the program.
    """
    readers: dict[int, list[Operator]] = {}
    for operator in operators:
        for i in dict.fromkeys(operator.inputs):
            readers.setdefault(i, []).append(operator)
    results = (i for operator in operators for i in operator.outputs if i in specs)
    several = (i for i in results if _is_read_again(readers.get(i, ())))
    apart = {i for i in several if not _is_combined(i, readers, specs, kept)}
    large = {i for i in apart if _is_large(specs[i])}
    integers = (op.outputs[0] for op in operators if record_of(op.name).materializes_integers)
    quantized = (i for i in integers if specs[i].is_quantized and _is_large(specs[i]))
    return frozenset((*large, *_ends_of_chains(operators, large, apart - large), *quantized))


def _ends_of_chains(
    operators: Sequence[Operator], large: Collection[int], small: Collection[int]
) -> set[int]:
    """Those of the small results for which readers would compute many elementwise operators again.

    Such are the sums between the layers of a transformer: each layer would add up all before it.
    """
    again: dict[int, int] = {}  # how many operators
    ends = set()
    for operator in operators:
        record = record_of(operator.name)
        if record.is_elementwise:
            cost = _MOST_AGAIN + 1 if record.cost is costs.transcendental else 1
            count = cost + sum(again.get(i, 0) for i in dict.fromkeys(operator.inputs))
            for i in operator.outputs:
                if i in small and count > _MOST_AGAIN:
                    ends.add(i)
                again[i] = 0 if i in ends or i in large else count
    return ends


def _is_read_again(readers: Sequence[Operator]) -> bool:
    return len(readers) > 1 or any(record_of(op.name).rereads for op in readers)


def _is_large(spec: TensorSpec) -> bool:
    return math.prod(spec.shape) * spec.dtype.itemsize >= _MIN_BYTES


def _is_combined(
    tensor: int,
    readers: Mapping[int, Sequence[Operator]],
    specs: Mapping[int, TensorSpec],
    kept: Collection[int],
) -> bool:
    """Whether elementwise operators combine all results of a tensor's readers into one value."""
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
