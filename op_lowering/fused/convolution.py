"""A convolution with a residual or a nonlinearity after it, which only rewrites make.

Our own CPU kernels compute it at once, while sums are in the cache, and cuDNN a residual on a GPU;
where they do not, the rule refuses, and the operators stay apart. Where they do, other algorithms
to run the convolution stand next to them, for whoever measures.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from jaxdelegate.op_lowering.common.basics import end_of
from jaxdelegate.op_lowering.common.products import why_not_fused
from jaxdelegate.op_lowering.common.quantized_products import Tensors
from jaxdelegate.op_lowering.convolution.algorithms import by_library
from jaxdelegate.op_lowering.convolution.rule import family
from jaxdelegate.op_lowering.fused.options import FusedConvolutionOptions
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType
from jaxdelegate.op_lowering.rule import (
    Function,
    Lowered,
    LoweringContext,
    OpRule,
    first_reason,
    optional,
    table,
)
from jaxdelegate.op_lowering.spec import Specs


def _why_not(
    context: LoweringContext, o: FusedConvolutionOptions, inputs: Specs, outputs: Specs
) -> str | None:
    residual, y = optional(inputs, 3), outputs[0]
    reason = first_reason(
        family(o.convolution).why_not(context, o.convolution, inputs[:3], outputs),
        why_not_fused(o.fused_activation_function),
        _why_not_activations(o),
        None
        if residual is None or (residual.shape, residual.dtype) == (y.shape, y.dtype)
        else f"residual and result differ: {list(residual.shape)} and {list(y.shape)}",
    )
    by_default = dataclasses.replace(context, algorithm=None)
    if reason is not None or _at_once(by_default, o, inputs, outputs) is not None:
        return reason
    return "neither our kernels nor cuDNN compute it at once"


def _why_not_activations(o: FusedConvolutionOptions) -> str | None:
    inner = o.convolution.fused_activation_function
    if inner is ActivationFunctionType.NONE:
        return None
    return f"{inner.name} stands between the convolution and what is after it"


def _at_once(
    context: LoweringContext, o: FusedConvolutionOptions, inputs: Specs, outputs: Specs
) -> Lowered | None:
    tensors = Tensors(inputs[0], inputs[1], optional(inputs, 2), outputs[0])
    return family(o.convolution).ended(
        context, o.convolution, tensors, o.fused_activation_function, o.nonlinearity
    )


def _lower(
    context: LoweringContext, o: FusedConvolutionOptions, inputs: Specs, outputs: Specs
) -> Function:
    own = _at_once(context, o, inputs, outputs)
    return _by_xla(context, o, inputs, outputs) if own is None else own


def _by_xla(
    context: LoweringContext, o: FusedConvolutionOptions, inputs: Specs, outputs: Specs
) -> Function:
    """The convolution in another algorithm, and then what stands after it."""
    bare = dataclasses.replace(context, grid=None)  # what goes on the grid is the end
    plain: Any = family(o.convolution).lower(bare, o.convolution, inputs[:3], outputs)
    ended = end_of(o.fused_activation_function, o.nonlinearity)

    def run(
        x: jax.Array, w: jax.Array, bias: jax.Array | None = None, residual: jax.Array | None = None
    ) -> tuple[jax.Array]:
        (y,) = plain.run(x, w, bias)
        return (ended(y if residual is None else y + residual.astype(y.dtype)),)

    lowered: Lowered = dataclasses.replace(plain, run=run)
    return lowered


def _algorithms(
    context: LoweringContext, o: FusedConvolutionOptions, inputs: Specs, outputs: Specs
) -> Mapping[str, Any]:
    algorithms = family(o.convolution).algorithms(context, o.convolution, inputs[:3], outputs)
    library = by_library(context.platform)[1].__name__
    # The default first.
    return {library: None, **algorithms} if context.platform == "gpu" else algorithms


ENDED_CONVOLUTION = OpRule(
    "fused_convolution",
    FusedConvolutionOptions,
    1,
    _why_not,
    _lower,
    arity=2,
    algorithms=_algorithms,
)

FUSED = table(ENDED_CONVOLUTION)
