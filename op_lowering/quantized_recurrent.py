"""SVDF in integers, and the integer products that recurrent operators share."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import SVDFOptions
from jaxdelegate.op_lowering.quantized_checks import (
    quantization_of,
    why_not_per_tensor,
    why_not_zero_point,
)
from jaxdelegate.op_lowering.rule import first_reason
from jaxdelegate.op_lowering.spec import Specs, TensorSpec
from jaxdelegate.quant.jax_fixed_point import multiply_by_quantized_multiplier, saturate, wide
from jaxdelegate.quant.multiplier import quantize_multiplier
from jaxdelegate.quant.params import tensor_scale, tensor_zero_point

INT8, INT16, INT32 = np.dtype(np.int8), np.dtype(np.int16), np.dtype(np.int32)


@dataclasses.dataclass(frozen=True)
class Scaling:
    """A real factor of accumulators; arrays hold one for each column."""

    multiplier: Any
    shift: Any

    @classmethod
    def of(cls, real: np.floating) -> "Scaling":
        """Of a factor that the kernel keeps as a float32."""
        return cls(*quantize_multiplier(float(real)))

    def __call__(self, x: jax.Array) -> jax.Array:
        """int32 -> the scaled number, int64."""
        return wide(multiply_by_quantized_multiplier(x, self.multiplier, self.shift))


def side_by_side(scalings: Sequence[Scaling], widths: Sequence[int]) -> Scaling:
    """The scalings of the columns of [n, sum of widths]."""

    def row(values: list[int]) -> np.ndarray:
        return np.repeat(np.array(values, np.int32), widths)[None]

    return Scaling(row([s.multiplier for s in scalings]), row([s.shift for s in scalings]))


def scale_of(spec: TensorSpec) -> np.float32:
    """The one scale of a tensor that the checks have let pass."""
    return np.float32(tensor_scale(quantization_of(spec)))


def zero_point_of(spec: TensorSpec) -> int:
    """The one zero point of a tensor that the checks have let pass."""
    return tensor_zero_point(quantization_of(spec))


def integer_dot(x: jax.Array, w: jax.Array) -> jax.Array:
    """[..., n_in] times the transpose of [n_out, n_in], int32; both of one dtype."""
    contract = ((x.ndim - 1,), (1,)), ((), ())
    return lax.dot_general(x, w, contract, preferred_element_type=INT32)


def why_not_integers(spec: TensorSpec | None, dtype: np.dtype) -> str | None:
    """A sentence unless an absent tensor, or one of this dtype, stored dense."""
    if spec is None:
        return None
    if spec.sparsity is not None:
        return f"{spec.name!r} is stored sparse"
    return None if spec.dtype == dtype else f"{spec.name!r} is {spec.dtype}, not {dtype}"


def why_not_scaled(spec: TensorSpec | None, dtype: np.dtype) -> str | None:
    """A sentence unless an absent tensor, or one of this dtype with one scale."""
    if spec is None:
        return None
    return why_not_integers(spec, dtype) or why_not_per_tensor(spec, frozenset([dtype]))


def why_not_scaled_symmetric(spec: TensorSpec | None, dtype: np.dtype) -> str | None:
    """A sentence unless an absent tensor, or one of this dtype with one scale, zero at 0."""
    reason = why_not_scaled(spec, dtype)
    return reason if reason or spec is None else why_not_zero_point(spec, 0)


def why_not_svdf(o: SVDFOptions, inputs: Specs, outputs: Specs) -> str | None:
    """A sentence unless dtypes, scales and activation are those of the integer kernel."""
    x, feature, time, bias, state = inputs
    if o.fused_activation_function is not Act.RELU:
        return "the integer kernel takes RELU only"
    return first_reason(
        why_not_scaled(x, INT8),
        why_not_scaled_symmetric(feature, INT8),
        why_not_scaled_symmetric(time, INT16),
        why_not_integers(bias, INT32),
        why_not_scaled_symmetric(state, INT16),
        why_not_scaled(outputs[0], INT8),
    )


def svdf_step(
    o: SVDFOptions, inputs: Specs, outputs: Specs
) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """The function from an SVDF's arrays to its output and new state.

    As EvalIntegerSVDF of kernels/internal/reference/svdf.h, which leaves RELU to the output's
    range.
    """
    x_scale, feature_scale, time_scale = map(scale_of, inputs[:3])
    state_scale, y_scale = scale_of(inputs[4]), scale_of(outputs[0])
    to_state = Scaling.of(x_scale * feature_scale / state_scale)
    to_output = Scaling.of(state_scale * time_scale / y_scale)
    x_zero_point, y_zero_point = zero_point_of(inputs[0]), zero_point_of(outputs[0])
    n_batch, (n_filters, n_memory) = inputs[0].shape[0], inputs[2].shape

    def svdf(
        x: jax.Array, feature: jax.Array, time: jax.Array, bias: jax.Array | None, state: jax.Array
    ) -> tuple[jax.Array, jax.Array]:  # [N, n_input] -> [N, n_units], [N, n_filters, n_memory]
        offset = x_zero_point * jnp.sum(feature, 1, dtype=INT32)[None]
        now = saturate(to_state(integer_dot(x, feature) - offset), INT16)
        memory = state.reshape(n_batch, n_filters, n_memory)
        memory = jnp.concatenate([memory[:, :, 1:], now[:, :, None]], 2)
        filtered = jnp.sum(memory.astype(INT32) * time.astype(INT32)[None], 2, dtype=INT32)
        y = jnp.sum(filtered.reshape(n_batch, n_filters // o.rank, o.rank), 2, dtype=INT32)
        y = y if bias is None else y + bias[None]
        return saturate(to_output(y) + y_zero_point, INT8), memory

    return svdf
