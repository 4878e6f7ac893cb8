"""TensorFlow's operators: attributes, costs, and the builtin operators that compute the same.

Source of the attributes: tensorflow/core/ops/*.cc.
"""

import functools
import re
import string
from collections.abc import Callable, Iterator, Sequence
from types import EllipsisType
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.convolution import options as convolution
from jaxdelegate.op_lowering.families import option_modules
from jaxdelegate.op_lowering.matmul import options as matmul
from jaxdelegate.op_lowering.normalization import options as normalization
from jaxdelegate.op_lowering.pooling import options as pooling
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import Padding
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.records.operator import OperatorRecord, sums_products, table
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.slicing import options as slicing

_TERM = re.compile(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*")
_LETTERS = string.ascii_letters
Entry = slice | int | None | EllipsisType  # one entry of an index
Index = tuple[Entry, ...]


# ---- operators that a builtin operator, or TFLite's custom one, computes


def _pool(o: FlexOptions) -> Options:
    return pooling.Pool3DOptions(
        ksize=o.ksize, strides=o.strides, padding=o.padding, data_format=o.data_format
    )


def _convolution(o: FlexOptions) -> Options | str:
    if o.padding not in Padding.__members__ or o.data_format != "NDHWC":
        return f"padding {o.padding!r} of {o.data_format!r} is not SAME or VALID of 'NDHWC'"
    for name, sizes in (("strides", o.strides), ("dilations", o.dilations)):
        if len(sizes) != 5 or sizes[0] != 1 or sizes[-1] != 1:
            return f"{name} {list(sizes)} must have 5 entries, the first and the last 1"
    (_, depth, height, width, _), (_, *rates, _) = o.strides, o.dilations
    return convolution.Conv3DOptions(
        Padding[o.padding],
        stride_d=depth,
        stride_w=width,
        stride_h=height,
        dilation_d_factor=rates[0],
        dilation_w_factor=rates[2],
        dilation_h_factor=rates[1],
    )


def _slice(o: FlexOptions) -> Options:
    return slicing.StridedSliceOptions(
        o.begin_mask, o.end_mask, o.ellipsis_mask, o.new_axis_mask, o.shrink_axis_mask
    )


def _matrices(o: FlexOptions) -> Options:
    """TensorFlow conjugates a transposed matrix, TFLite does not: complex ones are refused."""
    return matmul.BatchMatMulOptions(o.adj_x, o.adj_y)


_Translation = Callable[[FlexOptions], Options | str]
# The families of the builtin operators.
FAMILIES = (
    *("comparison", "convolution", "elementwise", "layout", "matmul", "normalization"),
    *("padding", "pooling", "slicing", "sorting"),
)
_OF_BUILTIN: dict[str, type[Options]] = {
    name: record.options
    for module in option_modules(FAMILIES)
    for name, record in module.RECORDS.items()
}
# The builtin operator, and its options, unless they are the defaults.
BUILTIN: dict[str, tuple[str, _Translation | None]] = {
    "Abs": ("ABS", None),
    "AddV2": ("ADD", None),
    "AvgPool3D": ("AvgPool3D", _pool),
    "BatchMatMulV2": ("BATCH_MATMUL", _matrices),
    "BatchMatMulV3": ("BATCH_MATMUL", _matrices),
    "Conv3D": ("CONV_3D", _convolution),
    "Conv3DBackpropInputV2": ("CONV_3D_TRANSPOSE", _convolution),
    "MaxPool3D": ("MaxPool3D", _pool),
    "Maximum": ("MAXIMUM", None),
    "Minimum": ("MINIMUM", None),
    "Mul": ("MUL", None),
    "Pad": ("PAD", None),
    "ParallelConcat": ("CONCATENATION", None),
    "RealDiv": ("DIV", None),
    "ReverseV2": ("REVERSE_V2", None),
    "SelectV2": ("SELECT_V2", None),
    "Softmax": ("SOFTMAX", lambda _: normalization.SoftmaxOptions(beta=1.0)),
    "SplitV": ("SPLIT_V", lambda o: slicing.SplitVOptions(o.num_split)),
    "StridedSlice": ("STRIDED_SLICE", _slice),
    "Sub": ("SUB", None),
    "TopKV2": ("TOPK_V2", None),
    "Transpose": ("TRANSPOSE", None),
    "ZerosLike": ("ZEROS_LIKE", None),
}


def translated(name: str, o: FlexOptions) -> Options | str:
    """The options of the builtin operator, or the reason why it does not compute the same."""
    builtin, options = BUILTIN[name]
    return _OF_BUILTIN[builtin]() if options is None else options(o)


# ---- attributes


class FlexSliceOptions(FlexOptions, frozen=True):
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


class FlexEinsumOptions(FlexOptions, frozen=True):
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
        filled = [t.replace("...", s) for t, s in zip((*terms, right), spread, strict=True)]
        if len(set(filled[-1])) < len(filled[-1]) or set(filled[-1]) - set("".join(filled[:-1])):
            raise ValueError(
                f"the result of the equation {self.equation!r} repeats or adds a label"
            )
        return filled[:-1], filled[-1]


class FlexRaggedOptions(FlexOptions, frozen=True):
    """RaggedTensorToTensor: what each row partition holds."""

    row_partition_types: tuple[str, ...] = ()


# ---- functions that libraries have


# numpy and jax.numpy, under TensorFlow's names in small letters.
OF_REALS = (
    *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh"),
    *("Cosh", "Expm1", "Log1p", "Sinh", "Tan"),
)
OF_COMPLEX = ("Cos", "Exp", "Log", "Sin", "Sqrt", "Square", "Tanh")


def _bessel(kinds: str) -> dict[str, str]:
    return {f"Bessel{kind}": kind.lower() for kind in kinds.split()}


# scipy.special and jax.scipy.special, by TensorFlow's names.
SCIPY = {
    **_bessel("I0 I0e I1 I1e"),
    "Igamma": "gammainc",
    "Igammac": "gammaincc",
    "Ndtri": "ndtri",
}
# scipy.special: JAX has the function's derivative by one input only, or has no such function.
PARTLY_DERIVED = {"Betainc": "betainc", "Polygamma": "polygamma", "Zeta": "zeta"}
HOSTED = {
    **_bessel("J0 J1 K0 K0e K1 K1e Y0 Y1"),
    "Dawsn": "dawsn",
    "Expint": "expi",
    "Spence": "spence",
}


# ---- records


_WINDOW: dict[str, Any] = {
    "ksize": (),
    "strides": (),
    "dilations": (1, 1, 1, 1),
    "padding": "",
    "explicit_paddings": (),
    "data_format": "NHWC",
}
_VOLUME = _WINDOW | {"dilations": (1, 1, 1, 1, 1), "data_format": "NDHWC"}
_PRODUCTS = (
    *(costs.batch_matmul, costs.convolution_3d, costs.depthwise_gradient, costs.einsum),
    *(costs.filter_gradient, costs.input_gradient, costs.matmul, costs.transpose_convolution_3d),
)


def _records(
    cost: costs.CostRule,
    names: str,
    *,
    options: type[FlexOptions] = FlexOptions,
    **attributes: Any,
) -> Iterator[OperatorRecord]:
    """The records of operators with the same attributes, whose defaults these are."""
    if attributes:
        options = FlexOptions.attributes(f"{FLEX}{names.partition(' ')[0]}Options", **attributes)
    record = sums_products if cost in _PRODUCTS else OperatorRecord
    is_elementwise = cost in (costs.elementwise, costs.transcendental)
    for name in names.split():
        yield record(f"{FLEX}{name}", options, cost=cost, is_elementwise=is_elementwise)


_on_host = functools.partial(_records, costs.host_work)
RECORDS = table(
    # Single values.
    *_records(costs.transcendental, " ".join((*OF_REALS, *OF_COMPLEX))),
    *_records(costs.transcendental, " ".join((*SCIPY, *PARTLY_DERIVED))),
    *_records(
        costs.transcendental,
        "Conj Digamma Erf Erfc Erfinv Lgamma Reciprocal Rsqrt Selu Sigmoid Softplus Softsign",
    ),
    *_records(
        costs.elementwise,
        "Abs AddN AddV2 Angle BitwiseAnd BitwiseOr DivNoNan EluGrad Invert LeftShift Maximum "
        "Minimum Mul Pow RealDiv Relu6Grad ReluGrad SoftsignGrad Sub TruncateMod",
    ),
    *_records(costs.elementwise, "LeakyReluGrad", alpha=0.2),
    # Moved values.
    *_records(
        costs.movement,
        "Complex ConcatV2 Identity InvertPermutation Pad ParallelConcat ReverseV2 Roll SelectV2 "
        "Transpose ZerosLike",
    ),
    *_records(costs.movement, "EnsureShape", shape=b""),
    *_records(
        costs.movement, "ExtractImagePatches", ksizes=(), strides=(), rates=(1, 1, 1, 1), padding=""
    ),
    *_records(costs.movement, "MatrixDiagPartV3 MatrixDiagV3 MatrixSetDiagV3", align="RIGHT_LEFT"),
    # Version 2 has no attribute for it.
    *_records(costs.movement, "MatrixDiagPartV2 MatrixDiagV2 MatrixSetDiagV2", align="LEFT_LEFT"),
    *_records(costs.movement, "MirrorPadGrad", mode=""),
    *_records(costs.movement, "SplitV", num_split=0),
    *_records(costs.movement, "StridedSlice StridedSliceGrad", options=FlexSliceOptions),
    *_records(
        costs.movement,
        "EmptyTensorList TensorListConcatV2 TensorListFromTensor TensorListGather "
        "TensorListGetItem TensorListLength TensorListPopBack TensorListPushBack "
        "TensorListReserve TensorListResize TensorListScatterIntoExistingList "
        "TensorListScatterV2 TensorListSetItem TensorListStack",
        element_dtype=np.dtype(np.float32),
        num_elements=-1,  # any number
        resize_if_index_out_of_bounds=False,
    ),
    # Sums, counts, scans.
    *_records(costs.per_input, "BiasAddGrad", data_format="NHWC"),
    *_records(costs.per_input, "Cumprod CumulativeLogsumexp", exclusive=False, reverse=False),
    *_records(costs.per_input, "DenseBincount", binary_output=False),
    *_records(costs.per_input, "Mean Prod Sum", keep_dims=False),
    *_records(
        costs.per_input,
        "AdjustContrastv2 AdjustHue AdjustSaturation Bincount HSVToRGB RGBToHSV SegmentMax "
        "SegmentMean SegmentMin SegmentProd SparseSegmentMean SparseSegmentMeanWithNumSegments "
        "SparseSegmentSqrtN SparseSegmentSqrtNWithNumSegments SparseSegmentSum "
        "SparseSegmentSumWithNumSegments",
    ),
    # Products of matrices and filters.
    *_records(costs.batch_matmul, "BatchMatMulV2 BatchMatMulV3", adj_x=False, adj_y=False),
    *_records(costs.matmul, "MatMul", transpose_a=False, transpose_b=False),
    *_records(costs.einsum, "Einsum", options=FlexEinsumOptions),
    *_records(costs.convolution_3d, "Conv3D", **_VOLUME),
    *_records(costs.transpose_convolution_3d, "Conv3DBackpropInputV2", **_VOLUME),
    *_records(costs.input_gradient, "Conv2DBackpropInput", **_WINDOW),
    *_records(costs.filter_gradient, "Conv2DBackpropFilter", **_WINDOW),
    *_records(costs.filter_gradient, "Conv3DBackpropFilterV2", **_VOLUME),
    *_records(
        costs.depthwise_gradient,
        "DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput",
        **_WINDOW,
    ),
    *_records(costs.linear, "Cholesky MatrixDeterminant"),
    *_records(costs.linear, "MatrixInverse MatrixSolve", adjoint=False),
    *_records(costs.linear, "MatrixTriangularSolve", adjoint=False, lower=True),
    *_records(costs.linear, "Qr", full_matrices=False),
    *_records(costs.linear, "SelfAdjointEigV2", compute_v=True),
    *_records(costs.linear, "Svd", full_matrices=False, compute_uv=True),
    # Pools, images, losses.
    *_records(costs.tensorflow_pool, "AvgPool3D MaxPool3D", **_VOLUME),
    *_records(costs.tensorflow_pool_gradient, "AvgPoolGrad MaxPoolGrad", **_WINDOW),
    *_records(costs.tensorflow_pool_gradient, "AvgPool3DGrad MaxPool3DGrad", **_VOLUME),
    *_records(costs.bilinear, "CropAndResize", method="bilinear", extrapolation_value=0.0),
    *_records(
        costs.bilinear,
        "ResizeBicubic ResizeBicubicGrad ResizeBilinearGrad ResizeNearestNeighborGrad",
        align_corners=False,
        half_pixel_centers=False,
    ),
    *_records(
        costs.bilinear,
        "ImageProjectiveTransformV2 ImageProjectiveTransformV3",
        interpolation="",
        fill_mode="CONSTANT",
    ),
    *_records(costs.suppression, "CombinedNonMaxSuppression", pad_per_class=False, clip_boxes=True),
    *_records(
        costs.normalization,
        "FusedBatchNormGradV3 FusedBatchNormV3",
        epsilon=1e-4,
        exponential_avg_factor=1.0,
        data_format="NHWC",
        is_training=True,
    ),
    *_records(
        costs.softmax, "Softmax SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits"
    ),
    *_records(costs.top_k, "TopKV2"),
    *_records(
        costs.fourier, "FFT FFT2D FFT3D IFFT IFFT2D IFFT3D IRFFT IRFFT2D IRFFT3D RFFT RFFT2D RFFT3D"
    ),
    *_records(
        costs.random,
        "StatelessRandomGetKeyCounter StatelessRandomNormal StatelessRandomNormalV2 "
        "StatelessRandomUniform StatelessRandomUniformIntV2 StatelessRandomUniformV2",
    ),
    # What the host does.
    *_on_host(" ".join(HOSTED)),
    *_on_host(
        "DecodeBase64 InitializeTableV2 LookupTableFindV2 LookupTableImportV2 LookupTableSizeV2 "
        "NoOp ParseExample ParseExampleV2 RegexFullMatch Restore Save StringStrip StringToNumber "
        "UniqueV2 UniqueWithCounts"
    ),
    *_on_host("AsString", precision=-1, scientific=False, shortest=False, width=-1, fill=""),
    *_on_host("Assert CheckNumerics Print PrintV2", message="", summarize=3, end="\n"),
    *_on_host("DecodeRaw", little_endian=True),
    *_on_host("DynamicPartition", num_partitions=0),
    *_on_host("EncodeBase64", pad=False),
    # A table without a shared name is that of its own NodeDef.
    *_on_host("HashTableV2", container="", shared_name=""),
    *_on_host("RaggedTensorToTensor", options=FlexRaggedOptions),
    *_on_host("ReduceJoin", keep_dims=False, separator=""),
    *_on_host("RegexReplace", replace_global=True),
    *_on_host("StaticRegexFullMatch", pattern=""),
    *_on_host("StaticRegexReplace", pattern="", rewrite="", replace_global=True),
    *_on_host("StringFormat", template="%s", placeholder="%s", summarize=3),  # -1: all of a tensor
    *_on_host("StringJoin", separator=""),
    *_on_host("StringLength Substr", unit="BYTE"),
    *_on_host("StringLower StringUpper", encoding=""),
    *_on_host(
        "StringNGrams",
        separator="",
        ngram_widths=(),
        left_pad="",
        right_pad="",
        pad_width=0,
        preserve_short_sequences=False,
    ),
    *_on_host("StringSplit", skip_empty=True),
    *_on_host("StringSplitV2", maxsplit=-1),
    *_on_host("StringToHashBucketFast", num_buckets=1),
    *_on_host(
        "UnicodeDecode UnicodeDecodeWithOffsets UnicodeEncode UnicodeTranscode",
        input_encoding="UTF-8",
        output_encoding="UTF-8",
        errors="replace",
        replacement_char=65533,
        replace_control_characters=False,
    ),
)
