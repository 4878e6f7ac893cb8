"""Why XLA cannot run an operator, or None, and the operator as its rule sees it."""

import dataclasses
import enum
import functools
from collections.abc import Mapping

import numpy as np

from jaxdelegate.lowering import fake_quantization, float_operators
from jaxdelegate.lowering.computation import naming
from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.options import FusedOptions, Options, as_read, record_of
from jaxdelegate.op_lowering.registry import rule_of
from jaxdelegate.op_lowering.rule import LoweringContext, Op, OpRule
from jaxdelegate.op_lowering.spec import Specs, TensorSpec
from jaxdelegate.passes.propagation import KERNEL_ERRORS, gather

RULE_RAISED = "its rule raised"  # a bug in jaxdelegate: rules must not raise for any file
_NO_CUSTOM_RULE = "custom operator without an XLA lowering; jaxdelegate.register_operator adds one"


class Arithmetic(enum.Enum):
    """How an operator is computed."""

    DECLARED = enum.auto()  # on the tensors' dtypes, which are floats in the float view
    INTEGER = enum.auto()  # on integers, within the float view
    FLOAT = enum.auto()  # on floats, within integer mode


def rule_for(operator: Operator) -> OpRule | None:
    """The rule of an operator of the file, or of one that a rewrite created."""
    return rule_of(operator.name, operator.options)


def context_for(
    context: LoweringContext, operator: Operator, specs: Mapping[int, TensorSpec]
) -> LoweringContext:
    """The lowering context of one operator: version, intermediate tensors, precision."""
    intermediates = tuple(specs[i] for i in operator.intermediates if i in specs)
    precision, subgraphs = context.precision.of_operator(operator.index), context.subgraphs
    if subgraphs is not None and precision != context.precision:
        lower = functools.partial(subgraphs.lower, precision=precision)
        subgraphs = dataclasses.replace(subgraphs, lower=lower)
    return dataclasses.replace(
        context,
        op_version=operator.version,
        intermediates=intermediates,
        precision=precision,
        subgraphs=subgraphs,
    )


def as_seen(
    context: LoweringContext,
    operator: Operator,
    inputs: Specs,
    outputs: Specs,
    arithmetic: Arithmetic = Arithmetic.DECLARED,
) -> Op[Options]:
    """The operator as its rule sees it; specs are as declared."""
    options = operator.options
    if arithmetic is Arithmetic.INTEGER:
        result = dataclasses.replace(context.result, grid=None)
        context = dataclasses.replace(context, quant_mode="integer", result=result)
    elif arithmetic is Arithmetic.FLOAT:
        context = dataclasses.replace(context, quant_mode="float_view")
        options = fake_quantization.options_of(options, inputs)
        inputs, outputs = map(fake_quantization.viewed_all, (inputs, outputs))
    return Op(context, options, *as_read(record_of(operator.name), inputs, outputs))


def why_not(
    context: LoweringContext, operator: Operator, inputs: Specs, outputs: Specs
) -> str | None:
    """Why XLA cannot run an operator; None if it can. `context` is that of `context_for`.

    Specs are the file's; of an operator that a rewrite created, those that rules see.
    """
    rule = rule_for(operator)
    if rule is None:
        return _NO_CUSTOM_RULE if operator.custom else "jaxdelegate has no XLA lowering of it"
    present = [spec for spec in (*inputs, *outputs) if spec is not None]
    if not context.enable_quant and any(spec.is_quantized for spec in present):
        return "it is quantized, and the option enable_quant is off"
    if context.quant_mode == "float_view" and not isinstance(operator.options, FusedOptions):
        return _why_not_viewed(context, rule, operator, inputs, outputs)
    if context.program.may_use_floats and _runs_in_floats(context, rule, operator, inputs, outputs):
        return None
    return _reason(rule, operator, as_seen(context, operator, inputs, outputs))


def runs_in_floats(
    context: LoweringContext, operator: Operator, specs: Mapping[int, TensorSpec]
) -> bool:
    """Whether integer mode runs an operator in floats: see `float_operators`."""
    inputs, outputs = gather(specs, operator.inputs), gather(specs, operator.outputs)
    rule = rule_for(operator)
    context = context_for(context, operator, specs)
    return rule is not None and _runs_in_floats(context, rule, operator, inputs, outputs)


def _runs_in_floats(
    context: LoweringContext, rule: OpRule, operator: Operator, inputs: Specs, outputs: Specs
) -> bool:
    name, adds_products = operator.name, context.kernels.cpu_int8_sums
    if not float_operators.is_possible(name, operator.options, inputs, outputs):
        return False
    is_faster = float_operators.is_faster(name, inputs, outputs, adds_products=adds_products)
    in_integers = as_seen(context, operator, inputs, outputs)
    if not is_faster and _reason(rule, operator, in_integers) is None:
        return False
    return _why_not_viewed(context, rule, operator, inputs, outputs) is None


def _why_not_viewed(
    context: LoweringContext, rule: OpRule, operator: Operator, inputs: Specs, outputs: Specs
) -> str | None:
    reason = fake_quantization.why_not(operator.name, operator.options, inputs, outputs)
    if reason is not None:
        return reason
    is_on_integers = fake_quantization.is_on_integers(operator.name, inputs, outputs)
    arithmetic = Arithmetic.INTEGER if is_on_integers else Arithmetic.FLOAT
    return _reason(rule, operator, as_seen(context, operator, inputs, outputs, arithmetic))


def _reason(rule: OpRule, operator: Operator, op: Op[Options]) -> str | None:
    if is_identity(rule, op):
        return None
    try:
        with naming(operator):
            return rule.reason(op)
    except KERNEL_ERRORS as error:  # a damaged file, which reference kernels reject, too
        return f"{RULE_RAISED} {type(error).__name__}: {error}"


def is_identity(rule: OpRule, op: Op[Options]) -> bool:
    """Whether the operator is an identity in the float view (QUANTIZE between two views)."""
    if not rule.is_identity_in_float_view or op.context.quant_mode != "float_view":
        return False
    dtypes = {spec.dtype for spec in (*op.inputs[:1], *op.outputs) if spec is not None}
    return dtypes == {np.dtype(np.float32)}
