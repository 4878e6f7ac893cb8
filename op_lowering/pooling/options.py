"""Options and records of pooling."""

import dataclasses
import functools

from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.custom import FlexbufferOptions, StructOptions
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType, Padding
from jaxdelegate.op_lowering.records.operator import (
    EQUAL,
    INTEGERS_ONLY,
    MOVED,
    REDUCED,
    Batch,
    OperatorRecord,
    table,
)
from jaxdelegate.op_lowering.records.record import Record


class Pool2DOptions(Record):
    padding: Padding = Padding.SAME
    stride_w: int = 0
    stride_h: int = 0
    filter_width: int = 0
    filter_height: int = 0
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


@dataclasses.dataclass(frozen=True)
class PoolParamsOptions(StructOptions):
    """MediaPipe's pools: TfLitePoolParams, whose last four int32 are scratch."""

    padding: Padding = Padding.SAME
    stride_w: int = 0
    stride_h: int = 0
    filter_width: int = 0
    filter_height: int = 0
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


@dataclasses.dataclass(frozen=True)
class TensorFlowPoolOptions(FlexbufferOptions):
    """A TensorFlow pool's attributes in a flexbuffer map; window and strides of every dimension."""

    ksize: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    padding: str = ""  # "SAME" | "VALID"


@dataclasses.dataclass(frozen=True)
class Pool3DOptions(TensorFlowPoolOptions):
    """AvgPool3D and MaxPool3D: window and strides are [1, D, H, W, 1]."""

    data_format: str = "NDHWC"


@dataclasses.dataclass(frozen=True)
class MaxPoolWithArgmaxOptions(TensorFlowPoolOptions):
    """MaxPoolWithArgmax: window and strides are [1, H, W, 1]."""

    include_batch_in_index: bool = False


_windows = functools.partial(OperatorRecord, cost=costs.tensorflow_pool)
_pool = functools.partial(OperatorRecord, cost=costs.pool, batch=Batch.FIRST_INPUT, scales=EQUAL)
RECORDS = table(
    _pool("AVERAGE_POOL_2D", Pool2DOptions, precision=REDUCED),
    _windows("AvgPool3D", Pool3DOptions, precision=REDUCED),
    OperatorRecord("L2_POOL_2D", Pool2DOptions, cost=costs.l2_pool),
    _pool("MAX_POOL_2D", Pool2DOptions, precision=MOVED),
    _windows("MaxPool3D", Pool3DOptions, precision=MOVED, scales=EQUAL),
    _windows("MaxPoolWithArgmax", MaxPoolWithArgmaxOptions),
    OperatorRecord("MaxPoolingWithArgmax2D", PoolParamsOptions, cost=costs.pool),
    OperatorRecord("MaxUnpooling2D", PoolParamsOptions, cost=costs.movement, scales=INTEGERS_ONLY),
)
