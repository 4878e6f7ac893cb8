"""A convolution with a residual or a curve behind it, which only rewrites make.

Our own CPU kernels compute it at once, while sums are in the cache; where they do not, the rule
refuses, and the operators stay apart.
"""

from jaxdelegate.op_lowering.convolution import FAMILIES
from jaxdelegate.op_lowering.options import ActivationFunctionType, EndedConvolutionOptions
from jaxdelegate.op_lowering.products import why_not_fused
from jaxdelegate.op_lowering.quantized_products import Tensors
from jaxdelegate.op_lowering.rule import (
    Function,
    Lowered,
    LoweringContext,
    OpRule,
    first_reason,
    optional,
)
from jaxdelegate.op_lowering.spec import Specs


def _why_not(
    context: LoweringContext, o: EndedConvolutionOptions, inputs: Specs, outputs: Specs
) -> str | None:
    residual, y = optional(inputs, 3), outputs[0]
    family = FAMILIES[type(o.convolution)]
    reason = first_reason(
        family.why_not(context, o.convolution, inputs[:3], outputs),
        why_not_fused(o.fused_activation_function),
        _why_not_activations(o),
        None
        if residual is None or (residual.shape, residual.dtype) == (y.shape, y.dtype)
        else f"residual and result differ: {list(residual.shape)} and {list(y.shape)}",
    )
    if reason is not None or _lowered(context, o, inputs, outputs) is not None:
        return reason
    return "our kernels do not compute it"


def _why_not_activations(o: EndedConvolutionOptions) -> str | None:
    inner = o.convolution.fused_activation_function
    if inner is ActivationFunctionType.NONE:
        return None
    return f"{inner.name} stands between the convolution and what is behind it"


def _lowered(
    context: LoweringContext, o: EndedConvolutionOptions, inputs: Specs, outputs: Specs
) -> Lowered | None:
    tensors = Tensors(inputs[0], inputs[1], optional(inputs, 2), outputs[0])
    return FAMILIES[type(o.convolution)].native(
        context, o.convolution, tensors, o.fused_activation_function, o.curve
    )


def _lower(
    context: LoweringContext, o: EndedConvolutionOptions, inputs: Specs, outputs: Specs
) -> Function:
    lowered = _lowered(context, o, inputs, outputs)
    if lowered is None:
        raise ValueError("our kernels do not compute this convolution")
    return lowered


ENDED_CONVOLUTION = OpRule(
    "ended_convolution", EndedConvolutionOptions, 1, _why_not, _lower, arity=2
)
