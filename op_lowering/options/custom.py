"""Parameters of the custom operators that LiteRT and MediaPipe know by name."""

import dataclasses
import struct
from typing import Any, Self

import numpy as np
from flatbuffers import flexbuffers

from jaxdelegate.op_lowering.options import costs
from jaxdelegate.op_lowering.options.base import CustomOptions, FlexbufferOptions
from jaxdelegate.op_lowering.options.enums import ActivationFunctionType, Padding
from jaxdelegate.op_lowering.options.operator import INTEGERS, OperatorRecord, Result, Scales, table


@dataclasses.dataclass(frozen=True)
class DetectionPostProcessOptions(FlexbufferOptions):
    """TFLite_Detection_PostProcess: box decoding scales, thresholds and the kind of suppression."""

    max_detections: int = 0
    max_classes_per_detection: int = 0
    detections_per_class: int = 100
    use_regular_nms: bool = False
    nms_score_threshold: float = 0.0
    nms_iou_threshold: float = 0.0
    num_classes: int = 0
    y_scale: float = 0.0
    x_scale: float = 0.0
    h_scale: float = 0.0
    w_scale: float = 0.0


@dataclasses.dataclass(frozen=True)
class Convolution2DTransposeBiasOptions(CustomOptions):
    """MediaPipe's Convolution2DTransposeBias: C struct TfLiteTransposeConvParams, three int32."""

    padding: Padding = Padding.SAME
    stride_w: int = 0
    stride_h: int = 0

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read TfLitePadding (1 SAME, 2 VALID), stride_width and stride_height.

        Raises:
            ValueError: fewer than twelve bytes, or a padding that is neither.
        """
        if len(data) < 12:
            raise ValueError(
                f"Convolution2DTransposeBias: want 12 bytes of parameters, got {len(data)}"
            )
        padding, stride_w, stride_h = struct.unpack_from("<iii", data)
        return cls(data, Padding(padding - 1), stride_w, stride_h)


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
        """Read TfLitePadding (1 SAME, 2 VALID), strides, window and fused activation.

        Raises:
            ValueError: fewer than 24 bytes, or a number that its enumeration does not name.
        """
        if len(data) < 24:
            raise ValueError(f"TfLitePoolParams: want 24 bytes of parameters, got {len(data)}")
        padding, stride_w, stride_h, width, height, activation = struct.unpack_from("<6i", data)
        return cls(
            data,
            Padding(padding - 1),
            stride_w,
            stride_h,
            width,
            height,
            ActivationFunctionType(activation),
        )


@dataclasses.dataclass(frozen=True)
class TensorFlowPoolOptions(CustomOptions):
    """A TensorFlow pool's attributes in a flexbuffer map; window and strides of every dimension."""

    ksize: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    padding: str = ""  # "SAME" | "VALID"

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read the map; a key that is absent keeps the field's default.

        Raises:
            ValueError: the bytes are not a flexbuffer map, or hold something else under a key.
        """
        fields = {f.name: f.default for f in dataclasses.fields(cls) if f.name != "data"}
        try:
            entries = flexbuffers.GetRoot(data).AsMap if data else {}
            values = {name: _attribute(entries, name, fields[name]) for name in fields}
        except (struct.error, LookupError, TypeError, OverflowError, AssertionError) as error:
            raise ValueError(
                f"custom options: want the attributes of a pool, got {error!r}"
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


@dataclasses.dataclass(frozen=True)
class HadamardRotationOptions(FlexbufferOptions):
    """aeq.hadamard_rotation: the transform's size. Its kernel reads no other entry."""

    hadamard_size: int = 0


@dataclasses.dataclass(frozen=True)
class NumericVerifyOptions(FlexbufferOptions):
    """NumericVerify: how many quantization steps may lie between, and whether more is an error."""

    tolerance: float = 0.0
    log_if_failed: bool = False


RECORDS = table(
    OperatorRecord("AvgPool3D", Pool3DOptions, cost=costs.tensorflow_pool, result=Result.REDUCED),
    OperatorRecord("BroadcastGradientArgs", CustomOptions, cost=costs.movement),
    OperatorRecord(
        "Convolution2DTransposeBias",
        Convolution2DTransposeBiasOptions,
        cost=costs.transpose_convolution_bias,
        multiplies=True,
        result=Result.REDUCED,
    ),
    OperatorRecord("IRFFT2D", CustomOptions, cost=costs.fourier),
    OperatorRecord(
        "MaxPool3D",
        Pool3DOptions,
        cost=costs.tensorflow_pool,
        result=Result.MOVED,
        scales=Scales.EQUAL,
    ),
    OperatorRecord("MaxPoolWithArgmax", MaxPoolWithArgmaxOptions, cost=costs.tensorflow_pool),
    OperatorRecord("MaxPoolingWithArgmax2D", PoolParamsOptions, cost=costs.pool),
    OperatorRecord(
        "MaxUnpooling2D", PoolParamsOptions, cost=costs.movement, ignores_scales=INTEGERS
    ),
    OperatorRecord(
        "NumericVerify", NumericVerifyOptions, cost=costs.elementwise, writes=np.dtype(np.float32)
    ),
    OperatorRecord("ParseExample", CustomOptions, cost=costs.host_work),
    OperatorRecord("ParseExampleV2", CustomOptions, cost=costs.host_work),
    OperatorRecord(
        "Roll", CustomOptions, cost=costs.movement, result=Result.MOVED, scales=Scales.EQUAL
    ),
    OperatorRecord(
        "TFLite_Detection_PostProcess",
        DetectionPostProcessOptions,
        cost=costs.detection,
        reads_unrounded=True,
    ),
    OperatorRecord("aeq.hadamard_rotation", HadamardRotationOptions, cost=costs.hadamard),
)
