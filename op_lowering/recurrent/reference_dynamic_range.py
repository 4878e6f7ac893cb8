"""Dynamic range recurrent kernels, whose sources dynamic_range.py names."""

import dataclasses
from collections.abc import Collection
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.recurrent.options import RecurrentOptions
from jaxdelegate.op_lowering.spec import Specs, TensorSpec
from jaxdelegate.quant import affine
from jaxdelegate.quant.params import tensor_scale, tensor_zero_point
from jaxdelegate.reference.kernel import Array

_WEIGHTS = (np.dtype(np.int8), np.dtype(np.uint8))


@dataclasses.dataclass(frozen=True, eq=False)
class Matrix:
    """8-bit weights; the vectors that they multiply are quantized on the fly."""

    steps: Array  # int8 [n_out, n_in]
    scale: np.float32
    asymmetric: bool  # whether vectors get an offset

    @property
    def shape(self) -> tuple[int, ...]:
        return self.steps.shape

    @property
    def ndim(self) -> int:
        return self.steps.ndim

    def __len__(self) -> int:
        return len(self.steps)

    def product(self, x: Array) -> Array:
        """float32 [n_batch, n_in] -> [n_batch, n_out] (MatrixBatchVectorMultiplyAccumulate)."""
        w = self.steps.astype(np.int32)
        if self.asymmetric:
            q, factor, offset = affine.asymmetric_quantize(x)
            total = q.astype(np.int32) @ w.T - offset[:, np.newaxis] * w.sum(axis=1)
        else:
            q, factor = affine.symmetric_quantize(x)
            total = q.astype(np.int32) @ w.T
        y: Array = total.astype(np.float32) * (factor * self.scale)[:, np.newaxis]
        return y


def product(x: Array, w: Array | Matrix) -> Array:
    """[n_batch, n_in] times the transpose of [n_out, n_in]."""
    y: Array = w.product(x) if isinstance(w, Matrix) else x @ w.T
    return y


def as_operands(
    o: RecurrentOptions,
    inputs: Specs,
    arrays: tuple[Array | None, ...],
    dequantized: Collection[int] = (),
) -> tuple[Any, ...]:
    """An operator's tensors for `product`: 8-bit matrices as `Matrix`, the others as floats.

    Matrices at the positions `dequantized`, which multiply element by element, become floats too.
    """

    def operand(position: int, spec: TensorSpec | None, array: Array | None) -> Any:
        if spec is None or array is None:
            return None
        if not spec.is_quantized and spec.dtype in FLOATS:
            return array if spec.dtype.itemsize > 2 else array.astype(np.float32)
        scale, steps = _weights(spec, array)
        if array.ndim == 1 or position in dequantized:
            return scale * steps.astype(np.float32)
        return Matrix(steps, scale, o.asymmetric_quantize_inputs)

    return tuple(map(operand, range(len(inputs)), inputs, arrays))


def _weights(spec: TensorSpec, array: Array) -> tuple[np.float32, Array]:
    # The kernels read uint8 weights by their bits, as int8, too.
    q = spec.quantization
    if q is None or not spec.is_quantized or spec.dtype not in _WEIGHTS or q.is_per_channel:
        raise TypeError(
            f"{spec.name!r} is {spec.dtype}: recurrent kernels take floats, and next to them 8-bit "
            "weights with one scale"
        )
    if tensor_zero_point(q):
        raise TypeError(f"{spec.name!r} has a zero point, which dynamic range kernels do not read")
    return np.float32(tensor_scale(q)), array.view(np.int8)
