"""Checkpoints of on-device training: Save and Restore, which only a host can do; EnsureShape."""

from jaxdelegate.op_lowering.common.movement import why_not_moved
from jaxdelegate.op_lowering.flex.options import EnsureShapeOptions
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.rule import Function, Op, OpRule, host_only, table


def _why_not_ensured(op: Op[EnsureShapeOptions]) -> str | None:
    """The shape of an operator that is not dynamic has been checked when it was inferred."""
    return why_not_moved(op.context, op.inputs[0], op.outputs[0])


def _lower_ensured(_op: Op[EnsureShapeOptions]) -> Function:
    return lambda x: (x,)


RULES = table(
    OpRule(f"{FLEX}EnsureShape", EnsureShapeOptions, 1, _why_not_ensured, _lower_ensured),
    host_only(f"{FLEX}Restore", FlexOptions, 1, "it reads a file"),
    host_only(f"{FLEX}Save", FlexOptions, 1, "it writes a file"),
)
