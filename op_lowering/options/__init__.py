"""What an operator is told besides its tensors: one dataclass per options table of schema.fbs."""

from jaxdelegate.op_lowering.options.array import (
    ArgMaxOptions as ArgMaxOptions,
)
from jaxdelegate.op_lowering.options.array import (
    ArgMinOptions as ArgMinOptions,
)
from jaxdelegate.op_lowering.options.array import (
    BatchToSpaceNDOptions as BatchToSpaceNDOptions,
)
from jaxdelegate.op_lowering.options.array import (
    BroadcastToOptions as BroadcastToOptions,
)
from jaxdelegate.op_lowering.options.array import (
    ConcatenationOptions as ConcatenationOptions,
)
from jaxdelegate.op_lowering.options.array import (
    DepthToSpaceOptions as DepthToSpaceOptions,
)
from jaxdelegate.op_lowering.options.array import (
    DynamicUpdateSliceOptions as DynamicUpdateSliceOptions,
)
from jaxdelegate.op_lowering.options.array import (
    ExpandDimsOptions as ExpandDimsOptions,
)
from jaxdelegate.op_lowering.options.array import (
    FillOptions as FillOptions,
)
from jaxdelegate.op_lowering.options.array import (
    GatherNdOptions as GatherNdOptions,
)
from jaxdelegate.op_lowering.options.array import (
    GatherOptions as GatherOptions,
)
from jaxdelegate.op_lowering.options.array import (
    MatrixDiagOptions as MatrixDiagOptions,
)
from jaxdelegate.op_lowering.options.array import (
    MatrixSetDiagOptions as MatrixSetDiagOptions,
)
from jaxdelegate.op_lowering.options.array import (
    MirrorPadOptions as MirrorPadOptions,
)
from jaxdelegate.op_lowering.options.array import (
    OneHotOptions as OneHotOptions,
)
from jaxdelegate.op_lowering.options.array import (
    PackOptions as PackOptions,
)
from jaxdelegate.op_lowering.options.array import (
    PadOptions as PadOptions,
)
from jaxdelegate.op_lowering.options.array import (
    PadV2Options as PadV2Options,
)
from jaxdelegate.op_lowering.options.array import (
    RangeOptions as RangeOptions,
)
from jaxdelegate.op_lowering.options.array import (
    RankOptions as RankOptions,
)
from jaxdelegate.op_lowering.options.array import (
    ReshapeOptions as ReshapeOptions,
)
from jaxdelegate.op_lowering.options.array import (
    ReverseSequenceOptions as ReverseSequenceOptions,
)
from jaxdelegate.op_lowering.options.array import (
    ReverseV2Options as ReverseV2Options,
)
from jaxdelegate.op_lowering.options.array import (
    ScatterNdOptions as ScatterNdOptions,
)
from jaxdelegate.op_lowering.options.array import (
    SelectOptions as SelectOptions,
)
from jaxdelegate.op_lowering.options.array import (
    SelectV2Options as SelectV2Options,
)
from jaxdelegate.op_lowering.options.array import (
    ShapeOptions as ShapeOptions,
)
from jaxdelegate.op_lowering.options.array import (
    SliceOptions as SliceOptions,
)
from jaxdelegate.op_lowering.options.array import (
    SpaceToBatchNDOptions as SpaceToBatchNDOptions,
)
from jaxdelegate.op_lowering.options.array import (
    SpaceToDepthOptions as SpaceToDepthOptions,
)
from jaxdelegate.op_lowering.options.array import (
    SparseToDenseOptions as SparseToDenseOptions,
)
from jaxdelegate.op_lowering.options.array import (
    SplitOptions as SplitOptions,
)
from jaxdelegate.op_lowering.options.array import (
    SplitVOptions as SplitVOptions,
)
from jaxdelegate.op_lowering.options.array import (
    SqueezeOptions as SqueezeOptions,
)
from jaxdelegate.op_lowering.options.array import (
    StridedSliceOptions as StridedSliceOptions,
)
from jaxdelegate.op_lowering.options.array import (
    TileOptions as TileOptions,
)
from jaxdelegate.op_lowering.options.array import (
    TopKV2Options as TopKV2Options,
)
from jaxdelegate.op_lowering.options.array import (
    TransposeOptions as TransposeOptions,
)
from jaxdelegate.op_lowering.options.array import (
    UniqueOptions as UniqueOptions,
)
from jaxdelegate.op_lowering.options.array import (
    UnpackOptions as UnpackOptions,
)
from jaxdelegate.op_lowering.options.array import (
    WhereOptions as WhereOptions,
)
from jaxdelegate.op_lowering.options.array import (
    ZerosLikeOptions as ZerosLikeOptions,
)
from jaxdelegate.op_lowering.options.base import (
    CustomOptions as CustomOptions,
)
from jaxdelegate.op_lowering.options.base import (
    FlexbufferOptions as FlexbufferOptions,
)
from jaxdelegate.op_lowering.options.base import (
    NoOptions as NoOptions,
)
from jaxdelegate.op_lowering.options.base import (
    Options as Options,
)
from jaxdelegate.op_lowering.options.control import (
    AssignVariableOptions as AssignVariableOptions,
)
from jaxdelegate.op_lowering.options.control import (
    CallOnceOptions as CallOnceOptions,
)
from jaxdelegate.op_lowering.options.control import (
    CallOptions as CallOptions,
)
from jaxdelegate.op_lowering.options.control import (
    HashtableFindOptions as HashtableFindOptions,
)
from jaxdelegate.op_lowering.options.control import (
    HashtableImportOptions as HashtableImportOptions,
)
from jaxdelegate.op_lowering.options.control import (
    HashtableOptions as HashtableOptions,
)
from jaxdelegate.op_lowering.options.control import (
    HashtableSizeOptions as HashtableSizeOptions,
)
from jaxdelegate.op_lowering.options.control import (
    IfOptions as IfOptions,
)
from jaxdelegate.op_lowering.options.control import (
    RandomOptions as RandomOptions,
)
from jaxdelegate.op_lowering.options.control import (
    ReadVariableOptions as ReadVariableOptions,
)
from jaxdelegate.op_lowering.options.control import (
    VarHandleOptions as VarHandleOptions,
)
from jaxdelegate.op_lowering.options.control import (
    WhileOptions as WhileOptions,
)
from jaxdelegate.op_lowering.options.custom import (
    Convolution2DTransposeBiasOptions as Convolution2DTransposeBiasOptions,
)
from jaxdelegate.op_lowering.options.custom import (
    DetectionPostProcessOptions as DetectionPostProcessOptions,
)
from jaxdelegate.op_lowering.options.custom import (
    MaxPoolWithArgmaxOptions as MaxPoolWithArgmaxOptions,
)
from jaxdelegate.op_lowering.options.custom import (
    Pool3DOptions as Pool3DOptions,
)
from jaxdelegate.op_lowering.options.custom import (
    PoolParamsOptions as PoolParamsOptions,
)
from jaxdelegate.op_lowering.options.decode import (
    custom_options as custom_options,
)
from jaxdelegate.op_lowering.options.decode import (
    decode as decode,
)
from jaxdelegate.op_lowering.options.decode import (
    default_options as default_options,
)
from jaxdelegate.op_lowering.options.decode import (
    options_class as options_class,
)
from jaxdelegate.op_lowering.options.enums import (
    ActivationFunctionType as ActivationFunctionType,
)
from jaxdelegate.op_lowering.options.enums import (
    CombinerType as CombinerType,
)
from jaxdelegate.op_lowering.options.enums import (
    CustomOptionsFormat as CustomOptionsFormat,
)
from jaxdelegate.op_lowering.options.enums import (
    DimensionType as DimensionType,
)
from jaxdelegate.op_lowering.options.enums import (
    FullyConnectedOptionsWeightsFormat as FullyConnectedOptionsWeightsFormat,
)
from jaxdelegate.op_lowering.options.enums import (
    LSHProjectionType as LSHProjectionType,
)
from jaxdelegate.op_lowering.options.enums import (
    LSTMKernelType as LSTMKernelType,
)
from jaxdelegate.op_lowering.options.enums import (
    MirrorPadMode as MirrorPadMode,
)
from jaxdelegate.op_lowering.options.enums import (
    Padding as Padding,
)
from jaxdelegate.op_lowering.options.enums import (
    ReduceWindowFunction as ReduceWindowFunction,
)
from jaxdelegate.op_lowering.options.enums import (
    RngAlgorithm as RngAlgorithm,
)
from jaxdelegate.op_lowering.options.enums import (
    StablehloComparisonDirection as StablehloComparisonDirection,
)
from jaxdelegate.op_lowering.options.enums import (
    StablehloComparisonType as StablehloComparisonType,
)
from jaxdelegate.op_lowering.options.enums import (
    StablehloPrecisionConfig as StablehloPrecisionConfig,
)
from jaxdelegate.op_lowering.options.enums import (
    TensorType as TensorType,
)
from jaxdelegate.op_lowering.options.math import (
    AbsOptions as AbsOptions,
)
from jaxdelegate.op_lowering.options.math import (
    AddNOptions as AddNOptions,
)
from jaxdelegate.op_lowering.options.math import (
    AddOptions as AddOptions,
)
from jaxdelegate.op_lowering.options.math import (
    ATan2Options as ATan2Options,
)
from jaxdelegate.op_lowering.options.math import (
    BitcastOptions as BitcastOptions,
)
from jaxdelegate.op_lowering.options.math import (
    BitwiseXorOptions as BitwiseXorOptions,
)
from jaxdelegate.op_lowering.options.math import (
    BucketizeOptions as BucketizeOptions,
)
from jaxdelegate.op_lowering.options.math import (
    CastOptions as CastOptions,
)
from jaxdelegate.op_lowering.options.math import (
    CosOptions as CosOptions,
)
from jaxdelegate.op_lowering.options.math import (
    CumsumOptions as CumsumOptions,
)
from jaxdelegate.op_lowering.options.math import (
    DivOptions as DivOptions,
)
from jaxdelegate.op_lowering.options.math import (
    EqualOptions as EqualOptions,
)
from jaxdelegate.op_lowering.options.math import (
    ExpOptions as ExpOptions,
)
from jaxdelegate.op_lowering.options.math import (
    FloorDivOptions as FloorDivOptions,
)
from jaxdelegate.op_lowering.options.math import (
    FloorModOptions as FloorModOptions,
)
from jaxdelegate.op_lowering.options.math import (
    GreaterEqualOptions as GreaterEqualOptions,
)
from jaxdelegate.op_lowering.options.math import (
    GreaterOptions as GreaterOptions,
)
from jaxdelegate.op_lowering.options.math import (
    LessEqualOptions as LessEqualOptions,
)
from jaxdelegate.op_lowering.options.math import (
    LessOptions as LessOptions,
)
from jaxdelegate.op_lowering.options.math import (
    LogicalAndOptions as LogicalAndOptions,
)
from jaxdelegate.op_lowering.options.math import (
    LogicalNotOptions as LogicalNotOptions,
)
from jaxdelegate.op_lowering.options.math import (
    LogicalOrOptions as LogicalOrOptions,
)
from jaxdelegate.op_lowering.options.math import (
    MaximumMinimumOptions as MaximumMinimumOptions,
)
from jaxdelegate.op_lowering.options.math import (
    MulOptions as MulOptions,
)
from jaxdelegate.op_lowering.options.math import (
    NegOptions as NegOptions,
)
from jaxdelegate.op_lowering.options.math import (
    NotEqualOptions as NotEqualOptions,
)
from jaxdelegate.op_lowering.options.math import (
    PowOptions as PowOptions,
)
from jaxdelegate.op_lowering.options.math import (
    ReducerOptions as ReducerOptions,
)
from jaxdelegate.op_lowering.options.math import (
    RightShiftOptions as RightShiftOptions,
)
from jaxdelegate.op_lowering.options.math import (
    SegmentSumOptions as SegmentSumOptions,
)
from jaxdelegate.op_lowering.options.math import (
    SignOptions as SignOptions,
)
from jaxdelegate.op_lowering.options.math import (
    SquaredDifferenceOptions as SquaredDifferenceOptions,
)
from jaxdelegate.op_lowering.options.math import (
    SquareOptions as SquareOptions,
)
from jaxdelegate.op_lowering.options.math import (
    SubOptions as SubOptions,
)
from jaxdelegate.op_lowering.options.math import (
    UnsortedSegmentMaxOptions as UnsortedSegmentMaxOptions,
)
from jaxdelegate.op_lowering.options.math import (
    UnsortedSegmentMinOptions as UnsortedSegmentMinOptions,
)
from jaxdelegate.op_lowering.options.math import (
    UnsortedSegmentProdOptions as UnsortedSegmentProdOptions,
)
from jaxdelegate.op_lowering.options.math import (
    UnsortedSegmentSumOptions as UnsortedSegmentSumOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    BatchMatMulOptions as BatchMatMulOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    BidirectionalSequenceLSTMOptions as BidirectionalSequenceLSTMOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    BidirectionalSequenceRNNOptions as BidirectionalSequenceRNNOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    ConcatEmbeddingsOptions as ConcatEmbeddingsOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    Conv2DOptions as Conv2DOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    Conv3DOptions as Conv3DOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    DensifyOptions as DensifyOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    DepthwiseConv2DOptions as DepthwiseConv2DOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    DequantizeOptions as DequantizeOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    EmbeddingLookupSparseOptions as EmbeddingLookupSparseOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    FakeQuantOptions as FakeQuantOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    FullyConnectedOptions as FullyConnectedOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    GeluOptions as GeluOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    HardSwishOptions as HardSwishOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    L2NormOptions as L2NormOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    LeakyReluOptions as LeakyReluOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    LocalResponseNormalizationOptions as LocalResponseNormalizationOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    LogSoftmaxOptions as LogSoftmaxOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    LSHProjectionOptions as LSHProjectionOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    LSTMOptions as LSTMOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    NonMaxSuppressionV4Options as NonMaxSuppressionV4Options,
)
from jaxdelegate.op_lowering.options.neural import (
    NonMaxSuppressionV5Options as NonMaxSuppressionV5Options,
)
from jaxdelegate.op_lowering.options.neural import (
    Pool2DOptions as Pool2DOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    QuantizeOptions as QuantizeOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    ResizeBilinearOptions as ResizeBilinearOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    ResizeNearestNeighborOptions as ResizeNearestNeighborOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    Rfft2dOptions as Rfft2dOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    RNNOptions as RNNOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    SequenceRNNOptions as SequenceRNNOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    SkipGramOptions as SkipGramOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    SoftmaxOptions as SoftmaxOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    SVDFOptions as SVDFOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    TransposeConvOptions as TransposeConvOptions,
)
from jaxdelegate.op_lowering.options.neural import (
    UnidirectionalSequenceLSTMOptions as UnidirectionalSequenceLSTMOptions,
)
from jaxdelegate.op_lowering.options.stablehlo import (
    DilateOptions as DilateOptions,
)
from jaxdelegate.op_lowering.options.stablehlo import (
    ReduceWindowOptions as ReduceWindowOptions,
)
from jaxdelegate.op_lowering.options.stablehlo import (
    StablehloBroadcastInDimOptions as StablehloBroadcastInDimOptions,
)
from jaxdelegate.op_lowering.options.stablehlo import (
    StablehloCaseOptions as StablehloCaseOptions,
)
from jaxdelegate.op_lowering.options.stablehlo import (
    StablehloCompareOptions as StablehloCompareOptions,
)
from jaxdelegate.op_lowering.options.stablehlo import (
    StableHLOCompositeOptions as StableHLOCompositeOptions,
)
from jaxdelegate.op_lowering.options.stablehlo import (
    StablehloConcatenateOptions as StablehloConcatenateOptions,
)
from jaxdelegate.op_lowering.options.stablehlo import (
    StablehloConvolutionOptions as StablehloConvolutionOptions,
)
from jaxdelegate.op_lowering.options.stablehlo import (
    StablehloCustomCallOptions as StablehloCustomCallOptions,
)
from jaxdelegate.op_lowering.options.stablehlo import (
    StablehloDotGeneralOptions as StablehloDotGeneralOptions,
)
from jaxdelegate.op_lowering.options.stablehlo import (
    StablehloDynamicSliceOptions as StablehloDynamicSliceOptions,
)
from jaxdelegate.op_lowering.options.stablehlo import (
    StablehloGatherOptions as StablehloGatherOptions,
)
from jaxdelegate.op_lowering.options.stablehlo import (
    StablehloIotaOptions as StablehloIotaOptions,
)
from jaxdelegate.op_lowering.options.stablehlo import (
    StablehloPadOptions as StablehloPadOptions,
)
from jaxdelegate.op_lowering.options.stablehlo import (
    StablehloReduceOptions as StablehloReduceOptions,
)
from jaxdelegate.op_lowering.options.stablehlo import (
    StablehloReduceWindowOptions as StablehloReduceWindowOptions,
)
from jaxdelegate.op_lowering.options.stablehlo import (
    StablehloRngBitGeneratorOptions as StablehloRngBitGeneratorOptions,
)
from jaxdelegate.op_lowering.options.stablehlo import (
    StablehloScatterOptions as StablehloScatterOptions,
)
from jaxdelegate.op_lowering.options.stablehlo import (
    StablehloShiftLeftOptions as StablehloShiftLeftOptions,
)
from jaxdelegate.op_lowering.options.stablehlo import (
    StablehloSliceOptions as StablehloSliceOptions,
)
from jaxdelegate.op_lowering.options.stablehlo import (
    StablehloSortOptions as StablehloSortOptions,
)
from jaxdelegate.op_lowering.options.stablehlo import (
    StablehloTransposeOptions as StablehloTransposeOptions,
)
from jaxdelegate.op_lowering.options.stablehlo import (
    StablehloWhileOptions as StablehloWhileOptions,
)
