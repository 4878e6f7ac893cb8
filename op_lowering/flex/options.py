"""Options and records of TensorFlow's operators (core/ops/*.cc)."""

import dataclasses
import re
import string
from collections.abc import Callable, Iterator, Sequence
from types import EllipsisType
from typing import Any, NamedTuple

import numpy as np

from jaxdelegate.op_lowering.convolution.options import Conv3DOptions
from jaxdelegate.op_lowering.elementwise.options import (
    AddOptions,
    DivOptions,
    MulOptions,
    SubOptions,
)
from jaxdelegate.op_lowering.layout.options import ConcatenationOptions
from jaxdelegate.op_lowering.matmul.options import BatchMatMulOptions
from jaxdelegate.op_lowering.normalization.options import SoftmaxOptions
from jaxdelegate.op_lowering.pooling.options import Pool3DOptions
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import Padding
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.records.operator import REDUCED, OperatorRecord, Product, table
from jaxdelegate.op_lowering.records.record import NoOptions, Options
from jaxdelegate.op_lowering.slicing.options import SplitVOptions, StridedSliceOptions

_FLOAT32 = np.dtype(np.float32)
_TERM = re.compile(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*")
_LETTERS = string.ascii_letters
Entry = slice | int | None | EllipsisType  # of an index
Index = tuple[Entry, ...]


@dataclasses.dataclass(frozen=True)
class TensorListOptions(FlexOptions):
    """The operators of tensor lists: what a list holds, and how many (-1: any number)."""

    element_dtype: np.dtype = _FLOAT32
    num_elements: int = -1
    resize_if_index_out_of_bounds: bool = False


@dataclasses.dataclass(frozen=True)
class EnsureShapeOptions(FlexOptions):
    """EnsureShape: a TensorShapeProto."""

    shape: bytes = b""


@dataclasses.dataclass(frozen=True)
class FlexWindowOptions(FlexOptions):
    """Operators of windows over images; each list names every dimension."""

    ksize: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = (1, 1, 1, 1, 1)
    padding: str = ""
    data_format: str = "NDHWC"


@dataclasses.dataclass(frozen=True)
class FlexMatrixOptions(FlexOptions):
    """BatchMatMulV2: adj_x and adj_y. MatMul: transpose_. Solvers: adjoint, which triangle."""

    adj_x: bool = False
    adj_y: bool = False
    transpose_a: bool = False
    transpose_b: bool = False
    adjoint: bool = False
    lower: bool = True


@dataclasses.dataclass(frozen=True)
class FlexReductionOptions(FlexOptions):
    """Mean, Prod, Sum."""

    keep_dims: bool = False


@dataclasses.dataclass(frozen=True)
class FlexScanOptions(FlexOptions):
    """Cumprod, CumulativeLogsumexp."""

    exclusive: bool = False
    reverse: bool = False


@dataclasses.dataclass(frozen=True)
class FlexImageOptions(FlexOptions):
    """ResizeBicubic, gradients of resizing: which pixels of the input and the result coincide."""

    align_corners: bool = False
    half_pixel_centers: bool = False


@dataclasses.dataclass(frozen=True)
class FlexPaddingOptions(FlexOptions):
    """MirrorPadGrad."""

    mode: str = ""


@dataclasses.dataclass(frozen=True)
class FlexGradientOptions(FlexOptions):
    """BiasAddGrad: where the channels are."""

    data_format: str = "NHWC"


@dataclasses.dataclass(frozen=True)
class FlexSlopeOptions(FlexOptions):
    """LeakyReluGrad: the slope below 0."""

    alpha: float = 0.2


@dataclasses.dataclass(frozen=True)
class FlexWindowGradientOptions(FlexOptions):
    """Gradients of convolutions and pools; each list names every dimension, paddings twice."""

    ksize: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = (1, 1, 1, 1)
    padding: str = ""
    explicit_paddings: tuple[int, ...] = ()
    data_format: str = "NHWC"


@dataclasses.dataclass(frozen=True)
class FlexVolumeGradientOptions(FlexWindowGradientOptions):
    """Gradients of convolutions and pools over volumes."""

    dilations: tuple[int, ...] = (1, 1, 1, 1, 1)
    data_format: str = "NDHWC"


@dataclasses.dataclass(frozen=True)
class FlexSliceOptions(FlexOptions):
    """StridedSlice and its gradient: a bit for each entry of the slice's begin, end and strides."""

    begin_mask: int = 0
    end_mask: int = 0
    ellipsis_mask: int = 0
    new_axis_mask: int = 0
    shrink_axis_mask: int = 0

    def index(self, begin: Sequence[int], end: Sequence[int], strides: Sequence[int]) -> Index:
        """The slice as an index of numpy."""
        entries = enumerate(zip(begin, end, strides, strict=True))
        return tuple(self._entry(1 << i, *numbers) for i, numbers in entries)

    def _entry(self, bit: int, begin: int, end: int, stride: int) -> Entry:
        if self.ellipsis_mask & bit:
            return ...
        if self.new_axis_mask & bit:
            return None
        if self.shrink_axis_mask & bit:
            return begin
        first, last = self.begin_mask & bit, self.end_mask & bit
        return slice(None if first else begin, None if last else end, stride)


@dataclasses.dataclass(frozen=True)
class FlexEinsumOptions(FlexOptions):
    """Einsum."""

    equation: str = ""

    def labels(self, ranks: Sequence[int]) -> tuple[list[str], str]:
        """A letter for each dimension of each input and of the result; `...` has letters, too.

        A ValueError says what is wrong.
        """
        left, arrow, right = self.equation.partition("->")
        terms = left.split(",")
        if not arrow or len(terms) != len(ranks):
            raise ValueError(f"the equation {self.equation!r} does not have {len(ranks)} inputs")
        if any(not _TERM.fullmatch(term) for term in (*terms, right)):
            raise ValueError(f"the equation {self.equation!r} has more than letters and one '...'")
        counts = [rank - len(t.replace("...", "")) for t, rank in zip(terms, ranks, strict=True)]
        if any(n < 0 or (n and "..." not in t) for t, n in zip(terms, counts, strict=True)):
            raise ValueError(f"the equation {self.equation!r} does not fit ranks {list(ranks)}")
        free = [letter for letter in _LETTERS if letter not in self.equation]
        most = max(counts)
        if most > len(free):
            raise ValueError(f"the equation {self.equation!r} has more than {len(_LETTERS)} labels")
        spread = ["".join(free[most - n : most]) for n in (*counts, most)]
        named = [t.replace("...", s) for t, s in zip((*terms, right), spread, strict=True)]
        if len(set(named[-1])) < len(named[-1]) or set(named[-1]) - set("".join(named[:-1])):
            raise ValueError(
                f"the result of the equation {self.equation!r} repeats or adds a label"
            )
        return named[:-1], named[-1]


@dataclasses.dataclass(frozen=True)
class FlexNormalizationOptions(FlexOptions):
    """FusedBatchNorm and its gradient."""

    epsilon: float = 1e-4
    exponential_avg_factor: float = 1.0
    data_format: str = "NHWC"
    is_training: bool = True


@dataclasses.dataclass(frozen=True)
class FlexCropOptions(FlexOptions):
    """CropAndResize."""

    method: str = "bilinear"
    extrapolation_value: float = 0.0


@dataclasses.dataclass(frozen=True)
class FlexProjectionOptions(FlexOptions):
    """ImageProjectiveTransform."""

    interpolation: str = ""
    fill_mode: str = "CONSTANT"


@dataclasses.dataclass(frozen=True)
class FlexSuppressionOptions(FlexOptions):
    """CombinedNonMaxSuppression."""

    pad_per_class: bool = False
    clip_boxes: bool = True


@dataclasses.dataclass(frozen=True)
class FlexPatchesOptions(FlexOptions):
    """ExtractImagePatches; each list names every dimension."""

    ksizes: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    rates: tuple[int, ...] = (1, 1, 1, 1)
    padding: str = ""


@dataclasses.dataclass(frozen=True)
class FlexDecompositionOptions(FlexOptions):
    """Qr, Svd, SelfAdjointEigV2: which factors, and whether they are square."""

    full_matrices: bool = False
    compute_uv: bool = True
    compute_v: bool = True


@dataclasses.dataclass(frozen=True)
class FlexDiagonalOptions(FlexOptions):
    """MatrixDiagV3 and its kind: the sides at which diagonals above and below the main one end."""

    align: str = "RIGHT_LEFT"


@dataclasses.dataclass(frozen=True)
class FlexLeftDiagonalOptions(FlexDiagonalOptions):
    """MatrixDiagV2 and its kind, which have no attribute for it."""

    align: str = "LEFT_LEFT"


@dataclasses.dataclass(frozen=True)
class FlexSplitOptions(FlexOptions):
    """SplitV: the number of parts."""

    num_split: int = 0


@dataclasses.dataclass(frozen=True)
class FlexCountOptions(FlexOptions):
    """DenseBincount: whether a value counts once."""

    binary_output: bool = False


@dataclasses.dataclass(frozen=True)
class FlexTextOptions(FlexOptions):
    """Operators on strings; each reads some of these."""

    encoding: str = ""
    keep_dims: bool = False
    maxsplit: int = -1
    num_buckets: int = 1
    pattern: str = ""
    replace_global: bool = True
    rewrite: str = ""
    separator: str = ""
    skip_empty: bool = True
    unit: str = "BYTE"


@dataclasses.dataclass(frozen=True)
class FlexUnicodeOptions(FlexOptions):
    """UnicodeDecode, UnicodeEncode, UnicodeTranscode."""

    input_encoding: str = "UTF-8"
    output_encoding: str = "UTF-8"
    errors: str = "replace"
    replacement_char: int = 65533
    replace_control_characters: bool = False


@dataclasses.dataclass(frozen=True)
class FlexRawOptions(FlexOptions):
    """DecodeRaw: the order of bytes. EncodeBase64: whether to pad."""

    little_endian: bool = True
    pad: bool = False


@dataclasses.dataclass(frozen=True)
class FlexNgramOptions(FlexOptions):
    """StringNGrams."""

    separator: str = ""
    ngram_widths: tuple[int, ...] = ()
    left_pad: str = ""
    right_pad: str = ""
    pad_width: int = 0
    preserve_short_sequences: bool = False


@dataclasses.dataclass(frozen=True)
class FlexRaggedOptions(FlexOptions):
    """RaggedTensorToTensor: what each row partition holds."""

    row_partition_types: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class FlexPartitionOptions(FlexOptions):
    """DynamicPartition."""

    num_partitions: int = 0


@dataclasses.dataclass(frozen=True)
class FlexFormatOptions(FlexOptions):
    """StringFormat: -1 prints all of a tensor."""

    template: str = "%s"
    placeholder: str = "%s"
    summarize: int = 3


@dataclasses.dataclass(frozen=True)
class FlexNumberTextOptions(FlexOptions):
    """AsString: printf's flags."""

    precision: int = -1
    scientific: bool = False
    shortest: bool = False
    width: int = -1
    fill: str = ""


@dataclasses.dataclass(frozen=True)
class FlexTableOptions(FlexOptions):
    """HashTableV2. A table without a shared name is that of its own NodeDef."""

    container: str = ""
    shared_name: str = ""


@dataclasses.dataclass(frozen=True)
class FlexCheckOptions(FlexOptions):
    """Assert, CheckNumerics, Print, PrintV2: what to print, and how much of each tensor."""

    message: str = ""
    summarize: int = 3
    end: str = "\n"


class Builtin(NamedTuple):
    """The builtin operator, or TFLite's custom one, that computes the same.

    Attributes:
        name: of the operator.
        options: its options, or the reason why the two differ.
    """

    name: str
    options: Callable[[Any], Options | str]


def _matrices(o: FlexMatrixOptions) -> Options:
    """TensorFlow conjugates a transposed matrix, TFLite does not: complex ones are refused."""
    return BatchMatMulOptions(o.adj_x, o.adj_y)


def _pool(o: FlexWindowOptions) -> Options:
    return Pool3DOptions(
        ksize=o.ksize, strides=o.strides, padding=o.padding, data_format=o.data_format
    )


def _convolution(o: FlexWindowOptions) -> Options | str:
    if o.padding not in Padding.__members__ or o.data_format != "NDHWC":
        return f"padding {o.padding!r} of {o.data_format!r} is not SAME or VALID of 'NDHWC'"
    for name, sizes in (("strides", o.strides), ("dilations", o.dilations)):
        if len(sizes) != 5 or sizes[0] != 1 or sizes[-1] != 1:
            return f"{name} {list(sizes)} must have 5 entries, the first and the last 1"
    (_, depth, height, width, _), (_, *rates, _) = o.strides, o.dilations
    return Conv3DOptions(
        Padding[o.padding],
        stride_d=depth,
        stride_w=width,
        stride_h=height,
        dilation_d_factor=rates[0],
        dilation_w_factor=rates[2],
        dilation_h_factor=rates[1],
    )


def _slice(o: FlexSliceOptions) -> Options:
    return StridedSliceOptions(
        o.begin_mask, o.end_mask, o.ellipsis_mask, o.new_axis_mask, o.shrink_axis_mask
    )


BUILTIN: dict[str, Builtin] = {
    f"{FLEX}Abs": Builtin("ABS", lambda _: NoOptions()),
    f"{FLEX}AddV2": Builtin("ADD", lambda _: AddOptions(pot_scale_int16=False)),
    f"{FLEX}AvgPool3D": Builtin("AvgPool3D", _pool),
    f"{FLEX}BatchMatMulV2": Builtin("BATCH_MATMUL", _matrices),
    f"{FLEX}BatchMatMulV3": Builtin("BATCH_MATMUL", _matrices),
    f"{FLEX}Conv3D": Builtin("CONV_3D", _convolution),
    f"{FLEX}Conv3DBackpropInputV2": Builtin("CONV_3D_TRANSPOSE", _convolution),
    f"{FLEX}MaxPool3D": Builtin("MaxPool3D", _pool),
    f"{FLEX}Maximum": Builtin("MAXIMUM", lambda _: NoOptions()),
    f"{FLEX}Minimum": Builtin("MINIMUM", lambda _: NoOptions()),
    f"{FLEX}Mul": Builtin("MUL", lambda _: MulOptions()),
    f"{FLEX}Pad": Builtin("PAD", lambda _: NoOptions()),
    f"{FLEX}ParallelConcat": Builtin("CONCATENATION", lambda _: ConcatenationOptions()),
    f"{FLEX}RealDiv": Builtin("DIV", lambda _: DivOptions()),
    f"{FLEX}ReverseV2": Builtin("REVERSE_V2", lambda _: NoOptions()),
    f"{FLEX}SelectV2": Builtin("SELECT_V2", lambda _: NoOptions()),
    f"{FLEX}Softmax": Builtin("SOFTMAX", lambda _: SoftmaxOptions(beta=1.0)),
    f"{FLEX}SplitV": Builtin("SPLIT_V", lambda o: SplitVOptions(o.num_split)),
    f"{FLEX}StridedSlice": Builtin("STRIDED_SLICE", _slice),
    f"{FLEX}Sub": Builtin("SUB", lambda _: SubOptions(pot_scale_int16=False)),
    f"{FLEX}TopKV2": Builtin("TOPK_V2", lambda _: NoOptions()),
    f"{FLEX}Transpose": Builtin("TRANSPOSE", lambda _: NoOptions()),
    f"{FLEX}ZerosLike": Builtin("ZEROS_LIKE", lambda _: NoOptions()),
}

_UNARY = (
    *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Digamma", "Erf", "Erfc"),
    *("Erfinv", "Expm1", "Lgamma", "Log1p", "Reciprocal", "Selu", "Sinh", "Softplus", "Softsign"),
    "Tan",
    *("Conj", "Cos", "Exp", "Log", "Rsqrt", "Sigmoid", "Sin", "Sqrt", "Square", "Tanh"),  # complex
)
_SPECIAL = (
    *("BesselI0", "BesselI0e", "BesselI1", "BesselI1e", "Betainc", "Igamma", "Igammac", "Ndtri"),
    *("Polygamma", "Zeta"),
)
HOSTED_SPECIAL = (
    *("BesselJ0", "BesselJ1", "BesselK0", "BesselK0e", "BesselK1", "BesselK1e", "BesselY0"),
    *("BesselY1", "Dawsn", "Expint", "Spence"),
)
_ARITHMETIC = (
    *("Abs", "AddN", "AddV2", "Angle", "BitwiseAnd", "BitwiseOr", "Invert", "LeftShift"),
    *("TruncateMod", "DivNoNan", "EluGrad", "Maximum", "Minimum", "Mul"),
    *("Pow", "RealDiv", "Relu6Grad", "ReluGrad", "SoftsignGrad", "Sub"),
)
_COLORS = ("AdjustContrastv2", "AdjustHue", "AdjustSaturation", "HSVToRGB", "RGBToHSV")
_SEGMENTS = (
    *("SegmentMax", "SegmentMean", "SegmentMin", "SegmentProd"),
    *(
        f"SparseSegment{kind}{suffix}"
        for kind in ("Mean", "SqrtN", "Sum")
        for suffix in ("", "WithNumSegments")
    ),
)
_DIAGONALS = ("MatrixDiag", "MatrixDiagPart", "MatrixSetDiag")
_DECOMPOSITIONS = ("Qr", "SelfAdjointEigV2", "Svd")
_HOSTED_TEXT = (
    *("ReduceJoin", "RegexFullMatch", "RegexReplace", "StaticRegexFullMatch"),
    *("StaticRegexReplace", "StringJoin", "StringLength", "StringLower", "StringSplit"),
    *("StringSplitV2", "StringStrip", "StringToHashBucketFast", "StringToNumber", "StringUpper"),
    "Substr",
)
_RANDOM = (
    *("StatelessRandomNormal", "StatelessRandomNormalV2", "StatelessRandomUniform"),
    *("StatelessRandomUniformIntV2", "StatelessRandomUniformV2"),
)
_LISTS = (
    *("ConcatV2", "FromTensor", "Gather", "GetItem", "Length", "PopBack", "PushBack", "Reserve"),
    *("Resize", "ScatterIntoExistingList", "ScatterV2", "SetItem", "Stack"),
)
_TABLES = ("InitializeTableV2", "LookupTableFindV2", "LookupTableImportV2", "LookupTableSizeV2")
_TRANSFORMS = tuple(
    f"{real}FFT{rank}" for real in ("", "I", "R", "IR") for rank in ("", "2D", "3D")
)

# By the class of the options: operators whose cost is a kind's.
_COSTS: dict[costs.CostRule, dict[type[FlexOptions], Sequence[str]]] = {
    costs.movement: {
        FlexOptions: (
            *("Complex", "ConcatV2", "Identity", "InvertPermutation", "Pad", "ParallelConcat"),
            *("ReverseV2", "Roll", "SelectV2", "Transpose", "ZerosLike"),
        ),
        EnsureShapeOptions: ("EnsureShape",),
        FlexDiagonalOptions: tuple(f"{name}V3" for name in _DIAGONALS),
        FlexLeftDiagonalOptions: tuple(f"{name}V2" for name in _DIAGONALS),
        FlexPaddingOptions: ("MirrorPadGrad",),
        FlexPatchesOptions: ("ExtractImagePatches",),
        FlexSliceOptions: ("StridedSlice", "StridedSliceGrad"),
        FlexSplitOptions: ("SplitV",),
        TensorListOptions: ("EmptyTensorList", *(f"TensorList{name}" for name in _LISTS)),
    },
    costs.per_input: {
        FlexGradientOptions: ("BiasAddGrad",),
        FlexOptions: ("Bincount", *_COLORS, *_SEGMENTS),
        FlexCountOptions: ("DenseBincount",),
        FlexReductionOptions: ("Mean", "Prod", "Sum"),
        FlexScanOptions: ("Cumprod", "CumulativeLogsumexp"),
    },
    costs.host_work: {
        FlexOptions: (
            *("NoOp", "ParseExample", "ParseExampleV2", "Restore", "Save", "UniqueV2"),
            "UniqueWithCounts",
            *_TABLES,
        ),
        FlexTextOptions: _HOSTED_TEXT,
        FlexNumberTextOptions: ("AsString",),
        FlexUnicodeOptions: (
            *("UnicodeDecode", "UnicodeDecodeWithOffsets", "UnicodeEncode", "UnicodeTranscode"),
        ),
        FlexRawOptions: ("DecodeBase64", "DecodeRaw", "EncodeBase64"),
        FlexNgramOptions: ("StringNGrams",),
        FlexRaggedOptions: ("RaggedTensorToTensor",),
        FlexPartitionOptions: ("DynamicPartition",),
        FlexFormatOptions: ("StringFormat",),
        FlexTableOptions: ("HashTableV2",),
        FlexCheckOptions: ("Assert", "CheckNumerics", "Print", "PrintV2"),
    },
    costs.linear: {
        FlexMatrixOptions: ("MatrixInverse", "MatrixSolve", "MatrixTriangularSolve"),
        FlexOptions: ("Cholesky", "MatrixDeterminant"),
        FlexDecompositionOptions: _DECOMPOSITIONS,
    },
    costs.tensorflow_pool: {FlexWindowOptions: ("AvgPool3D", "MaxPool3D")},
    costs.tensorflow_pool_gradient: {
        FlexWindowGradientOptions: ("AvgPoolGrad", "MaxPoolGrad"),
        FlexVolumeGradientOptions: ("AvgPool3DGrad", "MaxPool3DGrad"),
    },
    costs.bilinear: {
        FlexCropOptions: ("CropAndResize",),
        FlexImageOptions: (
            *("ResizeBicubic", "ResizeBicubicGrad", "ResizeBilinearGrad"),
            "ResizeNearestNeighborGrad",
        ),
        FlexProjectionOptions: ("ImageProjectiveTransformV2", "ImageProjectiveTransformV3"),
    },
    costs.top_k: {FlexOptions: ("TopKV2",)},
    costs.suppression: {FlexSuppressionOptions: ("CombinedNonMaxSuppression",)},
    costs.fourier: {FlexOptions: _TRANSFORMS},
    costs.random: {FlexOptions: (*_RANDOM, "StatelessRandomGetKeyCounter")},
    costs.normalization: {
        FlexNormalizationOptions: ("FusedBatchNormV3", "FusedBatchNormGradV3"),
    },
    costs.softmax: {
        FlexOptions: (
            "Softmax",
            "SoftmaxCrossEntropyWithLogits",
            "SparseSoftmaxCrossEntropyWithLogits",
        ),
    },
}
# The same for sums of products.
_PRODUCTS: dict[costs.CostRule, dict[type[FlexOptions], Sequence[str]]] = {
    costs.batch_matmul: {FlexMatrixOptions: ("BatchMatMulV2", "BatchMatMulV3")},
    costs.matmul: {FlexMatrixOptions: ("MatMul",)},
    costs.convolution_3d: {FlexWindowOptions: ("Conv3D",)},
    costs.transpose_convolution_3d: {FlexWindowOptions: ("Conv3DBackpropInputV2",)},
    costs.input_gradient: {FlexWindowGradientOptions: ("Conv2DBackpropInput",)},
    costs.filter_gradient: {
        FlexWindowGradientOptions: ("Conv2DBackpropFilter",),
        FlexVolumeGradientOptions: ("Conv3DBackpropFilterV2",),
    },
    costs.depthwise_gradient: {
        FlexWindowGradientOptions: (
            *("DepthwiseConv2dNativeBackpropFilter", "DepthwiseConv2dNativeBackpropInput"),
        ),
    },
    costs.einsum: {FlexEinsumOptions: ("Einsum",)},
}


def _records(
    rows: dict[costs.CostRule, dict[type[FlexOptions], Sequence[str]]], **traits: Any
) -> Iterator[OperatorRecord]:
    for cost, classes in rows.items():
        for options, names in classes.items():
            for name in names:
                yield OperatorRecord(f"{FLEX}{name}", options, cost=cost, **traits)


RECORDS = table(
    *_records({costs.transcendental: {FlexOptions: (*_UNARY, *_SPECIAL)}}, is_elementwise=True),
    *_records({costs.host_work: {FlexOptions: HOSTED_SPECIAL}}),
    *_records({costs.elementwise: {FlexOptions: _ARITHMETIC}}, is_elementwise=True),
    *_records({costs.elementwise: {FlexSlopeOptions: ("LeakyReluGrad",)}}, is_elementwise=True),
    *_records(_COSTS),
    *_records(_PRODUCTS, product=Product(), precision=REDUCED),
)
