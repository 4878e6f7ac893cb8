"""Dynamic range recurrent operators: integer products of float activations and 8-bit weights.

Each row of activations is quantized on the fly.

Sources: kernels/lstm_eval.cc (CalculateLstmGateHybrid), kernels/internal/kernel_utils.cc
(RnnBatchStep), kernels/internal/reference/svdf.h (EvalHybridSVDF).
"""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.dynamic_range import quantize_rows
from jaxdelegate.op_lowering.common.integer_products import dot
from jaxdelegate.op_lowering.common.quantization import (
    scale_of,
    why_not_per_tensor,
    why_not_zero_point,
)
from jaxdelegate.op_lowering.recurrent.options import RecurrentOptions
from jaxdelegate.op_lowering.rule import Op, first_reason
from jaxdelegate.op_lowering.spec import Specs, TensorSpec
from jaxdelegate.quant.jax_affine import rounded

_WEIGHTS = frozenset(np.dtype(t) for t in (np.int8, np.uint8))
_FLOAT32 = np.dtype(np.float32)

Operands = Callable[[Sequence[Any]], list[Any]]


@dataclasses.dataclass(frozen=True, eq=False)
class Matrix:
    """8-bit weights; the vectors that they multiply are quantized on the fly."""

    steps: jax.Array  # int8 [n_out, n_in]
    scales: np.ndarray  # float32 [n_out]
    row_sums: jax.Array | None  # int32 [n_out] where vectors get an offset

    @classmethod
    def of(cls, w: jax.Array, scale: float, *, asymmetric: bool) -> Self:
        """uint8 weights are read as int8 bytes."""
        steps = lax.bitcast_convert_type(jnp.asarray(w), np.int8)
        sums = jnp.sum(steps, 1, dtype=np.int32) if asymmetric else None
        return cls(steps=steps, scales=np.full(w.shape[0], scale, np.float32), row_sums=sums)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.steps.shape

    @property
    def ndim(self) -> int:
        return self.steps.ndim

    def product(self, x: jax.Array) -> jax.Array:
        """float32 [..., n_in] -> [..., n_out] (MatrixBatchVectorMultiplyAccumulate)."""
        if self.row_sums is None:
            q, factor, _ = quantize_rows(x, asymmetric=False)
            total = self._dot(q)
        else:
            q, factor, offset = quantize_rows(x, asymmetric=True)
            total = self._dot(q) - jnp.asarray(offset)[..., None] * _row(self.row_sums, q)
        scale = factor[..., None] * _row(jnp.asarray(self.scales), q)
        return rounded(total.astype(np.float32) * scale)

    def _dot(self, q: jax.Array) -> jax.Array:
        return dot(q, self.steps, ((q.ndim - 1,), (1,)))


def _row(vector: jax.Array, like: jax.Array) -> jax.Array:
    return vector.reshape((1,) * (like.ndim - 1) + vector.shape)


def joined(weights: Sequence[Any]) -> Any:
    """Matrices stacked along their rows, for a single product."""
    if not isinstance(weights[0], Matrix):
        return jnp.concatenate(weights)
    sums = [w.row_sums for w in weights]
    return Matrix(
        steps=jnp.concatenate([w.steps for w in weights]),
        scales=np.concatenate([w.scales for w in weights]),
        row_sums=None if sums[0] is None else jnp.concatenate(sums),
    )


def operands(op: Op[RecurrentOptions], dequantized: Collection[int] = ()) -> Operands:
    """The conversion of an operator's arrays to the operands of its arithmetic.

    8-bit matrices become a `Matrix`. Vectors and the matrices at the positions `dequantized`
    become floats, since they multiply element by element. Other arrays are not converted.
    """
    asymmetric = op.options.asymmetric_quantize_inputs

    def maker(position: int, spec: TensorSpec | None) -> Callable[[Any], Any]:
        if spec is None or not spec.is_quantized:
            return lambda array: array
        scale = scale_of(spec)
        if len(spec.shape) == 1 or position in dequantized:
            return lambda w: _dequantized(w, scale)
        return lambda w: Matrix.of(w, scale, asymmetric=asymmetric)

    makers = tuple(map(maker, range(len(op.inputs)), op.inputs))
    return lambda arrays: [make(array) for make, array in zip(makers, arrays, strict=True)]


def _dequantized(w: jax.Array, scale: float) -> jax.Array:
    steps = lax.bitcast_convert_type(jnp.asarray(w), np.int8)
    return steps.astype(np.float32) * np.float32(scale)


def is_dynamic_range(inputs: Specs, weights: Collection[int]) -> bool:
    specs = (inputs[i] for i in weights if i < len(inputs))
    return any(spec is not None and spec.is_quantized for spec in specs)


def why_not_weights(specs: Sequence[TensorSpec | None]) -> str | None:
    present = [spec for spec in specs if spec is not None]
    one = next(spec.dtype for spec in present if spec.is_quantized)
    return first_reason(*(_why_not_weight(spec, one) for spec in present))


def _why_not_weight(spec: TensorSpec, one: np.dtype) -> str | None:
    if spec.sparsity is not None:
        return f"{spec.name!r} is stored sparse"
    if spec.dtype != one:
        return f"{spec.name!r} is {spec.dtype}, and other weights are quantized {one}"
    return why_not_per_tensor(spec, _WEIGHTS) or why_not_zero_point(spec, 0)


def why_not_activation(spec: TensorSpec) -> str | None:
    if spec.sparsity is not None:
        return f"{spec.name!r} is stored sparse"
    if spec.dtype == _FLOAT32:
        return None
    return f"{spec.name!r} is {spec.dtype}; next to 8-bit weights, kernels take float32"
