"""Options and records of non-maximum suppression and box decoding."""

import dataclasses

from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.custom import FlexbufferOptions
from jaxdelegate.op_lowering.records.operator import UNROUNDED, OperatorRecord, table


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
class PosenetDecoderOptions(FlexbufferOptions):
    """PosenetDecoderOp: thresholds, and the stride of the network in pixels."""

    max_detections: int = 0
    score_threshold: float = 0.0
    stride: int = 0
    nms_radius: float = 0.0


RECORDS = table(
    OperatorRecord("NON_MAX_SUPPRESSION_V4", cost=costs.suppression, precision=UNROUNDED),
    OperatorRecord("NON_MAX_SUPPRESSION_V5", cost=costs.suppression, precision=UNROUNDED),
    OperatorRecord("PosenetDecoderOp", PosenetDecoderOptions, cost=costs.host_work),
    OperatorRecord(
        "TFLite_Detection_PostProcess",
        DetectionPostProcessOptions,
        cost=costs.detection,
        precision=UNROUNDED,
    ),
)
