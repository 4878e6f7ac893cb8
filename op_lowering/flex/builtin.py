"""TensorFlow's operators that a builtin operator computes: its rule with translated options."""

from typing import Any

from jaxdelegate.op_lowering.families import rule_modules
from jaxdelegate.op_lowering.flex import options as flex
from jaxdelegate.op_lowering.flex.options import BUILTIN, FAMILIES, translated
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.rule import Function, Op, OpRule, table

_Op = Op[FlexOptions]
_RULES: dict[str, OpRule] = {
    name: rule
    for module in rule_modules(FAMILIES)
    for name, rule in getattr(module, "RULES", {}).items()
}


def _rule(name: str) -> OpRule[Any]:
    rule = _RULES[BUILTIN[name][0]]

    def why_not(op: _Op) -> str | None:
        options = translated(name, op.options)
        if isinstance(options, str):
            return options
        return rule.why_not(Op(op.context, options, op.inputs, op.outputs))

    def lower(op: _Op) -> Function:
        options = translated(name, op.options)
        if isinstance(options, str):
            raise ValueError(f"{FLEX}{name} is never lowered: {options}")
        return rule.lower(Op(op.context, options, op.inputs, op.outputs))

    flex_name = f"{FLEX}{name}"
    options = flex.RECORDS[flex_name].options
    return OpRule(flex_name, options, 1, why_not, lower, arity=rule.arity, results=rule.results)


RULES = table(*map(_rule, BUILTIN))
