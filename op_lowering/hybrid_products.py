"""What hybrid convolutions and matrix products share: float32 activations by integer filters."""

import dataclasses
from typing import Any

import jax
import numpy as np

from jaxdelegate.op_lowering.pointwise import quantization_of
from jaxdelegate.op_lowering.quantized_products import UINT8, Tensors, why_not_scales
from jaxdelegate.op_lowering.rule import first_reason, why_not_dtype
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.jax_affine import asymmetric_quantize, symmetric_quantize
from jaxdelegate.quant.params import channel_scales


@dataclasses.dataclass(frozen=True)
class Hybrid:
    """What an operator's hybrid kernels take.

    `symmetric`: there is one that quantizes activations symmetrically.
    """

    filters: frozenset[np.dtype] = frozenset()
    symmetric: bool = False

    def why_not(self, tensors: Tensors, channel_axis: int) -> str | None:
        """A sentence unless a kernel takes these tensors."""
        x, w, bias, y = tensors
        floats = (spec for spec in (x, bias, y) if spec is not None)
        other = f"{w.name!r} is quantized {w.dtype}, which this operator has no kernel for"
        return first_reason(
            None if w.dtype in self.filters else other,
            *(why_not_dtype(spec, np.float32) for spec in floats),
            why_not_scales(w, channel_axis),
        )


def signed(w: Any) -> Any:
    """A stored filter as int8; the kernels read the bytes of an uint8 one as signed ones."""
    return w.view(np.int8) if np.dtype(w.dtype) == UINT8 else w.astype(np.int8)


def filter_scales(w: TensorSpec, channels: int) -> np.ndarray:
    """float32 [channels]; the kernels leave zero points out."""
    return channel_scales(quantization_of(w), channels)


def quantize_rows(
    x: jax.Array, *, asymmetric: bool
) -> tuple[jax.Array, jax.Array, jax.Array | int]:
    """[..., n] as int8, and for each row a scale and a zero point, [...]."""
    if asymmetric:
        return asymmetric_quantize(x)
    return *symmetric_quantize(x), 0
