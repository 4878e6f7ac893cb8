"""Options and records of pooling."""

import dataclasses
import struct
from typing import Any, Self

from flatbuffers import flexbuffers

from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.custom import CustomOptions
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
class PoolParamsOptions(CustomOptions):
    """MediaPipe's pools: C struct TfLitePoolParams, ten int32, the last four of them scratch."""

    padding: Padding = Padding.SAME
    stride_w: int = 0
    stride_h: int = 0
    filter_width: int = 0
    filter_height: int = 0
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read TfLitePadding (1 SAME, 2 VALID), strides, window and fused activation."""
        if len(data) < 24:
            raise ValueError(f"TfLitePoolParams: expected 24 bytes of parameters, got {len(data)}")
        padding, stride_w, stride_h, width, height, activation = struct.unpack_from("<6i", data)
        return cls(
            data,
            padding=Padding(padding - 1),
            stride_w=stride_w,
            stride_h=stride_h,
            filter_width=width,
            filter_height=height,
            fused_activation_function=ActivationFunctionType(activation),
        )


@dataclasses.dataclass(frozen=True)
class TensorFlowPoolOptions(CustomOptions):
    """A TensorFlow pool's attributes in a flexbuffer map; window and strides of every dimension."""

    ksize: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    padding: str = ""  # "SAME" | "VALID"

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """A key that is absent keeps the field's default."""
        fields = {f.name: f.default for f in dataclasses.fields(cls) if f.name != "data"}
        try:
            entries = flexbuffers.GetRoot(data).AsMap if data else {}
            values = {name: _attribute(entries, name, fields[name]) for name in fields}
        except (struct.error, LookupError, TypeError, OverflowError, AssertionError) as error:
            raise ValueError(
                f"custom options: expected the attributes of a pool, got {error!r}"
            ) from error
        return cls(data, **values)


_MOST_DIMENSIONS = 8


def _attribute(entries: Any, name: str, default: Any) -> Any:
    """A string, a flag or a short vector of integers, whichever `default` is."""
    try:
        entry = entries[name]
    except KeyError as error:
        if error.args == (name,):
            return default
        raise
    if isinstance(default, str):
        return entry.AsString
    if isinstance(default, bool):
        return entry.AsBool
    vector = entry.AsTypedVector if entry.IsTypedVector else entry.AsVector
    if len(vector) > _MOST_DIMENSIONS:
        raise TypeError(f"{len(vector)} values of {name}")
    return tuple(number.AsInt for number in map(vector.__getitem__, range(len(vector))))


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
