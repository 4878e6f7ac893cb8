"""What a rule and a reference kernel know of a tensor ahead of time. numpy only."""

import dataclasses

import numpy as np

from jaxdelegate.quant.packing import BITS
from jaxdelegate.quant.params import Blockwise, Quantization

Shape = tuple[int, ...]

_NEVER_QUANTIZED = (np.uint32, np.uint64)  # no kernel reads their scales


@dataclasses.dataclass(frozen=True)
class DimensionSparsity:
    """One level of a sparse tensor's storage: dense of a given size, or compressed rows."""

    dense_size: int  # 0 if compressed
    segments: np.ndarray | None = None  # CSR row starts
    indices: np.ndarray | None = None  # CSR column indices


@dataclasses.dataclass(frozen=True)
class Sparsity:
    """SparsityParameters of schema.fbs: how to expand the stored values to the dense tensor."""

    traversal_order: tuple[int, ...]
    block_map: tuple[int, ...]
    dimensions: tuple[DimensionSparsity, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class TensorSpec:
    """A tensor's static side. `const` is its value if that is known before the first invoke.

    A large one of int4 or int2 is a `PackedConstant` (quant/packing.py), which acts as an array.
    `is_dynamic`: the shape depends on data and is known only at run time (`shape` is then a hint).
    """

    name: str
    shape: Shape
    dtype: np.dtype
    quantization: Quantization | None = None
    sparsity: Sparsity | None = None
    is_variable: bool = False
    const: np.ndarray | None = None
    is_dynamic: bool = False

    @property
    def is_quantized(self) -> bool:
        """Whether the integers stand for reals (they have a scale); uint32 and uint64 never do."""
        return (
            self.quantization is not None
            and (self.dtype.kind in "iu" or self.dtype in BITS)
            and self.dtype not in _NEVER_QUANTIZED
            and self.quantization.has_scale
        )

    @property
    def blocks(self) -> Blockwise | None:
        """The scales of a tensor that is quantized in blocks."""
        return None if self.quantization is None else self.quantization.blockwise


# An optional input that the file leaves out is None in it: read those through rule.optional.
Specs = tuple[TensorSpec, ...]

# The reals of a quantized tensor, as the fields of `Grid` in kernels/elements.h.
Grid = tuple[float, float, float, float, float]
