"""TensorFlow's operators that a builtin operator computes: its rule with translated options."""

from typing import Any

from jaxdelegate.op_lowering.families import rule_modules
from jaxdelegate.op_lowering.flex.options import BUILTIN, FAMILIES, translated
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.rule import Function, Op, OpRule, rule, table

_Op = Op[FlexOptions]
_RULES: dict[str, OpRule] = {
    name: rule
    for module in rule_modules(FAMILIES)
    for name, rule in getattr(module, "RULES", {}).items()
}


def _rule(name: str) -> OpRule[Any]:
    builtin = _RULES[BUILTIN[name][0]]

    def why_not(op: _Op) -> str | None:
        options = translated(name, op.options)
        if isinstance(options, str):
            return options
        return builtin.why_not(Op(op.context, options, op.inputs, op.outputs))

    def lower(op: _Op) -> Function:
        options = translated(name, op.options)
        if isinstance(options, str):
            raise ValueError(f"{FLEX}{name} is never lowered: {options}")
        return builtin.lower(Op(op.context, options, op.inputs, op.outputs))

    return rule(f"{FLEX}{name}", 1, why_not, lower, arity=builtin.arity, results=builtin.results)


RULES = table(*map(_rule, BUILTIN))
