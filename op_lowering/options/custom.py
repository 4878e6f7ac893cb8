"""Parameters of the custom operators that LiteRT and MediaPipe know by name."""

import dataclasses
import struct
from typing import Any, ClassVar, Self

from flatbuffers import flexbuffers

from jaxdelegate.op_lowering.options.base import CustomOptions, FlexbufferOptions
from jaxdelegate.op_lowering.options.enums import ActivationFunctionType, Padding


@dataclasses.dataclass(frozen=True)
class DetectionPostProcessOptions(FlexbufferOptions):
    """TFLite_Detection_PostProcess: box decoding scales, thresholds and the kind of suppression."""

    operators: ClassVar[tuple[str, ...]] = ("TFLite_Detection_PostProcess",)
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

    operators: ClassVar[tuple[str, ...]] = ("Convolution2DTransposeBias",)
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

    operators: ClassVar[tuple[str, ...]] = ("MaxPoolingWithArgmax2D", "MaxUnpooling2D")
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

    operators: ClassVar[tuple[str, ...]] = ("AvgPool3D", "MaxPool3D")
    data_format: str = "NDHWC"


@dataclasses.dataclass(frozen=True)
class MaxPoolWithArgmaxOptions(TensorFlowPoolOptions):
    """MaxPoolWithArgmax: window and strides are [1, H, W, 1]."""

    operators: ClassVar[tuple[str, ...]] = ("MaxPoolWithArgmax",)
    include_batch_in_index: bool = False


@dataclasses.dataclass(frozen=True)
class HadamardRotationOptions(FlexbufferOptions):
    """aeq.hadamard_rotation: the transform's size. Its kernel reads no other entry."""

    operators: ClassVar[tuple[str, ...]] = ("aeq.hadamard_rotation",)
    hadamard_size: int = 0


@dataclasses.dataclass(frozen=True)
class NumericVerifyOptions(FlexbufferOptions):
    """NumericVerify: how many quantization steps may lie between, and whether more is an error."""

    operators: ClassVar[tuple[str, ...]] = ("NumericVerify",)
    tolerance: float = 0.0
    log_if_failed: bool = False
