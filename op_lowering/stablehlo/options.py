"""Options and records of StableHLO operators."""

from jaxdelegate.op_lowering.records import c_struct as c
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import (
    ReduceWindowFunction,
    StablehloComparisonDirection,
    StablehloComparisonType,
    StablehloPrecisionConfig,
)
from jaxdelegate.op_lowering.records.operator import (
    INTEGERS,
    Float16,
    OperatorRecord,
    Result,
    Scales,
    table,
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


class DilateOptions(Record):
    """Table `DilateOptions`: DILATE."""


class ReduceWindowOptions(Record):
    reduce_function: ReduceWindowFunction = ReduceWindowFunction.UNSUPPORTED


class StablehloShiftLeftOptions(Record):
    """Table `StablehloShiftLeftOptions`: STABLEHLO_SHIFT_LEFT."""


RECORDS = table(
    OperatorRecord("DILATE", DilateOptions, cost=costs.movement, scales=Scales.EQUAL),
    OperatorRecord(
        "REDUCE_WINDOW",
        ReduceWindowOptions,
        cost=costs.reduce_window,
        struct={"reduce_function": c.same(ReduceWindowFunction)},
        ignores_scales=INTEGERS,
    ),
    OperatorRecord(
        "STABLEHLO_CLAMP",
        cost=costs.elementwise,
        is_elementwise=True,
        result=Result.MOVED,
        scales=Scales.EQUAL,
        ignores_scales=INTEGERS,
    ),
    OperatorRecord(
        "STABLEHLO_COMPARE",
        StablehloCompareOptions,
        cost=costs.elementwise,
        struct=c.NOT_HANDED_OUT,
        is_elementwise=True,
        reads_unrounded=True,
        ignores_scales=INTEGERS,
    ),
    OperatorRecord(
        "STABLEHLO_CONVERT",
        cost=costs.elementwise,
        is_elementwise=True,
        reads_unrounded=True,
        ignores_scales=INTEGERS,
    ),
    OperatorRecord(
        "STABLEHLO_CONVOLUTION",
        StablehloConvolutionOptions,
        cost=costs.stablehlo_convolution,
        struct=c.NOT_HANDED_OUT,
        multiplies=True,
        result=Result.REDUCED,
    ),
    OperatorRecord(
        "STABLEHLO_CUSTOM_CALL",
        StablehloCustomCallOptions,
        cost=costs.unknown,
        struct=c.NOT_HANDED_OUT,
    ),
    OperatorRecord(
        "STABLEHLO_DIVIDE",
        cost=costs.elementwise,
        is_elementwise=True,
        reads_unrounded=True,
        ignores_scales=INTEGERS,
    ),
    OperatorRecord(
        "STABLEHLO_DOT_GENERAL",
        StablehloDotGeneralOptions,
        cost=costs.dot_general,
        struct=c.NOT_HANDED_OUT,
        multiplies=True,
        result=Result.REDUCED,
    ),
    OperatorRecord(
        "STABLEHLO_DYNAMIC_SLICE",
        StablehloDynamicSliceOptions,
        cost=costs.movement,
        struct=c.NOT_HANDED_OUT,
        result=Result.MOVED,
        picks_from=0,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "STABLEHLO_DYNAMIC_UPDATE_SLICE",
        cost=costs.movement,
        result=Result.MOVED,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "STABLEHLO_EXPONENTIAL",
        cost=costs.transcendental,
        is_elementwise=True,
        reads_unrounded=True,
        float16=Float16.GROWTH,
    ),
    OperatorRecord(
        "STABLEHLO_FLOOR", cost=costs.elementwise, is_elementwise=True, reads_unrounded=True
    ),
    OperatorRecord(
        "STABLEHLO_GATHER",
        StablehloGatherOptions,
        cost=costs.movement,
        struct={
            "offset_dims": c.INDICES,
            "collapsed_slice_dims": c.INDICES,
            "start_index_map": c.INDICES,
            "index_vector_dim": c.INT64,
            "slice_sizes": c.INDICES,
            "indices_are_sorted": c.BOOL,
        },
        result=Result.MOVED,
        picks_from=0,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "STABLEHLO_IOTA", StablehloIotaOptions, cost=costs.movement, struct=c.NOT_HANDED_OUT
    ),
    OperatorRecord(
        "STABLEHLO_PAD",
        StablehloPadOptions,
        cost=costs.movement,
        struct={
            "edge_padding_low": c.by_rank(8),
            "edge_padding_high": c.by_rank(8),
            "interior_padding": c.by_rank(8),
        },
        result=Result.MOVED,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "STABLEHLO_POWER",
        cost=costs.transcendental,
        is_elementwise=True,
        reads_unrounded=True,
        float16=Float16.GROWTH,
        ignores_scales=INTEGERS,
    ),
    OperatorRecord(
        "STABLEHLO_REDUCE",
        StablehloReduceOptions,
        cost=costs.stablehlo_reduce,
        struct=c.NOT_HANDED_OUT,
        ignores_scales=INTEGERS,
    ),
    OperatorRecord(
        "STABLEHLO_REDUCE_WINDOW",
        StablehloReduceWindowOptions,
        cost=costs.reduce_window,
        struct={
            "window_dimensions": c.by_rank(8),
            "window_strides": c.by_rank(8),
            "base_dilations": c.by_rank(8),
            "window_dilations": c.by_rank(8),
            "padding": c.by_rank(16, each=2),
            "body_subgraph_index": c.INT,
        },
        ignores_scales=INTEGERS,
    ),
    OperatorRecord(
        "STABLEHLO_RESHAPE", cost=costs.movement, result=Result.MOVED, scales=Scales.EQUAL
    ),
    OperatorRecord(
        "STABLEHLO_SCATTER",
        StablehloScatterOptions,
        cost=costs.scatter,
        struct={
            "indices_are_sorted": c.BOOL,
            "update_window_dims": c.INDICES,
            "inserted_window_dims": c.INDICES,
            "scatter_dims_to_operand_dims": c.INDICES,
            "index_vector_dim": c.INT64,
            "unique_indices": c.BOOL,
            "update_computation_subgraph_index": c.INT,
        },
        ignores_scales=INTEGERS,
    ),
    OperatorRecord(
        "STABLEHLO_SELECT",
        cost=costs.elementwise,
        is_elementwise=True,
        result=Result.MOVED,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "STABLEHLO_SHIFT_LEFT",
        StablehloShiftLeftOptions,
        cost=costs.elementwise,
        is_elementwise=True,
        ignores_scales=INTEGERS,
    ),
    OperatorRecord(
        "STABLEHLO_SLICE",
        StablehloSliceOptions,
        cost=costs.movement,
        struct=c.NOT_HANDED_OUT,
        result=Result.MOVED,
        picks_from=0,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "STABLEHLO_SORT",
        StablehloSortOptions,
        cost=costs.sort,
        struct=c.NOT_HANDED_OUT,
        reads_unrounded=True,
        ignores_scales=INTEGERS,
    ),
    *(
        OperatorRecord(name, cost=costs.elementwise, is_elementwise=True, ignores_scales=INTEGERS)
        for name in ("STABLEHLO_AND", "STABLEHLO_OR", "STABLEHLO_REMAINDER")
    ),
    *(
        OperatorRecord(
            name,
            cost=costs.elementwise,
            is_elementwise=True,
            result=Result.REDUCED,
            ignores_scales=INTEGERS,
        )
        for name in ("STABLEHLO_ADD", "STABLEHLO_MULTIPLY", "STABLEHLO_SUBTRACT")
    ),
    *(
        OperatorRecord(
            name,
            cost=costs.elementwise,
            is_elementwise=True,
            result=Result.MOVED,
            ignores_scales=INTEGERS,
        )
        for name in ("STABLEHLO_ABS", "STABLEHLO_NEGATE")
    ),
    *(
        OperatorRecord(
            name,
            cost=costs.elementwise,
            is_elementwise=True,
            result=Result.MOVED,
            scales=Scales.EQUAL,
            ignores_scales=INTEGERS,
        )
        for name in ("STABLEHLO_MAXIMUM", "STABLEHLO_MINIMUM")
    ),
    *(
        OperatorRecord(name, cost=costs.transcendental, is_elementwise=True, result=Result.REDUCED)
        for name in ("STABLEHLO_LOGISTIC", "STABLEHLO_TANH")
    ),
    *(
        OperatorRecord(name, cost=costs.transcendental, is_elementwise=True, reads_unrounded=True)
        for name in ("STABLEHLO_CBRT", "STABLEHLO_COSINE", "STABLEHLO_LOG", "STABLEHLO_RSQRT")
    ),
    *(
        OperatorRecord(
            name,
            options,
            cost=costs.movement,
            struct=c.NOT_HANDED_OUT,
            result=Result.MOVED,
            scales=Scales.EQUAL,
        )
        for name, options in (
            ("STABLEHLO_BROADCAST_IN_DIM", StablehloBroadcastInDimOptions),
            ("STABLEHLO_CONCATENATE", StablehloConcatenateOptions),
            ("STABLEHLO_TRANSPOSE", StablehloTransposeOptions),
        )
    ),
)
