"""Resource variables as explicit state: VAR_HANDLE, READ_VARIABLE, ASSIGN_VARIABLE.

A host that knows which variable a handle stands for appends it to the operator's inputs, as a
variable tensor. VAR_HANDLE has no inputs and is folded; operators that get their handle from
elsewhere stay on the host, as hash tables do.
"""

from jaxdelegate.op_lowering.dtypes import HANDLES
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.rule import (
    Function,
    Op,
    host_only,
    optional,
    rule,
    table,
    variable_inputs,
)
from jaxdelegate.op_lowering.spec import TensorSpec


def _why_not_state(state: TensorSpec | None, value: TensorSpec) -> str | None:
    if value.dtype in HANDLES:
        return f"{value.name!r} is a handle, which XLA does not have"
    if state is None or not state.is_variable:
        return "which variable the handle refers to is known at run time only"
    if (state.shape, state.dtype) != (value.shape, value.dtype):
        return f"the variable is {state.dtype} {list(state.shape)}, {value.name!r} is not"
    return None


def _why_not_read(op: Op[Options]) -> str | None:
    return _why_not_state(optional(op.inputs, 1), op.outputs[0])


def _lower_read(_op: Op[Options]) -> Function:
    return lambda _handle, state: (state,)


def _why_not_assign(op: Op[Options]) -> str | None:
    return _why_not_state(optional(op.inputs, 2), op.inputs[1])


def _lower_assign(_op: Op[Options]) -> Function:
    return lambda _handle, value, _old: (value,)


_TABLES = "XLA does not support hash tables"

RULES = table(
    rule("ASSIGN_VARIABLE", 1, _why_not_assign, _lower_assign, variable_inputs, arity=2, results=0),
    host_only("HASHTABLE", 1, _TABLES),
    host_only("HASHTABLE_FIND", 1, _TABLES),
    host_only("HASHTABLE_IMPORT", 1, _TABLES),
    host_only("HASHTABLE_SIZE", 1, _TABLES),
    rule("READ_VARIABLE", 1, _why_not_read, _lower_read),
    host_only("VAR_HANDLE", 1, "XLA does not support resource handles"),
)
