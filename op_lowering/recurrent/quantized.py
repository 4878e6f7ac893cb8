"""SVDF in integers, and the integer products that recurrent operators share."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common import quantization
from jaxdelegate.op_lowering.common.integer_products import dot
from jaxdelegate.op_lowering.common.quantization import (
    why_not_per_tensor,
    why_not_raised,
    why_not_zero_point,
)
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.recurrent.options import SVDFOptions
from jaxdelegate.op_lowering.rule import Op, first_reason
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.jax_fixed_point import multiply_by_quantized_multiplier, saturate, wide
from jaxdelegate.quant.multiplier import quantize_multiplier

_MOST_SHIFT = 30
INT8, INT16, INT32 = np.dtype(np.int8), np.dtype(np.int16), np.dtype(np.int32)


@dataclasses.dataclass(frozen=True)
class Scaling:
    """A real factor of accumulators; arrays hold one for each column."""

    multiplier: Any
    shift: Any

    @classmethod
    def of(cls, real: np.floating | float, more: int = 0) -> Self:
        """The factor real * 2**more; an error if kernels would shift out all bits."""
        multiplier, shift = quantize_multiplier(float(real))
        if shift + more > _MOST_SHIFT:
            raise ValueError(f"accumulators would be multiplied by {real * 2.0**more:g}")
        return cls(multiplier, shift + more)

    def __call__(self, x: jax.Array) -> jax.Array:
        """The accumulators are int32, the result int64."""
        return wide(multiply_by_quantized_multiplier(x, self.multiplier, self.shift))


def side_by_side(scalings: Sequence[Scaling], widths: Sequence[int]) -> Scaling:
    """One scaling for the columns of concatenated [n, width] arrays."""

    def row(values: list[int]) -> np.ndarray:
        return np.repeat(np.array(values, np.int32), widths)[None]

    return Scaling(row([s.multiplier for s in scalings]), row([s.shift for s in scalings]))


def scale_of(spec: TensorSpec) -> np.float32:
    return np.float32(quantization.scale_of(spec))


def integer_dot(x: jax.Array, w: jax.Array) -> jax.Array:
    """[..., n_in] times the transpose of [n_out, n_in], int32; both int8 or both int16."""
    contract = (x.ndim - 1,), (1,)
    if x.dtype == np.int8:
        return dot(x, w, contract)
    return lax.dot_general(x, w, (contract, ((), ())), preferred_element_type=INT32)


def why_not_integers(spec: TensorSpec | None, dtype: np.dtype) -> str | None:
    """A reason unless the tensor is absent, or has this dtype and is stored dense."""
    if spec is None:
        return None
    if spec.sparsity is not None:
        return f"{spec.name!r} is stored sparse"
    return None if spec.dtype == dtype else f"{spec.name!r} is {spec.dtype}, not {dtype}"


def why_not_scaled(spec: TensorSpec | None, dtype: np.dtype) -> str | None:
    """A reason unless the tensor is absent, or has this dtype and one scale."""
    if spec is None:
        return None
    return why_not_integers(spec, dtype) or why_not_per_tensor(spec, frozenset([dtype]))


def why_not_scaled_symmetric(spec: TensorSpec | None, dtype: np.dtype) -> str | None:
    reason = why_not_scaled(spec, dtype)
    return reason if reason or spec is None else why_not_zero_point(spec, 0)


def why_not_svdf(op: Op[SVDFOptions]) -> str | None:
    is_complete = len(op.inputs) == 5 and not any(op.inputs[i] is None for i in (0, 1, 2, 4))
    if not is_complete or len(op.outputs) != 1:
        return "the integer kernel needs 5 inputs, of which the bias is optional, and 1 output"
    x, feature, time, bias, state = op.inputs
    if op.options.fused_activation_function is not Act.RELU:
        return "the integer kernel takes RELU only"
    reason = first_reason(
        why_not_scaled(x, INT8),
        why_not_scaled_symmetric(feature, INT8),
        why_not_scaled_symmetric(time, INT16),
        why_not_integers(bias, INT32),
        why_not_scaled_symmetric(state, INT16),
        why_not_scaled(op.outputs[0], INT8),
    )
    return reason or why_not_raised(lambda: _svdf_scalings(op))


def _svdf_scalings(op: Op[SVDFOptions]) -> tuple[Scaling, Scaling]:
    x_scale, feature_scale, time_scale = map(scale_of, op.inputs[:3])
    state_scale = scale_of(op.inputs[4])
    with np.errstate(over="ignore"):
        to_state = x_scale * feature_scale / state_scale
        to_output = state_scale * time_scale / scale_of(op.outputs[0])
    return Scaling.of(to_state), Scaling.of(to_output)


def svdf_step(op: Op[SVDFOptions]) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """EvalIntegerSVDF of kernels/internal/reference/svdf.h; RELU is in the output's range."""
    to_state, to_output = _svdf_scalings(op)
    x_zero_point, y_zero_point = map(quantization.zero_point_of, (op.inputs[0], op.outputs[0]))
    n_batch, (n_filters, n_memory) = op.inputs[0].shape[0], op.inputs[2].shape
    rank = op.options.rank

    def svdf(
        x: jax.Array, feature: jax.Array, time: jax.Array, bias: jax.Array | None, state: jax.Array
    ) -> tuple[jax.Array, jax.Array]:  # [N, n_input] -> [N, n_units], [N, n_filters, n_memory]
        offset = x_zero_point * jnp.sum(feature, 1, dtype=INT32)[None]
        now = saturate(to_state(integer_dot(x, feature) - offset), INT16)
        memory = state.reshape(n_batch, n_filters, n_memory)
        memory = jnp.concatenate([memory[:, :, 1:], now[:, :, None]], 2)
        filtered = jnp.sum(memory.astype(INT32) * time.astype(INT32)[None], 2, dtype=INT32)
        y = jnp.sum(filtered.reshape(n_batch, n_filters // rank, rank), 2, dtype=INT32)
        y = y if bias is None else y + bias[None]
        return saturate(to_output(y) + y_zero_point, INT8), memory

    return svdf
