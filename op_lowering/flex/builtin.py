"""TensorFlow's operators that a builtin operator computes: its rule with translated options."""

from jaxdelegate.op_lowering.comparison.rule import SELECT_V2
from jaxdelegate.op_lowering.convolution.rule import CONV_3D
from jaxdelegate.op_lowering.convolution.transpose_conv import CONV_3D_TRANSPOSE
from jaxdelegate.op_lowering.elementwise.rule import (
    ABS,
    ADD,
    DIV,
    MAXIMUM,
    MINIMUM,
    MUL,
    SUB,
    ZEROS_LIKE,
)
from jaxdelegate.op_lowering.flex import options as flex
from jaxdelegate.op_lowering.flex.options import BUILTIN
from jaxdelegate.op_lowering.layout.rule import CONCATENATION, REVERSE_V2, TRANSPOSE
from jaxdelegate.op_lowering.matmul.rule import BATCH_MATMUL
from jaxdelegate.op_lowering.normalization.rule import SOFTMAX
from jaxdelegate.op_lowering.padding.rule import PAD
from jaxdelegate.op_lowering.pooling.rule import AVG_POOL_3D, MAX_POOL_3D
from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.rule import Function, Op, OpRule, table
from jaxdelegate.op_lowering.slicing.rule import SPLIT_V, STRIDED_SLICE
from jaxdelegate.op_lowering.sorting.rule import TOPK_V2

_Op = Op[FlexOptions]
_RULES = table(
    ABS,
    ADD,
    AVG_POOL_3D,
    BATCH_MATMUL,
    CONCATENATION,
    CONV_3D,
    CONV_3D_TRANSPOSE,
    DIV,
    MAXIMUM,
    MAX_POOL_3D,
    MINIMUM,
    MUL,
    PAD,
    REVERSE_V2,
    SELECT_V2,
    SOFTMAX,
    SPLIT_V,
    STRIDED_SLICE,
    SUB,
    TOPK_V2,
    TRANSPOSE,
    ZEROS_LIKE,
)


def _rule(name: str) -> OpRule:
    rule, translated = _RULES[BUILTIN[name].name], BUILTIN[name].options

    def why_not(op: _Op) -> str | None:
        options = translated(op.options)
        if isinstance(options, str):
            return options
        return rule.why_not(Op(op.context, options, op.inputs, op.outputs))

    def lower(op: _Op) -> Function:
        options = translated(op.options)
        if isinstance(options, str):
            raise ValueError(f"{name} is never lowered: {options}")
        return rule.lower(Op(op.context, options, op.inputs, op.outputs))

    return OpRule(
        name,
        flex.RECORDS[name].options,
        1,
        why_not,
        lower,
        arity=rule.arity,
        results=rule.results,
    )


RULES = table(*map(_rule, BUILTIN))
