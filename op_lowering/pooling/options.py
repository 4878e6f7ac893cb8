"""Options and records of pooling."""

import dataclasses

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


RECORDS = table(
    OperatorRecord(
        "AVERAGE_POOL_2D",
        Pool2DOptions,
        cost=costs.pool,
        precision=REDUCED,
        batch=Batch.FIRST_INPUT,
        scales=EQUAL,
    ),
    OperatorRecord("AvgPool3D", Pool3DOptions, cost=costs.tensorflow_pool, precision=REDUCED),
    OperatorRecord("L2_POOL_2D", Pool2DOptions, cost=costs.l2_pool),
    OperatorRecord(
        "MAX_POOL_2D",
        Pool2DOptions,
        cost=costs.pool,
        precision=MOVED,
        batch=Batch.FIRST_INPUT,
        scales=EQUAL,
    ),
    OperatorRecord(
        "MaxPool3D", Pool3DOptions, cost=costs.tensorflow_pool, precision=MOVED, scales=EQUAL
    ),
    OperatorRecord("MaxPoolWithArgmax", MaxPoolWithArgmaxOptions, cost=costs.tensorflow_pool),
    OperatorRecord("MaxPoolingWithArgmax2D", PoolParamsOptions, cost=costs.pool),
    OperatorRecord("MaxUnpooling2D", PoolParamsOptions, cost=costs.movement, scales=INTEGERS_ONLY),
)
