"""The precision policy: in which dtype tensors are stored, multiplied and accumulated.

An operator is always lowered for the dtypes that the file declares. A policy reduces only how a
float32 tensor is stored between two operators of one program, and the operands of sums of products.
All other arithmetic is float32, so that sums, means, softmax, normalizations, exponentials and
powers never exceed the largest float16, 65504.
"""

import dataclasses
from typing import Self

import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.dtypes import HALVES

FLOAT32 = np.dtype(np.float32)
FLOAT16 = np.dtype(np.float16)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

# Smaller constants save no memory worth their rounding.
_LARGE_CONSTANT = 64 * 1024
# How far rounding may move a constant, relative to its norm: well above half a step of float16
# (2**-12 at most), so that only overflow and values below its normal range exceed it.
_LOST = 1e-3
_FLOAT16_MAX = 65504.0


@dataclasses.dataclass(frozen=True)
class PrecisionPolicy:
    """All decisions about precision. The default computes in float32 throughout.

    Attributes:
        storage: the dtype of float32 tensors between operators, where that is safe.
        operand: the dtype in which products multiply float32 tensors.
        dot_precision: `precision=` of products of float32 operands: XLA's default would use
            tensorfloat32 on a GPU and bfloat16 on a TPU.
        accumulate_float32: whether products of reduced operands are summed in float32.
        least_rows: products of fewer rows, or of fewer columns than `least_columns`, keep float32
            operands.
        least_columns: see `least_rows`.
        reduces_convolutions: whether `operand` holds for convolutions too.
        rounds_convolutions: whether a convolution of reduced operands returns their dtype, summed
            in float32 nevertheless: for a wider result XLA:GPU would widen the operands too, and
            not use tensor cores.
        rounds_exactly: round wherever the policy says so, even where XLA would fuse the rounding
            away. An emulation of another device needs that, and uses none of this one's kernels.
        float32_operators: indices, in the subgraph, of operators to compute in float32; if one
            of them is fused with others, all of these.
    """

    storage: np.dtype = FLOAT32
    operand: np.dtype = FLOAT32
    dot_precision: str = "highest"
    accumulate_float32: bool = True
    least_rows: int = 1
    least_columns: int = 1
    reduces_convolutions: bool = True
    rounds_convolutions: bool = False
    rounds_exactly: bool = False
    float32_operators: tuple[int, ...] = ()

    @property
    def is_reduced(self) -> bool:
        return (self.storage, self.operand) != (FLOAT32, FLOAT32)

    def accumulator(self, dtype: np.dtype) -> np.dtype:
        """The dtype of sums and normalizations over `dtype` (float16 ends at 65504)."""
        return FLOAT32 if dtype in HALVES else dtype

    def operand_dtype(
        self,
        dtype: np.dtype,
        *consts: np.ndarray | None,
        rows: int = 1 << 30,
        output_channels: int = 1 << 30,
    ) -> np.dtype:
        """The dtype in which a GEMM [rows, K] x [K, output_channels] multiplies tensors of `dtype`.

        Only float32 is reduced, and only if the values of all constant operands, `consts`,
        fit.
        """
        fits = rows >= self.least_rows and output_channels >= self.least_columns
        if dtype != FLOAT32 or self.operand == FLOAT32 or not fits:
            return dtype
        known = all(const is None or self.keeps(const, self.operand) for const in consts)
        return self.operand if known else dtype

    def convolved(self, dtype: np.dtype, *consts: np.ndarray | None) -> np.dtype:
        return self.operand_dtype(dtype, *consts) if self.reduces_convolutions else dtype

    def total(self, operand: np.dtype) -> np.dtype:
        """The dtype of the sums of products of such operands."""
        wide = self.accumulate_float32 or operand not in HALVES
        return self.accumulator(operand) if wide else operand

    def convolution_total(self, operand: np.dtype) -> np.dtype:
        """The dtype of a convolution's sums of products of such operands."""
        return operand if self.rounds_convolutions and operand in HALVES else self.total(operand)

    def precision(self, operand: np.dtype) -> str:
        """The `precision=` of a `lax` dot or convolution of such operands."""
        return "default" if operand in HALVES else self.dot_precision

    def constant(self, const: np.ndarray) -> np.dtype:
        """The dtype of a constant on the device, unless a product prepares it."""
        is_large = const.dtype == FLOAT32 and const.nbytes >= _LARGE_CONSTANT
        return self.storage if is_large and self.keeps(const, self.storage) else const.dtype

    def keeps(self, const: np.ndarray, dtype: np.dtype) -> bool:
        return dtype != FLOAT16 or why_not_float16(const) is None

    def why_not_constant(self, const: np.ndarray, *, is_operand: bool) -> str | None:
        """Why a constant stays float32 that would be an operand, or be stored, in float16."""
        is_large = const.nbytes >= _LARGE_CONSTANT
        dtype = self.operand if is_operand else self.storage
        if const.dtype != FLOAT32 or dtype != FLOAT16 or not (is_operand or is_large):
            return None
        return why_not_float16(const)

    def of_operator(self, index: int) -> Self:
        """The policy for one operator of the subgraph."""
        return self.in_float32() if index in self.float32_operators else self

    def in_float32(self) -> Self:
        return dataclasses.replace(self, storage=FLOAT32, operand=FLOAT32, float32_operators=())

    def of_callee(self) -> Self:
        """The policy inside a subgraph that an operator calls: its operators count again."""
        return dataclasses.replace(self, float32_operators=())


def why_not_float16(const: np.ndarray) -> str | None:
    """Why a float32 constant is not stored in float16; None if it can be.

    A few values that vanish next to larger ones are no reason: they do not matter in a sum.
    """
    finite = const[np.isfinite(const)]
    largest = float(np.abs(finite).max(initial=0))
    if largest > _FLOAT16_MAX:
        return f"{largest:.3g} is beyond float16's 65504"
    lost = finite - finite.astype(FLOAT16).astype(FLOAT32)
    # Scaled, so that squares do not leave float32's range.
    if _norm(lost / (largest or 1)) > _LOST * _norm(finite / (largest or 1)):
        return f"values of {largest:.3g} and less are below float16's normal range"
    return None


def _norm(x: np.ndarray) -> float:
    return float(np.sqrt(np.vdot(x, x)))
