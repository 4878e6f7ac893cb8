"""Parameters of the custom operators that LiteRT and MediaPipe know by name."""

import dataclasses
import struct
from typing import ClassVar, Self

from jaxdelegate.op_lowering.options.base import CustomOptions, FlexbufferOptions
from jaxdelegate.op_lowering.options.enums import Padding


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
    """MediaPipe's Convolution2DTransposeBias: the C struct TfLiteTransposeConvParams, three int32."""

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
