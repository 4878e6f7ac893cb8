"""Options and records of custom operators of TFLite's tools, and of MediaPipe's face meshes."""

import dataclasses
import math

import numpy as np

from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.custom import FlexbufferOptions
from jaxdelegate.op_lowering.records.operator import UNROUNDED, OperatorRecord, table


@dataclasses.dataclass(frozen=True)
class HadamardRotationOptions(FlexbufferOptions):
    """aeq.hadamard_rotation: the transform's size. Its kernel reads no other entry."""

    hadamard_size: int = 0


@dataclasses.dataclass(frozen=True)
class NumericVerifyOptions(FlexbufferOptions):
    """NumericVerify: the tolerance in quantization steps, and whether more is an error."""

    tolerance: float = 0.0
    log_if_failed: bool = False


@dataclasses.dataclass(frozen=True)
class LandmarksToMatrixOptions(FlexbufferOptions):
    """Landmarks2TransformMatrix: the last five fields are those of version 1, `_hw` is (h, w)."""

    left_rotation_idx: int = -1
    right_rotation_idx: int = -1
    target_rotation_radians: float = 0.0
    subset_idxs: tuple[int, ...] = ()
    output_height: int = 0
    output_width: int = 0
    scale_x: float = 0.0
    scale_y: float = 0.0
    subset: tuple[int, ...] = ()
    input_hw: tuple[int, ...] = ()
    output_hw: tuple[int, ...] = ()
    landmarks_range: int = 0
    bbox_size_multiplier: float = 0.0


@dataclasses.dataclass(frozen=True)
class TransformLandmarksOptions(FlexbufferOptions):
    """TransformLandmarks: of version 1; version 2 has none."""

    dimensions: int = 3
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class TransformTensorOptions(FlexbufferOptions):
    """TransformTensorBilinear: `mode` and `output_size`, (h, w), are those of version 1."""

    output_height: int = 0
    output_width: int = 0
    mode: str = "bilinear"
    output_size: tuple[int, ...] = ()


def _hadamard(op: costs.Operation[HadamardRotationOptions]) -> costs.Work:
    return costs.Work(costs.n(op.inputs[0]) * int(math.log2(max(op.options.hadamard_size, 1))))


RECORDS = table(
    OperatorRecord(
        "Landmarks2TransformMatrix",
        LandmarksToMatrixOptions,
        cost=costs.per_input,
        precision=UNROUNDED,
    ),
    OperatorRecord(
        "NumericVerify", NumericVerifyOptions, cost=costs.elementwise, writes=np.dtype(np.float32)
    ),
    OperatorRecord(
        "TransformLandmarks", TransformLandmarksOptions, cost=costs.per_input, precision=UNROUNDED
    ),
    OperatorRecord(
        "TransformTensorBilinear", TransformTensorOptions, cost=costs.bilinear, precision=UNROUNDED
    ),
    OperatorRecord("aeq.hadamard_rotation", HadamardRotationOptions, cost=_hadamard),
)
