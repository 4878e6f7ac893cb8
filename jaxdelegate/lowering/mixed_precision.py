"""Chooses the tensors that a program stores in reduced precision under a precision policy.

Operators are lowered for float32. A tensor in reduced precision is downcast once, after the
operator that yields it, and upcast by each reader; XLA fuses both. A program's inputs and outputs
keep the file's dtype. Finite values beyond float16's range become 65504, so that storing them in
reduced precision does not result in infinities, and then NaN.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.common.downcast import downcast
from jaxdelegate.op_lowering.common.downcast import upcast as finite
from jaxdelegate.op_lowering.common.quantized_cache import QuantizedCache
from jaxdelegate.op_lowering.dtypes import HALVES
from jaxdelegate.op_lowering.options import record_of
from jaxdelegate.op_lowering.precision import FLOAT32, PrecisionPolicy
from jaxdelegate.op_lowering.records.operator import Result
from jaxdelegate.op_lowering.spec import TensorSpec

_LOGGER = logging.getLogger("jaxdelegate")


def reduced_tensors(
    policy: PrecisionPolicy,
    operators: Sequence[Operator],
    specs: Mapping[int, TensorSpec],
    stored: Mapping[int, TensorSpec],
    passing: AbstractSet[int],
) -> dict[int, np.dtype]:
    """The tensors to store in the policy's storage dtype, if that is not float32.

    `specs` are as rules see them. `stored` are the quantized tensors of a float view: those of more
    than 8 bits stay float32. `passing` are inputs, outputs and states.
    """
    if policy.storage == FLOAT32:
        return {}
    unrounded = _read_unrounded(operators, passing)
    unfit = unfit_constants(policy, operators, specs)
    for index, reason in unfit.items():
        _LOGGER.debug("%r stays float32: %s", specs[index].name, reason)
    reduced: set[int] = set()
    for operator in operators:
        is_kept = operator.index in policy.float32_operators or any(
            i in unfit for i in operator.inputs
        )
        if is_kept or not _yields_reduced(operator, specs, reduced):
            continue
        reduced.update(i for i in operator.outputs if _is_float32(specs.get(i)))
        wide = {i for i in operator.outputs if i in stored and stored[i].dtype.itemsize > 1}
        reduced -= unrounded | wide
    return dict.fromkeys(reduced, policy.storage)


def _read_unrounded(operators: Sequence[Operator], passing: AbstractSet[int]) -> set[int]:
    """`passing` and tensors that operators read unrounded, also through operators that move."""
    unrounded = set(passing)
    for operator in reversed(operators):
        moves_one = record_of(operator.name).precision.result is Result.MOVED and any(
            i in unrounded for i in operator.outputs
        )
        if record_of(operator.name).precision.reads_unrounded or moves_one:
            unrounded.update(operator.inputs)
    return unrounded


def _yields_reduced(
    operator: Operator, specs: Mapping[int, TensorSpec], reduced: AbstractSet[int]
) -> bool:
    if record_of(operator.name).precision.result is Result.REDUCED:
        return True
    if record_of(operator.name).precision.result is not Result.MOVED:
        return False
    read = [i for i in operator.inputs if i >= 0 and _is_float32(specs.get(i))]
    return all(i in reduced or specs[i].const is not None for i in read)


def _is_float32(spec: TensorSpec | None) -> bool:
    return spec is not None and spec.dtype == FLOAT32 and spec.const is None


def stored(
    value: Any,
    index: int,
    operator: Operator,
    specs: Mapping[int, TensorSpec],
    reduced: Mapping[int, np.dtype],
    policy: PrecisionPolicy,
) -> Any:
    """The value of tensor `index`, a result of `operator`, as the program stores it."""
    dtype = reduced.get(index)
    if dtype is None:  # the operator may yield it in reduced precision
        return finite(value, FLOAT32) if _is_float32(specs.get(index)) else value
    if moves_reduced(operator, specs, reduced):
        return value.astype(dtype)  # without a clamp, XLA removes both conversions
    is_product = record_of(operator.name).product is not None
    return downcast(value, dtype, exactly=policy.rounds_exactly, infinities=not is_product)


def moves_reduced(
    operator: Operator, specs: Mapping[int, TensorSpec], reduced: Mapping[int, np.dtype]
) -> bool:
    """Whether an operator only moves values of tensors in reduced precision."""
    if record_of(operator.name).precision.result is not Result.MOVED:
        return False
    floats = [i for i in operator.inputs if i >= 0 and specs[i].dtype == FLOAT32]
    return all(i in reduced for i in floats)


def is_as_declared(result: Any, spec: Any, *, may_be_reduced: bool) -> bool:
    """Whether `result` has the shape of `spec`, and its dtype or, if allowed, a reduced one."""
    is_short = result.dtype in HALVES or isinstance(result, QuantizedCache)
    is_reduced = may_be_reduced and spec.dtype == FLOAT32 and is_short
    return tuple(result.shape) == tuple(spec.shape) and (result.dtype == spec.dtype or is_reduced)


def upcast(value: Any, spec: TensorSpec | None) -> Any:
    """A value in the dtype of the spec that its reader was lowered for."""
    is_reduced = spec is not None and spec.dtype == FLOAT32 and value.dtype != FLOAT32
    return value.astype(FLOAT32) if is_reduced else value


def unfit_constants(
    policy: PrecisionPolicy, operators: Iterable[Operator], specs: Mapping[int, TensorSpec]
) -> dict[int, str]:
    """Constants that stay float32 although the policy stores constants reduced, with reasons."""
    operands = {i for op in operators if record_of(op.name).product for i in op.inputs[:2]}
    reasons = {}
    for index in sorted({i for op in operators for i in op.inputs if i >= 0}):
        const = specs[index].const
        if const is not None:
            reasons[index] = policy.why_not_constant(const, is_operand=index in operands)
    return {index: reason for index, reason in reasons.items() if reason is not None}
