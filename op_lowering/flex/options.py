"""Options and records of TensorFlow's operators (core/ops/*.cc)."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxdelegate.op_lowering.comparison.options import SelectV2Options
from jaxdelegate.op_lowering.convolution.options import Conv3DOptions
from jaxdelegate.op_lowering.elementwise.options import (
    AddOptions,
    DivOptions,
    MaximumMinimumOptions,
    MulOptions,
    SubOptions,
)
from jaxdelegate.op_lowering.matmul.options import BatchMatMulOptions
from jaxdelegate.op_lowering.pooling.options import Pool3DOptions
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import Padding
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.records.operator import OperatorRecord, Result, table
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.sorting.options import TopKV2Options

_FLOAT32 = np.dtype(np.float32)


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
    """BatchMatMulV2: adj_x and adj_y. Solvers: adjoint, and which triangle."""

    adj_x: bool = False
    adj_y: bool = False
    adjoint: bool = False
    lower: bool = True


@dataclasses.dataclass(frozen=True)
class FlexScanOptions(FlexOptions):
    """Cumprod."""

    exclusive: bool = False
    reverse: bool = False


@dataclasses.dataclass(frozen=True)
class FlexImageOptions(FlexOptions):
    """ResizeBicubic: which pixels of the input and the result coincide."""

    align_corners: bool = False
    half_pixel_centers: bool = False


@dataclasses.dataclass(frozen=True)
class FlexGradientOptions(FlexOptions):
    """BiasAddGrad: where the channels are."""

    data_format: str = "NHWC"


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


BUILTIN: dict[str, Builtin] = {
    f"{FLEX}AddV2": Builtin("ADD", lambda _: AddOptions(pot_scale_int16=False)),
    f"{FLEX}AvgPool3D": Builtin("AvgPool3D", _pool),
    f"{FLEX}BatchMatMulV2": Builtin("BATCH_MATMUL", _matrices),
    f"{FLEX}Conv3D": Builtin("CONV_3D", _convolution),
    f"{FLEX}MaxPool3D": Builtin("MaxPool3D", _pool),
    f"{FLEX}Maximum": Builtin("MAXIMUM", lambda _: MaximumMinimumOptions()),
    f"{FLEX}Minimum": Builtin("MINIMUM", lambda _: MaximumMinimumOptions()),
    f"{FLEX}Mul": Builtin("MUL", lambda _: MulOptions()),
    f"{FLEX}RealDiv": Builtin("DIV", lambda _: DivOptions()),
    f"{FLEX}SelectV2": Builtin("SELECT_V2", lambda _: SelectV2Options()),
    f"{FLEX}Sub": Builtin("SUB", lambda _: SubOptions(pot_scale_int16=False)),
    f"{FLEX}TopKV2": Builtin("TOPK_V2", lambda _: TopKV2Options()),
}

_UNARY = (
    *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Digamma", "Erf", "Erfc"),
    *("Erfinv", "Expm1", "Lgamma", "Log1p", "Reciprocal", "Selu", "Sinh", "Softplus", "Softsign"),
    "Tan",
)
_ARITHMETIC = ("AddV2", "Maximum", "Minimum", "Mul", "RealDiv", "Relu6Grad", "ReluGrad", "Sub")
_MOVED = ("Identity", "InvertPermutation", "Roll", "SelectV2")
_SOLVERS = ("MatrixInverse", "MatrixSolve", "MatrixTriangularSolve")
_LISTS = ("FromTensor", "GetItem", "Length", "Reserve", "Resize", "SetItem", "Stack")

RECORDS = table(
    *(
        OperatorRecord(f"{FLEX}{name}", FlexOptions, cost=costs.transcendental, is_elementwise=True)
        for name in _UNARY
    ),
    *(
        OperatorRecord(f"{FLEX}{name}", FlexOptions, cost=costs.elementwise, is_elementwise=True)
        for name in _ARITHMETIC
    ),
    *(OperatorRecord(f"{FLEX}{name}", FlexOptions, cost=costs.movement) for name in _MOVED),
    *(
        OperatorRecord(f"{FLEX}TensorList{name}", TensorListOptions, cost=costs.movement)
        for name in _LISTS
    ),
    OperatorRecord(f"{FLEX}AvgPool3D", FlexWindowOptions, cost=costs.tensorflow_pool),
    OperatorRecord(
        f"{FLEX}BatchMatMulV2",
        FlexMatrixOptions,
        cost=costs.batch_matmul,
        multiplies=True,
        result=Result.REDUCED,
    ),
    OperatorRecord(f"{FLEX}BiasAddGrad", FlexGradientOptions, cost=costs.per_input),
    OperatorRecord(f"{FLEX}Bincount", FlexOptions, cost=costs.per_input),
    OperatorRecord(
        f"{FLEX}Conv3D",
        FlexWindowOptions,
        cost=costs.convolution_3d,
        multiplies=True,
        result=Result.REDUCED,
    ),
    OperatorRecord(f"{FLEX}Cumprod", FlexScanOptions, cost=costs.per_input),
    *(OperatorRecord(f"{FLEX}{name}", FlexMatrixOptions, cost=costs.linear) for name in _SOLVERS),
    OperatorRecord(f"{FLEX}MaxPool3D", FlexWindowOptions, cost=costs.tensorflow_pool),
    OperatorRecord(f"{FLEX}ResizeBicubic", FlexImageOptions, cost=costs.bilinear),
    OperatorRecord(f"{FLEX}TopKV2", FlexOptions, cost=costs.top_k),
    OperatorRecord(f"{FLEX}EnsureShape", EnsureShapeOptions, cost=costs.movement),
    OperatorRecord(f"{FLEX}Restore", FlexOptions, cost=costs.host_work),
    OperatorRecord(f"{FLEX}Save", FlexOptions, cost=costs.host_work),
)
