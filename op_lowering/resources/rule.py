"""Resource variables as explicit state: VAR_HANDLE, READ_VARIABLE, ASSIGN_VARIABLE.

A host that knows which variable a handle stands for appends it to the operator's inputs, as a
variable tensor. VAR_HANDLE has no inputs and folds away; a handle that comes from elsewhere keeps
its users on the host, and so do hash tables.
"""

import jax

from jaxdelegate.op_lowering.dtypes import HANDLES
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.resources.options import (
    AssignVariableOptions,
    HashtableFindOptions,
    HashtableImportOptions,
    HashtableOptions,
    HashtableSizeOptions,
    ReadVariableOptions,
    VarHandleOptions,
)
from jaxdelegate.op_lowering.rule import (
    Function,
    LoweringContext,
    OpRule,
    host_only,
    optional,
    table,
    variable_inputs,
)
from jaxdelegate.op_lowering.spec import Specs, TensorSpec


def _why_not_state(state: TensorSpec | None, value: TensorSpec) -> str | None:
    if value.dtype in HANDLES:
        return f"{value.name!r} is a handle, which XLA does not have"
    if state is None or not state.is_variable:
        return "which variable the handle refers to is known at run time only"
    if (state.shape, state.dtype) != (value.shape, value.dtype):
        return f"the variable is {state.dtype} {list(state.shape)}, {value.name!r} is not"
    return None


def _why_not_read(_c: LoweringContext, _o: Options, inputs: Specs, outputs: Specs) -> str | None:
    return _why_not_state(optional(inputs, 1), outputs[0])


def _lower_read(_c: LoweringContext, _o: Options, _i: Specs, _s: Specs) -> Function:
    return lambda _handle, state: (state,)


def _why_not_assign(_c: LoweringContext, _o: Options, inputs: Specs, _s: Specs) -> str | None:
    return _why_not_state(optional(inputs, 2), inputs[1])


def _lower_assign(_c: LoweringContext, _o: Options, _i: Specs, _s: Specs) -> Function:
    def assign(_handle: object, value: jax.Array, _old: jax.Array) -> tuple[jax.Array]:
        return (value,)

    return assign


READ_VARIABLE = OpRule("READ_VARIABLE", ReadVariableOptions, 1, _why_not_read, _lower_read)
ASSIGN_VARIABLE = OpRule(
    "ASSIGN_VARIABLE",
    AssignVariableOptions,
    1,
    _why_not_assign,
    _lower_assign,
    variable_inputs,
    arity=2,
    results=0,
)


VAR_HANDLE = host_only("VAR_HANDLE", VarHandleOptions, 1, "XLA does not support resource handles")
_TABLES = "XLA does not support hash tables"
HASHTABLE = host_only("HASHTABLE", HashtableOptions, 1, _TABLES)
HASHTABLE_FIND = host_only("HASHTABLE_FIND", HashtableFindOptions, 1, _TABLES)
HASHTABLE_IMPORT = host_only("HASHTABLE_IMPORT", HashtableImportOptions, 1, _TABLES)
HASHTABLE_SIZE = host_only("HASHTABLE_SIZE", HashtableSizeOptions, 1, _TABLES)

RULES = table(
    ASSIGN_VARIABLE,
    HASHTABLE,
    HASHTABLE_FIND,
    HASHTABLE_IMPORT,
    HASHTABLE_SIZE,
    READ_VARIABLE,
    VAR_HANDLE,
)
