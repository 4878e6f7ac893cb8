"""Variants: one operator quantized in one scheme, with its constants and grids.

Source: litert_quantizer/algorithms/uniform_quantize/common_quantize.py, which defines for each
operator the weights, the bias, and the tensors that share a scale.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from jaxdelegate.model.records import Operator, Tensor
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.sensitivity import grids
from jaxdelegate.sensitivity.grids import Grid, Range
from jaxdelegate.sensitivity.schemes import PLACES, Places, Scheme

# Kernels that move or compare values: all tensors have the scale of the input or of the output.
SAME_AS_INPUT = frozenset(
    (
        "AVERAGE_POOL_2D", "BROADCAST_TO", "GATHER", "GATHER_ND", "MAX_POOL_2D", "MIRROR_PAD",
        "PAD", "REDUCE_MIN", "RESHAPE", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "SLICE",
        "SPACE_TO_DEPTH", "SPLIT", "STRIDED_SLICE", "TRANSPOSE", "UNPACK",
    )
)  # fmt: skip
SAME_AS_OUTPUT = frozenset(
    ["CONCATENATION", "DYNAMIC_UPDATE_SLICE", "MAXIMUM", "PACK", "PADV2", "SELECT", "SELECT_V2"]
)


@dataclasses.dataclass(frozen=True, eq=False)
class Variant:
    operator: int  # its index
    scheme: Scheme
    constants: Mapping[int, np.ndarray]  # by tensor, float32, rounded to their grids
    bytes_saved: int  # by its weights in the file
    # By tensor, the grids of run-time inputs and of results.
    inputs: Mapping[int, Grid] = dataclasses.field(default_factory=dict)
    outputs: Mapping[int, Grid] = dataclasses.field(default_factory=dict)
    # The input that is rounded at each invoke, and whether row by row.
    dynamic_range: tuple[int, bool] | None = None


def why_not(
    scheme: Scheme, operator: Operator, specs: Mapping[int, TensorSpec], tensors: Sequence[Tensor]
) -> str | None:
    """Why litert-quantizer does not quantize an operator in a scheme; None: it does."""
    used = [i for i in (*operator.inputs, *operator.outputs) if i in specs]
    if any(tensors[i].spec().is_quantized for i in used if i < len(tensors)):
        return "it is already quantized: rank the original float model"
    if operator.name not in scheme.operators:
        return "litert-quantizer leaves this operator in float"
    if any(specs[i].dtype == np.float16 for i in used):
        return "it is not float32"
    if not any(specs[i].dtype == np.float32 for i in used):
        return "it has no float32 tensor"
    for index in operator.inputs:
        if index in specs and _is_float_constant(specs[index]) and tensors[index].data is None:
            return f"{specs[index].name!r} is computed from constants (float16 weights?)"
    return _why_not_weights(scheme, operator, specs)


def _why_not_weights(
    scheme: Scheme, operator: Operator, specs: Mapping[int, TensorSpec]
) -> str | None:
    if scheme.is_calibrated:
        return None
    const = specs[operator.inputs[PLACES[operator.name].weight]].const
    if const is None:
        return "it has no constant weights"
    if scheme.block_size and (const.ndim != 2 or const.shape[1] % scheme.block_size):
        return f"the length of its rows of weights is not a multiple of {scheme.block_size}"
    return None


def _is_float_constant(spec: TensorSpec) -> bool:
    return spec.const is not None and spec.dtype == np.float32


def calibrated(operators: Sequence[Operator], specs: Mapping[int, TensorSpec]) -> tuple[int, ...]:
    """The float32 run-time tensors that operators read or write."""
    used = (i for o in operators for i in (*o.inputs, *o.outputs) if i in specs)
    floats = (i for i in used if specs[i].const is None and specs[i].dtype == np.float32)
    return tuple(dict.fromkeys(i for i in floats if 0 not in specs[i].shape))


def variant(
    scheme: Scheme,
    operator: Operator,
    specs: Mapping[int, TensorSpec],
    ranges: Mapping[int, Range],
) -> Variant:
    """An operator, for which `why_not` returns None, quantized in a scheme."""
    places = PLACES.get(operator.name)
    weight = _weight(places, operator, specs)
    constants: dict[int, np.ndarray] = {}
    saved = 0
    if places is not None and weight is not None:
        axis = _axis(places, operator, specs[weight])
        constants[weight], saved = _quantized_weight(scheme, specs[weight], axis)
    if not scheme.is_calibrated:
        dynamic = None
        if scheme.is_dynamic_range and places and places.data is not None:
            dynamic = (operator.inputs[places.data], places.is_row_by_row)
        return Variant(operator.index, scheme, constants, saved, dynamic_range=dynamic)
    bias = None
    if places and places.bias is not None and places.bias < len(operator.inputs):
        bias = operator.inputs[places.bias]
    inputs, outputs = _grids(scheme, operator, specs, ranges, {weight, bias})
    for index in [i for i in inputs if specs[i].const is not None]:
        constants[index] = grids.on_grid(_const(specs[index]), inputs.pop(index))
    if places is not None and bias is not None and weight is not None and bias in specs:
        data = inputs.get(operator.inputs[places.data or 0])
        if data is not None and specs[bias].const is not None:
            scales = grids.channel_scales(_const(specs[weight]), axis)
            constants[bias] = grids.bias_on_grid(_const(specs[bias]), data.scale, scales)
    return Variant(operator.index, scheme, constants, saved, inputs, outputs)


def _weight(
    places: Places | None, operator: Operator, specs: Mapping[int, TensorSpec]
) -> int | None:
    """The constant weights; None: the operator has none, or they are computed."""
    if places is None:
        return None
    index = operator.inputs[places.weight]
    return index if _is_float_constant(specs[index]) else None


def _axis(places: Places, operator: Operator, weights: TensorSpec) -> int:
    if getattr(operator.options, "adj_y", False):
        return len(weights.shape) - 2
    return places.axis % len(weights.shape)


def _quantized_weight(scheme: Scheme, spec: TensorSpec, axis: int) -> tuple[np.ndarray, int]:
    weights = _const(spec)
    if scheme.block_size:
        stored = weights.size // 2 + 2 * weights.size // scheme.block_size
        return grids.in_blocks(weights, scheme.block_size), weights.nbytes - stored
    return grids.by_channel(weights, axis), weights.nbytes - weights.size - 4 * spec.shape[axis]


def _const(spec: TensorSpec) -> np.ndarray:
    assert spec.const is not None, spec.name
    return spec.const


def _grids(
    scheme: Scheme,
    operator: Operator,
    specs: Mapping[int, TensorSpec],
    ranges: Mapping[int, Range],
    left_out: set[int | None],
) -> tuple[dict[int, Grid], dict[int, Grid]]:
    bits = scheme.activation_bits
    read = [i for i in operator.inputs if i in specs and i not in left_out]
    read = [i for i in read if specs[i].dtype == np.float32 and 0 not in specs[i].shape]
    written = [i for i in operator.outputs if i in ranges]

    def grid(index: int) -> Grid:
        return grids.grid_of(_range(specs[index], ranges.get(index)), bits)

    inputs, outputs = {i: grid(i) for i in read}, {i: grid(i) for i in written}
    fixed = grids.fixed_grid(operator.name, bits)
    if fixed is not None:
        outputs = dict.fromkeys(outputs, fixed)
    elif operator.name in SAME_AS_INPUT and inputs:
        outputs = dict.fromkeys(outputs, inputs[read[0]])
    elif operator.name in SAME_AS_OUTPUT and outputs:
        inputs = dict.fromkeys(inputs, outputs[written[0]])
    return inputs, outputs


def _range(spec: TensorSpec, seen: Range | None) -> Range:
    if seen is not None:
        return seen
    values = _const(spec)
    return float(values.min()), float(values.max())
