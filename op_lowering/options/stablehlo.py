"""Options tables, field names as in schema.fbs: StableHLO operators."""

from jaxdelegate.op_lowering.options.enums import (
    CustomOptionsFormat,
    ReduceWindowFunction,
    RngAlgorithm,
    StablehloComparisonDirection,
    StablehloComparisonType,
    StablehloPrecisionConfig,
)
from jaxdelegate.op_lowering.options.record import Record


class StablehloConcatenateOptions(Record):
    """Table `StablehloConcatenateOptions`: STABLEHLO_CONCATENATE."""

    operators = ("STABLEHLO_CONCATENATE",)
    dimension: int = 0


class StablehloBroadcastInDimOptions(Record):
    """Table `StablehloBroadcastInDimOptions`: STABLEHLO_BROADCAST_IN_DIM."""

    operators = ("STABLEHLO_BROADCAST_IN_DIM",)
    broadcast_dimensions: tuple[int, ...] = ()


class StablehloSliceOptions(Record):
    """Table `StablehloSliceOptions`: STABLEHLO_SLICE."""

    operators = ("STABLEHLO_SLICE",)
    start_indices: tuple[int, ...] = ()
    limit_indices: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()


class StablehloConvolutionOptions(Record):
    """Table `StablehloConvolutionOptions`: STABLEHLO_CONVOLUTION."""

    operators = ("STABLEHLO_CONVOLUTION",)
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
    """Table `StablehloCustomCallOptions`: STABLEHLO_CUSTOM_CALL."""

    operators = ("STABLEHLO_CUSTOM_CALL",)
    call_target_name: str = ""
    has_side_effect: bool = False
    backend_config: str = ""
    api_version: int = 0
    called_computations: tuple[int, ...] = ()
    custom_attributes: bytes = b""


class StablehloReduceOptions(Record):
    """Table `StablehloReduceOptions`: STABLEHLO_REDUCE."""

    operators = ("STABLEHLO_REDUCE",)
    dimensions: tuple[int, ...] = ()
    body_subgraph_index: int = 0


class StablehloScatterOptions(Record):
    """Table `StablehloScatterOptions`: STABLEHLO_SCATTER."""

    operators = ("STABLEHLO_SCATTER",)
    indices_are_sorted: bool = False
    update_window_dims: tuple[int, ...] = ()
    inserted_window_dims: tuple[int, ...] = ()
    scatter_dims_to_operand_dims: tuple[int, ...] = ()
    index_vector_dim: int = 0
    unique_indices: bool = False
    update_computation_subgraph_index: int = 0


class StablehloCompareOptions(Record):
    """Table `StablehloCompareOptions`: STABLEHLO_COMPARE."""

    operators = ("STABLEHLO_COMPARE",)
    comparison_direction: StablehloComparisonDirection = (
        StablehloComparisonDirection.STABLEHLO_COMPARISON_DIRECTION_EQ
    )
    compare_type: StablehloComparisonType = StablehloComparisonType.STABLEHLO_COMPARISON_TYPE_NOTYPE


class StablehloDynamicSliceOptions(Record):
    """Table `StablehloDynamicSliceOptions`: STABLEHLO_DYNAMIC_SLICE."""

    operators = ("STABLEHLO_DYNAMIC_SLICE",)
    slice_sizes: tuple[int, ...] = ()


class StablehloPadOptions(Record):
    """Table `StablehloPadOptions`: STABLEHLO_PAD."""

    operators = ("STABLEHLO_PAD",)
    edge_padding_low: tuple[int, ...] = ()
    edge_padding_high: tuple[int, ...] = ()
    interior_padding: tuple[int, ...] = ()


class StablehloIotaOptions(Record):
    """Table `StablehloIotaOptions`: STABLEHLO_IOTA."""

    operators = ("STABLEHLO_IOTA",)
    iota_dimension: int = 0


class StablehloDotGeneralOptions(Record):
    """Table `StablehloDotGeneralOptions`: STABLEHLO_DOT_GENERAL."""

    operators = ("STABLEHLO_DOT_GENERAL",)
    lhs_batching_dimensions: tuple[int, ...] = ()
    rhs_batching_dimensions: tuple[int, ...] = ()
    lhs_contracting_dimensions: tuple[int, ...] = ()
    rhs_contracting_dimensions: tuple[int, ...] = ()
    precision_config: tuple[StablehloPrecisionConfig, ...] = ()


class StablehloReduceWindowOptions(Record):
    """Table `StablehloReduceWindowOptions`: STABLEHLO_REDUCE_WINDOW."""

    operators = ("STABLEHLO_REDUCE_WINDOW",)
    window_dimensions: tuple[int, ...] = ()
    window_strides: tuple[int, ...] = ()
    base_dilations: tuple[int, ...] = ()
    window_dilations: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    body_subgraph_index: int = 0


class StablehloSortOptions(Record):
    """Table `StablehloSortOptions`: STABLEHLO_SORT."""

    operators = ("STABLEHLO_SORT",)
    dimension: int = 0
    is_stable: bool = False
    comparator_subgraph_index: int = 0


class StablehloWhileOptions(Record):
    """Table `StablehloWhileOptions`: STABLEHLO_WHILE."""

    operators = ("STABLEHLO_WHILE",)
    cond_subgraph_index: int = 0
    body_subgraph_index: int = 0


class StablehloGatherOptions(Record):
    """Table `StablehloGatherOptions`: STABLEHLO_GATHER."""

    operators = ("STABLEHLO_GATHER",)
    offset_dims: tuple[int, ...] = ()
    collapsed_slice_dims: tuple[int, ...] = ()
    start_index_map: tuple[int, ...] = ()
    index_vector_dim: int = 0
    slice_sizes: tuple[int, ...] = ()
    indices_are_sorted: bool = False


class StablehloTransposeOptions(Record):
    """Table `StablehloTransposeOptions`: STABLEHLO_TRANSPOSE."""

    operators = ("STABLEHLO_TRANSPOSE",)
    permutation: tuple[int, ...] = ()


class DilateOptions(Record):
    """Table `DilateOptions`: DILATE."""

    operators = ("DILATE",)


class StablehloRngBitGeneratorOptions(Record):
    """Table `StablehloRngBitGeneratorOptions`: STABLEHLO_RNG_BIT_GENERATOR."""

    operators = ("STABLEHLO_RNG_BIT_GENERATOR",)
    algorithm: RngAlgorithm = RngAlgorithm.DEFAULT


class ReduceWindowOptions(Record):
    """Table `ReduceWindowOptions`: REDUCE_WINDOW."""

    operators = ("REDUCE_WINDOW",)
    reduce_function: ReduceWindowFunction = ReduceWindowFunction.UNSUPPORTED


class StableHLOCompositeOptions(Record):
    """Table `StableHLOCompositeOptions`: STABLEHLO_COMPOSITE."""

    operators = ("STABLEHLO_COMPOSITE",)
    name: str = ""
    decomposition_subgraph_index: int = 0
    composite_attributes: bytes = b""
    composite_attributes_format: CustomOptionsFormat = CustomOptionsFormat.FLEXBUFFERS
    version: int = 0


class StablehloShiftLeftOptions(Record):
    """Table `StablehloShiftLeftOptions`: STABLEHLO_SHIFT_LEFT."""

    operators = ("STABLEHLO_SHIFT_LEFT",)


class StablehloCaseOptions(Record):
    """Table `StablehloCaseOptions`: STABLEHLO_CASE."""

    operators = ("STABLEHLO_CASE",)
    branch_subgraph_indices: tuple[int, ...] = ()
