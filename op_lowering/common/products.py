"""Common parts of convolutions and matrix products: dtypes, precision, bias, activation."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common import small_products_cpu_kernel as small_products
from jaxdelegate.op_lowering.common.basics import finite, fused_activation
from jaxdelegate.op_lowering.common.downcast import downcast, rounded, upcast
from jaxdelegate.op_lowering.dtypes import FLOATS, HALVES
from jaxdelegate.op_lowering.precision import FLOAT32
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.rule import Function, LoweringContext, first_reason, why_not_dtype
from jaxdelegate.op_lowering.spec import Specs, TensorSpec

# LiteRT's kernels accept float32; a GPU's precision policy stores such tensors in half types.
PRODUCT_FLOATS = FLOATS - {np.dtype(np.float64)}
_CLAMPS = frozenset([Act.NONE, Act.RELU, Act.RELU_N1_TO_1, Act.RELU6])

Axes = tuple[tuple[int, ...], tuple[int, ...]]


def why_not_floats(*specs: TensorSpec | None) -> str | None:
    return first_reason(*(why_not_dtype(s, PRODUCT_FLOATS) for s in specs if s is not None))


def why_not_fused(activation: Act) -> str | None:
    """These kernels apply only clamps.

    CalculateActivationRange (kernels/kernel_util.h) has no range for TANH and SIGN_BIT.
    """
    if activation in _CLAMPS:
        return None
    return f"LiteRT's kernel does not apply a fused {activation.name}"


class Steps(NamedTuple):
    """How a filter moves over an input, one entry for each spatial dimension."""

    strides: Sequence[int]
    pads: Sequence[tuple[int, int]]
    filter_dilation: Sequence[int]
    input_dilation: Sequence[int] | None = None


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """How one operator multiplies and adds, as the precision policy has it."""

    operand: np.dtype
    accumulator: np.dtype  # bias and activation are computed in it
    precision: str
    total: np.dtype | None = None  # the dtype of `lax`'s result; None: the accumulator's dtype
    rounds_exactly: bool = False
    has_short_epilogue: bool = False  # cuDNN computes the epilogue too, and rounds once, after it
    is_finite: bool = False  # see `finish`; False where libraries only fuse other epilogues
    has_small_kernel: bool = False  # small_products_cpu_kernel may multiply

    @classmethod
    def of_convolution(
        cls, context: LoweringContext, *specs: TensorSpec, epilogue_in_library: bool = False
    ) -> Self:
        """`epilogue_in_library`: cuDNN computes bias, residual and RELU, if the dtype allows."""
        policy = context.precision
        operand = policy.convolved(_operand(context, specs), *(s.const for s in specs))
        arithmetic = cls._of(context, operand, policy.convolution_total(operand))
        if not (epilogue_in_library and policy.rounds_convolutions and operand in HALVES):
            return arithmetic
        # An emulation stays in float32 until cuDNN would round.
        total = arithmetic.accumulator if policy.rounds_exactly else arithmetic.total
        return dataclasses.replace(arithmetic, total=total, has_short_epilogue=True)

    @classmethod
    def of_dot(
        cls, context: LoweringContext, rows: int, output_channels: int, *specs: TensorSpec
    ) -> Self:
        """The arithmetic of a matrix product with a result [rows, N]."""
        policy, consts = context.precision, [s.const for s in specs]
        operand = policy.operand_dtype(
            _operand(context, specs), *consts, rows=rows, output_channels=output_channels
        )
        return cls._of(context, operand, policy.total(operand))

    @classmethod
    def of_float32(cls, context: LoweringContext) -> Self:
        """The arithmetic of a product whose operands stay float32."""
        return cls._of(context, FLOAT32, context.precision.total(FLOAT32))

    @classmethod
    def _of(cls, context: LoweringContext, operand: np.dtype, total: np.dtype) -> Self:
        policy = context.precision
        return cls(
            operand,
            policy.accumulator(operand),
            policy.precision(operand),
            total,
            policy.rounds_exactly,
            is_finite=context.platform == "cpu",
            has_small_kernel=small_products.may_multiply(context, operand),
        )

    @property
    def _result_dtype(self) -> np.dtype:
        return self.accumulator if self.total is None else self.total

    def reduced(self, x: Any) -> Any:
        """`x` in the operand's dtype; None, for an absent input, stays None."""
        return None if x is None else downcast(x, self.operand, exactly=self.rounds_exactly)

    def dot(self, x: jax.Array, w: jax.Array, contract: Axes, batch: Axes = ((), ())) -> jax.Array:
        """The result is in the accumulator's dtype."""
        is_transposed = contract == ((x.ndim - 1,), (1,))
        if (
            self.has_small_kernel
            and (is_transposed or contract == ((x.ndim - 1,), (0,)))
            and batch == ((), ())
            and small_products.takes(x, w, is_transposed=is_transposed)
        ):
            return small_products.product(x, w, is_transposed=is_transposed)
        y = lax.dot_general(
            x,
            w,
            (contract, batch),
            precision=self.precision,
            preferred_element_type=self._result_dtype,
        )
        return upcast(y, self.accumulator)

    def convolution(
        self,
        x: jax.Array,
        w: jax.Array,
        steps: Steps,
        *,
        groups: int = 1,
        units_first: bool = False,
    ) -> jax.Array:
        """lax.conv_general_dilated on [N, *spatial, C] and [*spatial, I, O] or [O, *spatial, I].

        The result has the accumulator's dtype, or with a short epilogue the total's.
        """
        spatial = "DHW"[-len(steps.strides) :]
        filters = f"O{spatial}I" if units_first else f"{spatial}IO"
        layouts = (f"N{spatial}C", filters, f"N{spatial}C")
        y = lax.conv_general_dilated(
            x,
            w,
            steps.strides,
            steps.pads,
            lhs_dilation=steps.input_dilation,
            rhs_dilation=steps.filter_dilation,
            dimension_numbers=layouts,
            feature_group_count=groups,
            precision=self.precision,
            preferred_element_type=self._result_dtype,
        )
        return y if self.has_short_epilogue else upcast(y, self.accumulator)

    def rounded_result(self, y: jax.Array) -> jax.Array:
        """A result after its epilogue; cuDNN's is reduced, and infinite beyond the range."""
        return rounded(y, self.operand) if self.has_short_epilogue else y


