"""Common parts of integer convolutions and matrix products: supported dtypes, requantization."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import jax
import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.common.integer_products import MOST_PRODUCTS
from jaxdelegate.op_lowering.common.quantization import (
    quantization_of,
    why_not_kernel,
    why_not_per_tensor,
    why_not_symmetric,
    zero_point_of,
)
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.op_lowering.rule import Op, first_reason, optional, why_not_dtype
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.jax_requantize import (
    add_bias,
    requantize_accumulator,
    requantize_accumulator_by_real,
)
from jaxdelegate.quant.params import Quantization, activation_range
from jaxdelegate.quant.requantize import bias_scale_fits

INT2, INT4 = np.dtype(ml_dtypes.int2), np.dtype(ml_dtypes.int4)
INT8, UINT8, INT16 = (np.dtype(t) for t in (np.int8, np.uint8, np.int16))
INT32, INT64 = np.dtype(np.int32), np.dtype(np.int64)

# The largest shifts of the two multiplications (kernels/internal/common.cc).
_MOST_SHIFT = {INT32: 30, INT64: 7}


@dataclasses.dataclass(frozen=True)
class Dtypes:
    """The dtypes that an integer kernel accepts together with one dtype of activations.

    `symmetric`: the kernel assumes that the filter's zero point is 0.
    """

    filters: frozenset[np.dtype]
    biases: frozenset[np.dtype]
    outputs: frozenset[np.dtype]
    symmetric: bool = True


Kernels = Mapping[np.dtype, Dtypes]  # by the activations' dtype


class Tensors(NamedTuple):
    """The activations, filter, bias and output of a convolution or matrix product."""

    x: TensorSpec
    w: TensorSpec
    bias: TensorSpec | None
    y: TensorSpec

    @classmethod
    def of(cls, op: Op[Any]) -> Self:
        """The operator's inputs are x, filter and perhaps a bias."""
        x, w = op.inputs[:2]
        return cls(x, w, optional(op.inputs, 2), op.outputs[0])

    @property
    def is_integer(self) -> bool:
        """Integer kernels compute."""
        return self.x.is_quantized

    @property
    def is_dynamic_range(self) -> bool:
        """Kernels quantize activations on the fly."""
        return not self.is_integer and self.w.is_quantized


def why_not_tensors(kernels: Kernels, tensors: Tensors, channel_axis: int | None) -> str | None:
    """`channel_axis`, if not None, is the filter's dimension that may have one scale per index."""
    x, w, bias, y = tensors
    if x.dtype not in kernels:
        return why_not_kernel(x, kernels)
    kernel = kernels[x.dtype]
    return first_reason(
        why_not_per_tensor(x, frozenset([x.dtype])),
        why_not_per_tensor(y, kernel.outputs),
        _why_not_filter(w, kernel.filters, None if x.dtype == UINT8 else channel_axis),
        None if bias is None else _why_not_bias(bias, kernel.biases),
    ) or first_reason(
        why_not_symmetric(x),
        why_not_symmetric(y),
        why_not_points(w) if kernel.symmetric else None,
    )


def why_not_points(w: TensorSpec) -> str | None:
    """A reason for zero points other than 0 in a filter that the kernel assumes symmetric."""
    if not quantization_of(w).zero_point.any():
        return None
    return f"{w.name!r} has zero points, and the kernel takes none"


def _why_not_filter(
    w: TensorSpec, dtypes: frozenset[np.dtype], channel_axis: int | None
) -> str | None:
    if channel_axis is None or w.quantization is None or not w.quantization.is_per_channel:
        return why_not_per_tensor(w, dtypes)
    return why_not_kernel(w, dtypes) or why_not_scales(w, channel_axis)


def why_not_scales(w: TensorSpec, channel_axis: int) -> str | None:
    """A reason unless a filter has a scale, or one for each index of this axis."""
    q = w.quantization
    if q is None or not w.is_quantized or q.blockwise is not None:
        how = "without a scale" if w.blocks is None else "in blocks"
        return f"{w.name!r} is quantized {w.dtype} {how}"
    axis, count = q.quantized_dimension, w.shape[channel_axis]
    along = 0 <= axis < len(w.shape) and w.shape[axis] == count
    if q.scale.size not in (1, count) or (q.is_per_channel and not along):
        return f"{q.scale.size} scales of {w.name!r} do not fit its {count} channels"
    if not (np.isfinite(q.scale).all() and (q.scale >= 0).all()):
        return f"a scale of {w.name!r} is negative or not finite"
    return None


