"""The rule of a TensorFlow operator, with the types that core/ops/*.cc gives it."""

from collections.abc import Sequence
from typing import Any

from jaxdelegate.op_lowering.common.signature import Input, Result, typed_rule
from jaxdelegate.op_lowering.records.flex import FLEX
from jaxdelegate.op_lowering.rule import Lower, OpRule, WhyNot


def rule(
    name: str,
    inputs: Sequence[Input],
    lower: Lower[Any],
    why_not: WhyNot[Any] | None = None,
    *,
    results: Sequence[Result] = (0,),
) -> OpRule[Any]:
    """`name` is TensorFlow's; see typed_rule.

    `why_not` need not repeat what the kernel's shape function checks: it comes first.
    """
    return typed_rule(f"{FLEX}{name}", inputs, lower, why_not, results=results)
