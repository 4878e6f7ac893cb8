"""The quantization schemes of litert-quantizer: their operators, and recipes for it.

The lists are those of litert_quantizer 0.11 (default_policy.py), and a test compares them with the
installed package. They leave out STABLEHLO_COMPOSITE, which is for the quantizer's own composites.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from jaxdelegate.errors import OptionError
from jaxdelegate.text import listed


@dataclasses.dataclass(frozen=True)
class Places:
    """Positions among an operator's inputs, and the axis of the weights that has scales."""

    data: int | None
    weight: int
    bias: int | None
    axis: int
    is_row_by_row: bool = False  # dynamic range: each row has a scale, not each image


# Operators with weights that have their own scales: TFL_OP_TO_WEIGHT_QUANTIZED_DIM and
# TFL_OP_TO_BLOCKWISE_WEIGHT_QUANTIZED_DIM of utils/tfl_flatbuffer_utils.py.
PLACES = {
    "BATCH_MATMUL": Places(0, 1, None, -1, is_row_by_row=True),
    "CONV_2D": Places(0, 1, 2, 0),
    "DEPTHWISE_CONV_2D": Places(0, 1, 2, 3),
    "EMBEDDING_LOOKUP": Places(None, 1, None, 0),
    "FULLY_CONNECTED": Places(0, 1, 2, 0, is_row_by_row=True),
    "TRANSPOSE_CONV": Places(2, 1, 3, 0),
}
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scheme:
    name: str  # in flags and reports
    operators: frozenset[str]  # those that litert-quantizer quantizes in this scheme
    # Integer activations have the range of the calibration inputs; 0: activations are floats.
    activation_bits: int = 0
    is_dynamic_range: bool = False  # operands of products are rounded to int8 at each invoke
    weight_bits: int = 8
    block_size: int = 0  # weights in a row that share a scale; 0: a scale for each output channel

    @property
    def is_calibrated(self) -> bool:
        return self.activation_bits > 0

    @property
    def config(self) -> dict[str, Any]:
        """The scheme as `op_config` of an litert-quantizer recipe."""
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
        Scheme(name="int8", operators=_INT8, activation_bits=8),
        Scheme(name="int16x8", operators=_INT16, activation_bits=16),
        Scheme(name="dynamic", operators=frozenset(PLACES), is_dynamic_range=True),
        Scheme(
            name="int4",
            operators=frozenset({"EMBEDDING_LOOKUP", "FULLY_CONNECTED"}),
            weight_bits=4,
            block_size=32,
        ),
    )
}


def named(names: str) -> tuple[Scheme, ...]:
    wanted = listed(names)
    unknown = [name for name in wanted if name not in SCHEMES]
    if unknown or not wanted:
        got = repr(unknown[0]) if unknown else "none"
        raise OptionError(f"schemes: expected some of {','.join(SCHEMES)}, got {got}")
    return tuple(SCHEMES[name] for name in dict.fromkeys(wanted))


# ---- recipes. Source: litert_quantizer/recipe_manager.py. The last matching rule applies. An
# operator's scope is the names of its outputs, each followed by a semicolon.

_MAX_SCOPE = 10000  # characters; the quantizer truncates scopes
# The quantizer's names that differ from the schema's.
_NAMES = {"TRANSPOSE_CONV": "CONV_2D_TRANSPOSE"}

Named = tuple[str, tuple[str, ...]]  # an operator and the names of its outputs


def recipe(
    scheme: Scheme, kept: Sequence[Named], inputs: Sequence[str], outputs: Sequence[str]
) -> list[dict[str, Any]]:
    rules = [_rule(".*", "*", "min_max_uniform_quantize", scheme.config)]
    rules += [_in_float(_NAMES.get(op, op), names) for op, names in kept]
    if scheme.is_calibrated:
        ends = (("INPUT", inputs), ("OUTPUT", outputs))
        rules += [_in_float(name, names) for name, names in ends if names]
    return rules


def _in_float(operation: str, names: Sequence[str]) -> dict[str, Any]:
    scope = "".join(f"{name};" for name in names if name)[:_MAX_SCOPE]
    return _rule(f"^{re.escape(scope)}$", operation, "no_quantize", {})


def _rule(regex: str, operation: str, algorithm: str, config: dict[str, Any]) -> dict[str, Any]:
    return {
        "regex": regex,
        "operation": operation,
        "algorithm_key": algorithm,
        "op_config": config,
    }