def _operand(context: LoweringContext, specs: Sequence[TensorSpec]) -> np.dtype:
    # A CPU does not multiply half precision, and no device mixed dtypes.
    dtype = specs[0].dtype
    mixed = any(s.dtype != dtype for s in specs)
    return context.precision.accumulator(dtype) if mixed or context.platform == "cpu" else dtype


def finish(
    y: jax.Array,
    bias: jax.Array | None,
    activation: Act,
    dtype: np.dtype,
    residual: jax.Array | None = None,
    *,
    is_finite: bool = False,
) -> jax.Array:
    """The epilogue of every kernel: add the bias to `y` [..., O], apply the activation, store.

    A reduced `y` keeps its dtype: XLA:GPU recognizes by that what cuDNN can fuse into a
    convolution. A residual has the shape of `y` and is added before the activation.
    `is_finite`: infinities become the largest number, as they do in LiteRT's kernels.
    """
    if bias is not None:
        y = y + downcast(bias, y.dtype).reshape((1,) * (y.ndim - 1) + (-1,))
    if residual is not None:
        y = y + downcast(residual, y.dtype)
    result: jax.Array = fused_activation(activation)(y)
    if is_finite:
        result = finite(result)
    return result if y.dtype in HALVES else result.astype(dtype)


def nothing(outputs: Specs) -> Function:
    """The lowering of an operator whose outputs are empty, or zeros without products."""
    return lambda *_arrays: tuple(jnp.zeros(spec.shape, spec.dtype) for spec in outputs)