def _why_not_bias(bias: TensorSpec, dtypes: frozenset[np.dtype]) -> str | None:
    bare = dataclasses.replace(bias, quantization=None)
    points = bias.quantization.zero_point if bias.quantization is not None else np.zeros(0)
    return first_reason(
        why_not_dtype(bare, dtypes), f"{bias.name!r} has a zero point" if points.any() else None
    )


def why_not_sums(tensors: Tensors, bias_type: TensorType, products: int) -> str | None:
    """A reason for int16 sums with another bias than the options say, or of too many products."""
    x, bias = tensors.x, tensors.bias
    if x.dtype != INT16:
        return None
    if bias_type not in (TensorType.FLOAT32, TensorType.INT32, TensorType.INT64):
        return f"quantized_bias_type is {bias_type.name}"
    wanted = {TensorType.INT32: INT32, TensorType.INT64: INT64}.get(bias_type)
    if bias is not None and wanted not in (None, bias.dtype):
        return f"{bias.name!r} is {bias.dtype}, and quantized_bias_type {bias_type.name}"
    if products >= MOST_PRODUCTS:
        return f"sums of {products} products of int16"
    return None


def why_not_bias_scale(tensors: Tensors) -> str | None:
    """A reason if the bias has another scale than the products; only for one filter scale."""
    x, w, bias, y = tensors
    if bias is None:
        return None
    single = bias.quantization is not None and bias.quantization.scale.size == 1
    scale = quantization_of(bias) if single else _NO_SCALE
    fits = bias_scale_fits(quantization_of(x), quantization_of(w), scale, quantization_of(y))
    return None if fits else f"the scale of {bias.name!r} is not that of the products"


# The values that LiteRT reads if there is no scale, or more than one.
_NO_SCALE = Quantization(np.zeros(1, np.float32), np.zeros(1, np.int64))


@dataclasses.dataclass(frozen=True)
class Epilogue:
    """How a kernel requantizes its sums to the output's integers.

    `scale`, float64, replaces multiplier and shift in a kernel that rounds real numbers.
    """

    accumulator: np.dtype
    zero_point: int
    bounds: tuple[int, int]
    dtype: np.dtype
    multiplier: int | np.ndarray = 0
    shift: int | np.ndarray = 0
    scale: np.ndarray | None = None

    def why_not(self) -> str | None:
        most = int(np.max(self.shift, initial=0))
        if most <= _MOST_SHIFT[self.accumulator]:
            return None
        return f"the output's scale is so fine that sums are shifted by {most} bits"

    def __call__(self, total: jax.Array, bias: jax.Array | None) -> tuple[jax.Array]:
        """Sums [..., O] -> the output."""
        total = total.astype(self.accumulator)
        total = add_bias(total, None if bias is None else bias.reshape(-1))
        rest = (self.zero_point, self.bounds, self.dtype)
        if self.scale is not None:
            return (requantize_accumulator_by_real(total, self.scale, *rest),)
        return (requantize_accumulator(total, self.multiplier, self.shift, *rest),)


def why_not_epilogue(build: Callable[[], Epilogue]) -> str | None:
    """A reason if the scales result in no multiplier that the kernels support."""
    try:
        with np.errstate(all="ignore"):
            return build().why_not()
    except ValueError as error:
        return str(error)


def epilogue(activation: Act, y: TensorSpec, accumulator: np.dtype, **scale: Any) -> Epilogue:
    """`scale` is multiplier and shift, or scale.

    A bound of the fused activation that is not an integer of the output's scale is a ValueError.
    """
    bounds = activation_range(activation, quantization_of(y), y.dtype)
    return Epilogue(accumulator, zero_point_of(y), bounds, y.dtype, **scale)


def accumulator(x: TensorSpec, bias_type: TensorType) -> np.dtype:
    """The dtype of a kernel's sums: int64 for int16 activations, unless the bias is int32."""
    return INT64 if x.dtype == INT16 and bias_type is not TensorType.INT32 else INT32
