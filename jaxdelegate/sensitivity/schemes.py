"""The quantization schemes, and which operators ai-edge-quantizer quantizes in them.

The lists are those of ai_edge_quantizer 0.10 (default_policy.py), which a test compares with the
installed package. STABLEHLO_COMPOSITE is left out: it is the quantizer's for its own composites.
"""

import dataclasses
import enum
from typing import Any

from jaxdelegate.errors import OptionError

# Weights, and where they have a scale of their own: TFL_OP_TO_WEIGHT_QUANTIZED_DIM and
# TFL_OP_TO_BLOCKWISE_WEIGHT_QUANTIZED_DIM of utils/tfl_flatbuffer_utils.py.
_WEIGHTED = frozenset(
    {
        "BATCH_MATMUL",
        "CONV_2D",
        "DEPTHWISE_CONV_2D",
        "EMBEDDING_LOOKUP",
        "FULLY_CONNECTED",
        "TRANSPOSE_CONV",
    }
)
_INT16 = frozenset(
    (
        "ADD", "AVERAGE_POOL_2D", "BATCH_MATMUL", "BROADCAST_TO", "CONCATENATION", "CONV_2D",
        "DEPTHWISE_CONV_2D", "DIV", "DYNAMIC_UPDATE_SLICE", "EQUAL", "FULLY_CONNECTED", "GATHER",
        "GATHER_ND", "GELU", "LOGISTIC", "MAXIMUM", "MAX_POOL_2D", "MEAN", "MIRROR_PAD", "MUL",
        "NOT_EQUAL", "PACK", "PAD", "PADV2", "REDUCE_MIN", "RELU", "RESHAPE", "RESIZE_BILINEAR",
        "RESIZE_NEAREST_NEIGHBOR", "RSQRT", "SELECT", "SELECT_V2", "SLICE", "SOFTMAX", "SPLIT",
        "SQRT", "STRIDED_SLICE", "SUB", "SUM", "TANH", "TRANSPOSE", "TRANSPOSE_CONV", "UNPACK",
    )
)  # fmt: skip
_INT8 = _INT16 | {"HARD_SWISH", "SPACE_TO_DEPTH", "SQUARED_DIFFERENCE"}


class Activations(enum.Enum):
    """What becomes of the tensors between operators."""

    CALIBRATED = enum.auto()  # integers, on the range that calibration inputs showed
    ON_THE_FLY = enum.auto()  # floats; what is multiplied is rounded to int8 at each invoke
    FLOAT = enum.auto()


@dataclasses.dataclass(frozen=True)
class Scheme:
    """A way to quantize an operator.

    Attributes:
        name: as flags and reports call it.
        weight_bits: of an integer weight.
        block_size: how many weights of a row share a scale; 0: a scale for each output channel.
        activations: what becomes of them.
        activation_bits: of calibrated ones.
        operators: those that ai-edge-quantizer quantizes so.
    """

    name: str
    weight_bits: int
    block_size: int
    activations: Activations
    activation_bits: int
    operators: frozenset[str]

    @property
    def is_calibrated(self) -> bool:
        """Whether its activations are integers of known range."""
        return self.activations is Activations.CALIBRATED

    @property
    def config(self) -> dict[str, Any]:
        """The scheme as `op_config` of an ai-edge-quantizer recipe."""
        weights = {
            "num_bits": self.weight_bits,
            "symmetric": True,
            "granularity": f"BLOCKWISE_{self.block_size}" if self.block_size else "CHANNELWISE",
            "dtype": "INT",
        }
        activations = {
            "num_bits": self.activation_bits,
            "symmetric": self.activation_bits > 8,
            "granularity": "TENSORWISE",
            "dtype": "INT",
        }
        return {
            **({"activation_tensor_config": activations} if self.is_calibrated else {}),
            "weight_tensor_config": weights,
            "compute_precision": "INTEGER",
            "explicit_dequantize": False,
            "skip_checks": False,
            "min_weight_elements": 0,
        }


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme("int8", 8, 0, Activations.CALIBRATED, 8, _INT8),
        Scheme("int16x8", 8, 0, Activations.CALIBRATED, 16, _INT16),
        Scheme("dynamic", 8, 0, Activations.ON_THE_FLY, 0, _WEIGHTED),
        Scheme(
            "int4", 4, 32, Activations.FLOAT, 0, frozenset({"EMBEDDING_LOOKUP", "FULLY_CONNECTED"})
        ),
    )
}


def named(names: str) -> tuple[Scheme, ...]:
    """The schemes of a list with commas.

    Raises:
        OptionError: an unknown name, or none.
    """
    listed = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in listed if name not in SCHEMES]
    if unknown or not listed:
        got = repr(unknown[0]) if unknown else "none"
        raise OptionError(f"schemes: want some of {','.join(SCHEMES)}, got {got}")
    return tuple(SCHEMES[name] for name in dict.fromkeys(listed))
