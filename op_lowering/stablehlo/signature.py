"""The rule of a StableHLO operator, with the types that the StableHLO specification gives it."""

from collections.abc import Sequence
from typing import Any

from jaxdelegate.op_lowering.common.signature import Input, Result, typed_rule
from jaxdelegate.op_lowering.rule import Lower, OpRule, WhyNot
from jaxdelegate.op_lowering.stablehlo import options


def rule(
    name: str,
    inputs: Sequence[Input],
    lower: Lower[Any],
    why_not: WhyNot[Any] | None = None,
    *,
    results: Sequence[Result] = (0,),
) -> OpRule[Any]:
    """See typed_rule.

    Attributes and shapes are checked by the kernel's shape function, which comes before `why_not`.
    """
    return typed_rule(name, options.RECORDS[name].options, inputs, lower, why_not, results=results)
