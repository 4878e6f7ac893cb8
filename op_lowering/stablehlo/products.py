"""StableHLO's sums of products: DOT_GENERAL, CONVOLUTION.

Semantics: the StableHLO specification. Its precision_config is a lower bound, which the precision
policy satisfies.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.downcast import upcast
from jaxdelegate.op_lowering.common.pointwise import BOOLS, COMPLEX, INTEGERS
from jaxdelegate.op_lowering.common.products import Arithmetic, nothing
from jaxdelegate.op_lowering.common.signature import Input, typed_rule
from jaxdelegate.op_lowering.dtypes import FLOATS, HALVES
from jaxdelegate.op_lowering.rule import Function, Op, table
from jaxdelegate.op_lowering.stablehlo.elementwise import ELEMENTS, convert
from jaxdelegate.op_lowering.stablehlo.options import (
    StablehloConvolutionOptions,
    StablehloDotGeneralOptions,
)

_KINDS = (FLOATS, INTEGERS, COMPLEX, BOOLS)
_Options = StablehloConvolutionOptions | StablehloDotGeneralOptions


def _why_not_products(op: Op[_Options]) -> str | None:
    x, y = op.inputs[0], op.outputs[0]
    one_kind = any(x.dtype in kind and y.dtype in kind for kind in _KINDS)
    return None if one_kind else f"products of {x.dtype} are not {y.dtype}"


def _arithmetic(op: Op[_Options]) -> Arithmetic:
    """Sums have the wider dtype of input and output; booleans are counted.

    Half-precision operands are not converted where the device multiplies them; a CPU does not.
    """
    policy, dtype = op.context.precision, op.inputs[0].dtype
    widest = max(dtype, op.outputs[0].dtype, key=lambda d: d.itemsize)
    is_byte = widest.itemsize == 1  # XLA multiplies int8 wrongly on a GPU: integer_products.dot
    total = np.dtype(np.int32) if is_byte else policy.accumulator(widest)
    stays = dtype in HALVES and op.context.platform != "cpu"
    operand = dtype if stays else total
    return Arithmetic(operand, total, policy.precision(operand), total)


def _preferred(arithmetic: Arithmetic) -> np.dtype | None:
    """The `preferred_element_type`; None: the operands' dtype.

    JAX may lower and differentiate products without 64-bit types, and would then cut an explicit
    dtype to 32 bits.
    """
    return None if arithmetic.total == arithmetic.operand else arithmetic.total


def _stored(y: jax.Array, dtype: np.dtype) -> jax.Array:
    reduced = y.dtype in HALVES and dtype == np.float32
    return upcast(y, dtype) if reduced else convert(y, dtype)


# ---- DOT_GENERAL


def _dot_arithmetic(op: Op[StablehloDotGeneralOptions]) -> Arithmetic:
    (x, w), (y,), o = op.inputs[:2], op.outputs, op.options
    if not x.dtype == y.dtype == np.float32:
        return _arithmetic(op)
    bound = (*o.rhs_batching_dimensions, *o.rhs_contracting_dimensions)
    output_channels = math.prod(n for axis, n in enumerate(w.shape) if axis not in bound)
    batches = math.prod(x.shape[axis] for axis in o.lhs_batching_dimensions)
    rows = math.prod(y.shape) // max(output_channels * batches, 1)
    return Arithmetic.of_dot(op.context, rows, output_channels, x, w)


def _lower_dot(op: Op[StablehloDotGeneralOptions]) -> Function:
    arithmetic, o, dtype = _dot_arithmetic(op), op.options, op.outputs[0].dtype
    contract = (o.lhs_contracting_dimensions, o.rhs_contracting_dimensions)
    batch = (o.lhs_batching_dimensions, o.rhs_batching_dimensions)

    def dot_general(x: jax.Array, w: jax.Array) -> tuple[jax.Array]:
        y = lax.dot_general(
            arithmetic.reduced(jnp.asarray(x)),
            arithmetic.reduced(jnp.asarray(w)),
            (contract, batch),
            precision=arithmetic.precision,
            preferred_element_type=_preferred(arithmetic),
        )
        return (_stored(y, dtype),)

    return dot_general


# ---- CONVOLUTION


_Dims = tuple[int, ...]


def _dimensions(o: StablehloConvolutionOptions) -> tuple[_Dims, _Dims, _Dims]:
    """The dimensions of input, kernel and output in lax's order.

    (batch, feature, *spatial); for the kernel (output feature, input feature, *spatial).
    """
    return (
        (o.input_batch_dimension, o.input_feature_dimension, *o.input_spatial_dimensions),
        (
            o.kernel_output_feature_dimension,
            o.kernel_input_feature_dimension,
            *o.kernel_spatial_dimensions,
        ),
        (o.output_batch_dimension, o.output_feature_dimension, *o.output_spatial_dimensions),
    )


def _why_not_convolution(op: Op[StablehloConvolutionOptions]) -> str | None:
    return _why_not_products(op) or _why_not_on_device(op)


def _why_not_on_device(op: Op[StablehloConvolutionOptions]) -> str | None:
    platform, dtype = op.context.platform, op.inputs[0].dtype
    if dtype in INTEGERS | BOOLS and platform != "cpu":
        return f"{platform} libraries have no convolution of {dtype}"
    return None


def _groups(o: StablehloConvolutionOptions) -> tuple[int, int]:
    """Feature and batch groups; the schema's default of 0 means none."""
    return o.feature_group_count or 1, o.batch_group_count or 1


def _lower_convolution(op: Op[StablehloConvolutionOptions]) -> Function:
    (x_spec, w_spec), (y_spec,), o = op.inputs[:2], op.outputs, op.options
    if 0 in (*x_spec.shape, *w_spec.shape, *y_spec.shape):
        return nothing(op.outputs)
    is_float32 = x_spec.dtype == y_spec.dtype == np.float32
    arithmetic = (
        Arithmetic.of_convolution(op.context, x_spec, w_spec) if is_float32 else _arithmetic(op)
    )
    rank, (feature_groups, batch_groups) = len(o.input_spatial_dimensions), _groups(o)
    # An absent attribute is neutral.
    ones, edges = (1,) * rank, o.padding or (0, 0) * rank
    flags = o.window_reversal or (False,) * rank
    reversed_dims = [d for d, flag in zip(o.kernel_spatial_dimensions, flags, strict=True) if flag]

    def convolution(x: jax.Array, w: jax.Array) -> tuple[jax.Array]:
        y = lax.conv_general_dilated(
            arithmetic.reduced(jnp.asarray(x)),
            lax.rev(arithmetic.reduced(jnp.asarray(w)), reversed_dims),
            o.window_strides or ones,
            list(zip(edges[::2], edges[1::2], strict=True)),
            lhs_dilation=o.lhs_dilation or ones,
            rhs_dilation=o.rhs_dilation or ones,
            dimension_numbers=lax.ConvDimensionNumbers(*_dimensions(o)),
            feature_group_count=feature_groups,
            batch_group_count=batch_groups,
            precision=arithmetic.precision,
            preferred_element_type=_preferred(arithmetic),
        )
        return (_stored(y, y_spec.dtype),)

    return convolution


_OPERANDS = [Input(ELEMENTS), Input(ELEMENTS, is_same=True)]
RULES = table(
    typed_rule(
        "STABLEHLO_DOT_GENERAL", _OPERANDS, _lower_dot, _why_not_products, results=[ELEMENTS]
    ),
    typed_rule(
        "STABLEHLO_CONVOLUTION",
        _OPERANDS,
        _lower_convolution,
        _why_not_convolution,
        results=[ELEMENTS],
    ),
)
