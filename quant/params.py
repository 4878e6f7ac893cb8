"""How a tensor's integers stand for real numbers."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Blockwise:
    """One scale for each block of values; scales and zero points are tensors of the subgraph."""

    scales: int  # tensor index
    zero_points: int  # tensor index, negative: none
    block_size: int
    quantized_dimensions: tuple[int, ...] = ()  # empty: the last dimension (BlockwiseQuantization)


@dataclasses.dataclass(frozen=True, eq=False)
class Quantization:
    """real = scale * (q - zero_point), per tensor or along `quantized_dimension`.

    Source: QuantizationParameters of schema.fbs.
    """

    scale: np.ndarray  # [1] or [channels], float32
    zero_point: np.ndarray  # same length, int64
    quantized_dimension: int = 0
    minimum: np.ndarray | None = None  # the converter's record of the observed range, float32
    maximum: np.ndarray | None = None
    blockwise: Blockwise | None = None
    custom: bytes | None = None  # CustomQuantization, opaque

    @property
    def is_per_channel(self) -> bool:
        """Whether each slice along `quantized_dimension` has a scale of its own."""
        return self.scale.size > 1
