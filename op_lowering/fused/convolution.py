"""A convolution with a residual or a nonlinearity after it, which only rewrites create.

Our CPU kernels compute both in one call, while sums are in the cache, and cuDNN adds a residual on
a GPU. If neither can, the rule refuses, and the operators stay separate. Otherwise the rule also
offers the convolution's other algorithms to the tuner.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from jaxdelegate.op_lowering.common.basics import final_activation
from jaxdelegate.op_lowering.common.products import why_not_fused
from jaxdelegate.op_lowering.convolution.algorithms import by_library
from jaxdelegate.op_lowering.convolution.options import Conv2DOptions, DepthwiseConv2DOptions
from jaxdelegate.op_lowering.convolution.rule import family
from jaxdelegate.op_lowering.fused.options import FusedConvolutionOptions
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType
from jaxdelegate.op_lowering.rule import Function, Lowered, Op, first_reason, optional, rule, table


def _convolution(op: Op[FusedConvolutionOptions]) -> Op[Conv2DOptions | DepthwiseConv2DOptions]:
    return Op(op.context, op.options.convolution, op.inputs[:3], op.outputs)


def _why_not(op: Op[FusedConvolutionOptions]) -> str | None:
    residual, y = optional(op.inputs, 3), op.outputs[0]
    reason = first_reason(
        family(op.options.convolution).why_not(_convolution(op)),
        why_not_fused(op.options.fused_activation_function),
        _why_not_activations(op.options),
        None
        if residual is None or (residual.shape, residual.dtype) == (y.shape, y.dtype)
        else f"residual and result differ: {list(residual.shape)} and {list(y.shape)}",
    )
    if reason is not None or _by_one_kernel(op.in_context(algorithm=None)) is not None:
        return reason
    return "neither our kernels nor cuDNN compute it in one call"


def _why_not_activations(options: FusedConvolutionOptions) -> str | None:
    inner = options.convolution.fused_activation_function
    if inner is ActivationFunctionType.NONE:
        return None
    return f"the convolution itself has a fused {inner.name}"


def _by_one_kernel(op: Op[FusedConvolutionOptions]) -> Lowered | None:
    o = op.options
    return family(o.convolution).with_epilogue(
        _convolution(op), o.fused_activation_function, o.nonlinearity
    )


def _lower(op: Op[FusedConvolutionOptions]) -> Function:
    fused = _by_one_kernel(op)
    return _by_xla(op) if fused is None else fused


def _by_xla(op: Op[FusedConvolutionOptions]) -> Function:
    # Only the final result goes on the grid.
    bare = op.in_context(result=dataclasses.replace(op.context.result, grid=None))
    plain: Any = family(op.options.convolution).lower(_convolution(bare))
    activate = final_activation(op.options.fused_activation_function, op.options.nonlinearity)

    def run(
        x: jax.Array, w: jax.Array, bias: jax.Array | None = None, residual: jax.Array | None = None
    ) -> tuple[jax.Array]:
        (y,) = plain.run(x, w, bias)
        return (activate(y if residual is None else y + residual.astype(y.dtype)),)

    lowered: Lowered = dataclasses.replace(plain, run=run)
    return lowered


def _algorithms(op: Op[FusedConvolutionOptions]) -> Mapping[str, Any]:
    algorithms = family(op.options.convolution).algorithms(_convolution(op))
    library = by_library(op.context.platform)[1].__name__
    # The default first.
    return {library: None, **algorithms} if op.context.platform == "gpu" else algorithms


FUSED = table(rule("fused_convolution", 1, _why_not, _lower, arity=2, algorithms=_algorithms))
