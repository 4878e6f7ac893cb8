"""Options and records of StableHLO operators."""

import dataclasses
import math
from typing import Self

from jaxdelegate.op_lowering.records import c_struct as c
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import (
    ReduceWindowFunction,
    StablehloComparisonDirection,
    StablehloComparisonType,
    StablehloPrecisionConfig,
)
from jaxdelegate.op_lowering.records.operator import (
    COMPARED,
    EQUAL,
    EXPONENTIAL,
    INTEGERS_ONLY,
    MOVED,
    REDUCED,
    UNROUNDED,
    OperatorRecord,
    elementwise,
    moves,
    sums_products,
    table,
    transcendental,
)
from jaxdelegate.op_lowering.records.record import Record


class StablehloConcatenateOptions(Record):
    dimension: int = 0


class StablehloBroadcastInDimOptions(Record):
    broadcast_dimensions: tuple[int, ...] = ()


class StablehloSliceOptions(Record):
    start_indices: tuple[int, ...] = ()
    limit_indices: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()


class StablehloConvolutionOptions(Record):
    window_strides: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    lhs_dilation: tuple[int, ...] = ()
    rhs_dilation: tuple[int, ...] = ()
    window_reversal: tuple[bool, ...] = ()
    input_batch_dimension: int = 0
    input_feature_dimension: int = 0
    input_spatial_dimensions: tuple[int, ...] = ()
    kernel_input_feature_dimension: int = 0
    kernel_output_feature_dimension: int = 0
    kernel_spatial_dimensions: tuple[int, ...] = ()
    output_batch_dimension: int = 0
    output_feature_dimension: int = 0
    output_spatial_dimensions: tuple[int, ...] = ()
    feature_group_count: int = 0
    batch_group_count: int = 0
    precision_config: tuple[StablehloPrecisionConfig, ...] = ()


class StablehloCustomCallOptions(Record):
    call_target_name: str = ""
    has_side_effect: bool = False
    backend_config: str = ""
    api_version: int = 0
    called_computations: tuple[int, ...] = ()
    custom_attributes: bytes = b""


class StablehloReduceOptions(Record):
    dimensions: tuple[int, ...] = ()
    body_subgraph_index: int = 0


class StablehloScatterOptions(Record):
    indices_are_sorted: bool = False
    update_window_dims: tuple[int, ...] = ()
    inserted_window_dims: tuple[int, ...] = ()
    scatter_dims_to_operand_dims: tuple[int, ...] = ()
    index_vector_dim: int = 0
    unique_indices: bool = False
    update_computation_subgraph_index: int = 0


class StablehloCompareOptions(Record):
    comparison_direction: StablehloComparisonDirection = (
        StablehloComparisonDirection.STABLEHLO_COMPARISON_DIRECTION_EQ
    )
    compare_type: StablehloComparisonType = StablehloComparisonType.STABLEHLO_COMPARISON_TYPE_NOTYPE


class StablehloDynamicSliceOptions(Record):
    slice_sizes: tuple[int, ...] = ()


class StablehloPadOptions(Record):
    edge_padding_low: tuple[int, ...] = ()
    edge_padding_high: tuple[int, ...] = ()
    interior_padding: tuple[int, ...] = ()


class StablehloIotaOptions(Record):
    iota_dimension: int = 0


class StablehloDotGeneralOptions(Record):
    lhs_batching_dimensions: tuple[int, ...] = ()
    rhs_batching_dimensions: tuple[int, ...] = ()
    lhs_contracting_dimensions: tuple[int, ...] = ()
    rhs_contracting_dimensions: tuple[int, ...] = ()
    precision_config: tuple[StablehloPrecisionConfig, ...] = ()


class StablehloReduceWindowOptions(Record):
    window_dimensions: tuple[int, ...] = ()
    window_strides: tuple[int, ...] = ()
    base_dilations: tuple[int, ...] = ()
    window_dilations: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    body_subgraph_index: int = 0

    @property
    def complete(self) -> Self:
        """The options with neutral values for the attributes that are absent."""
        rank = len(self.window_dimensions)
        ones = (1,) * rank
        return dataclasses.replace(
            self,
            window_strides=self.window_strides or ones,
            base_dilations=self.base_dilations or ones,
            window_dilations=self.window_dilations or ones,
            padding=self.padding or (0, 0) * rank,
        )

    @property
    def widths(self) -> list[tuple[int, int, int]]:
        """What is before, after and between the values of each dimension; for complete options."""
        gaps = [d - 1 for d in self.base_dilations]
        return list(zip(self.padding[::2], self.padding[1::2], gaps, strict=True))


