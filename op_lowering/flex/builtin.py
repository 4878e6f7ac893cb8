"""TensorFlow's operators that a builtin operator computes: its rule with translated options."""

from typing import Any

from jaxdelegate.op_lowering.comparison import rule as comparison
from jaxdelegate.op_lowering.convolution import rule as convolution
from jaxdelegate.op_lowering.convolution import transpose_conv
from jaxdelegate.op_lowering.elementwise import rule as elementwise
from jaxdelegate.op_lowering.flex import options as flex
from jaxdelegate.op_lowering.flex.options import BUILTIN, translated
from jaxdelegate.op_lowering.layout import rule as layout
from jaxdelegate.op_lowering.matmul import rule as matmul
from jaxdelegate.op_lowering.normalization import rule as normalization
from jaxdelegate.op_lowering.padding import rule as padding
from jaxdelegate.op_lowering.pooling import rule as pooling
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.rule import Function, Op, OpRule, table
from jaxdelegate.op_lowering.slicing import rule as slicing
from jaxdelegate.op_lowering.sorting import rule as sorting

_Op = Op[FlexOptions]
_MODULES = (
    *(comparison, convolution, elementwise, layout, matmul, normalization, padding),
    *(pooling, slicing, sorting, transpose_conv),
)
_RULES: dict[str, OpRule] = {
    name: rule for module in _MODULES for name, rule in module.RULES.items()
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