class StablehloSortOptions(Record):
    dimension: int = 0
    is_stable: bool = False
    comparator_subgraph_index: int = 0


class StablehloGatherOptions(Record):
    offset_dims: tuple[int, ...] = ()
    collapsed_slice_dims: tuple[int, ...] = ()
    start_index_map: tuple[int, ...] = ()
    index_vector_dim: int = 0
    slice_sizes: tuple[int, ...] = ()
    indices_are_sorted: bool = False


class StablehloTransposeOptions(Record):
    permutation: tuple[int, ...] = ()


class ReduceWindowOptions(Record):
    reduce_function: ReduceWindowFunction = ReduceWindowFunction.UNSUPPORTED


def _dot_general(op: costs.Operation[StablehloDotGeneralOptions]) -> costs.Work:
    contracted = math.prod(op.inputs[0].shape[i] for i in op.options.lhs_contracting_dimensions)
    return costs.Work(2 * costs.n(op.outputs[0]) * contracted)


def _convolution(op: costs.Operation[StablehloConvolutionOptions]) -> costs.Work:
    """A whole filter for each pixel and output channel."""
    kernel = op.inputs[1]
    features = kernel.shape[op.options.kernel_output_feature_dimension]
    return costs.Work(2 * costs.n(op.outputs[0]) * costs.n(kernel) // features)


def _reduce_window(op: costs.Operation[StablehloReduceWindowOptions]) -> costs.Work:
    taps = costs.n(op.outputs[0]) * math.prod(op.options.window_dimensions)
    return costs.times(taps, op.called(op.options.body_subgraph_index))


def _builtin_reduce_window(op: costs.Operation[ReduceWindowOptions]) -> costs.Work:
    sizes = op.inputs[2].const
    if sizes is None:
        raise TypeError
    return costs.Work(costs.n(op.outputs[0]) * math.prod(map(int, sizes.ravel())))


def _reduce(op: costs.Operation[StablehloReduceOptions]) -> costs.Work:
    return costs.times(costs.n(op.inputs[0]), op.called(op.options.body_subgraph_index))


def _sort(op: costs.Operation[StablehloSortOptions]) -> costs.Work:
    length = op.inputs[0].shape[op.options.dimension] if op.inputs[0].shape else 1
    comparisons = costs.n(op.inputs[0]) * max(length - 1, 1).bit_length()
    work = costs.times(comparisons, op.called(op.options.comparator_subgraph_index))
    return dataclasses.replace(work, note="estimate: n log n comparisons")


def _scatter(op: costs.Operation[StablehloScatterOptions]) -> costs.Work:
    update = op.called(op.options.update_computation_subgraph_index)
    return costs.times(costs.n(op.inputs[2]), update)


RECORDS = table(
    OperatorRecord("DILATE", cost=costs.movement, scales=EQUAL),
    OperatorRecord(
        "REDUCE_WINDOW", ReduceWindowOptions, cost=_builtin_reduce_window, scales=INTEGERS_ONLY
    ),
    elementwise("STABLEHLO_ABS", precision=MOVED, scales=INTEGERS_ONLY),
    elementwise("STABLEHLO_ADD", precision=REDUCED, scales=INTEGERS_ONLY),
    elementwise("STABLEHLO_AND", scales=INTEGERS_ONLY),
    moves("STABLEHLO_BROADCAST_IN_DIM", StablehloBroadcastInDimOptions, struct=c.HIDDEN),
    transcendental("STABLEHLO_CBRT", precision=UNROUNDED),
    elementwise("STABLEHLO_CLAMP", precision=MOVED, scales=COMPARED),
    elementwise(
        "STABLEHLO_COMPARE",
        StablehloCompareOptions,
        struct=c.HIDDEN,
        precision=UNROUNDED,
        scales=INTEGERS_ONLY,
    ),
    moves("STABLEHLO_CONCATENATE", StablehloConcatenateOptions, struct=c.HIDDEN),
    elementwise("STABLEHLO_CONVERT", precision=UNROUNDED, scales=INTEGERS_ONLY),
    sums_products(
        "STABLEHLO_CONVOLUTION", StablehloConvolutionOptions, cost=_convolution, struct=c.HIDDEN
    ),
    transcendental("STABLEHLO_COSINE", precision=UNROUNDED),
    OperatorRecord(
        "STABLEHLO_CUSTOM_CALL", StablehloCustomCallOptions, cost=costs.unknown, struct=c.HIDDEN
    ),
    elementwise("STABLEHLO_DIVIDE", precision=UNROUNDED, scales=INTEGERS_ONLY),
    sums_products(
        "STABLEHLO_DOT_GENERAL", StablehloDotGeneralOptions, cost=_dot_general, struct=c.HIDDEN
    ),
    moves("STABLEHLO_DYNAMIC_SLICE", StablehloDynamicSliceOptions, struct=c.HIDDEN, picks_from=0),
    moves("STABLEHLO_DYNAMIC_UPDATE_SLICE"),
    transcendental("STABLEHLO_EXPONENTIAL", precision=EXPONENTIAL),
    elementwise("STABLEHLO_FLOOR", precision=UNROUNDED),
    moves(
        "STABLEHLO_GATHER",
        StablehloGatherOptions,
        struct=c.members(StablehloGatherOptions, lists=c.INDICES) | {"index_vector_dim": c.INT64},
        picks_from=0,
    ),
    OperatorRecord("STABLEHLO_IOTA", StablehloIotaOptions, cost=costs.movement, struct=c.HIDDEN),
    transcendental("STABLEHLO_LOG", precision=UNROUNDED),
    transcendental("STABLEHLO_LOGISTIC", precision=REDUCED),
    elementwise("STABLEHLO_MAXIMUM", precision=MOVED, scales=COMPARED),
    elementwise("STABLEHLO_MINIMUM", precision=MOVED, scales=COMPARED),
    elementwise("STABLEHLO_MULTIPLY", precision=REDUCED, scales=INTEGERS_ONLY),
    elementwise("STABLEHLO_NEGATE", precision=MOVED, scales=INTEGERS_ONLY),
    elementwise("STABLEHLO_OR", scales=INTEGERS_ONLY),
    moves(
        "STABLEHLO_PAD",
        StablehloPadOptions,
        struct=c.members(StablehloPadOptions, lists=c.by_rank(8)),
    ),
    transcendental("STABLEHLO_POWER", precision=EXPONENTIAL, scales=INTEGERS_ONLY),
    OperatorRecord(
        "STABLEHLO_REDUCE",
        StablehloReduceOptions,
        cost=_reduce,
        struct=c.HIDDEN,
        scales=INTEGERS_ONLY,
    ),
    OperatorRecord(
        "STABLEHLO_REDUCE_WINDOW",
        StablehloReduceWindowOptions,
        struct=c.members(StablehloReduceWindowOptions, lists=c.by_rank(8))
        | {"padding": c.by_rank(16, each=2)},
        cost=_reduce_window,
        scales=INTEGERS_ONLY,
    ),
    elementwise("STABLEHLO_REMAINDER", scales=INTEGERS_ONLY),
    moves("STABLEHLO_RESHAPE"),
    transcendental("STABLEHLO_RSQRT", precision=UNROUNDED),
    OperatorRecord(
        "STABLEHLO_SCATTER",
        StablehloScatterOptions,
        cost=_scatter,
        struct=c.members(StablehloScatterOptions, lists=c.INDICES) | {"index_vector_dim": c.INT64},
        scales=INTEGERS_ONLY,
    ),
    elementwise("STABLEHLO_SELECT", precision=MOVED, scales=EQUAL),
    elementwise("STABLEHLO_SHIFT_LEFT", scales=INTEGERS_ONLY),
    moves("STABLEHLO_SLICE", StablehloSliceOptions, struct=c.HIDDEN, picks_from=0),
    OperatorRecord(
        "STABLEHLO_SORT",
        StablehloSortOptions,
        cost=_sort,
        struct=c.HIDDEN,
        precision=UNROUNDED,
        scales=INTEGERS_ONLY,
    ),
    elementwise("STABLEHLO_SUBTRACT", precision=REDUCED, scales=INTEGERS_ONLY),
    transcendental("STABLEHLO_TANH", precision=REDUCED),
    moves("STABLEHLO_TRANSPOSE", StablehloTransposeOptions, struct=c.HIDDEN),
)
