"""Options and records of NumericVerify and aeq.hadamard_rotation."""

import dataclasses

import numpy as np

from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.custom import FlexbufferOptions
from jaxdelegate.op_lowering.records.operator import OperatorRecord, table


@dataclasses.dataclass(frozen=True)
class HadamardRotationOptions(FlexbufferOptions):
    """aeq.hadamard_rotation: the transform's size. Its kernel reads no other entry."""

    hadamard_size: int = 0


@dataclasses.dataclass(frozen=True)
class NumericVerifyOptions(FlexbufferOptions):
    """NumericVerify: the tolerance in quantization steps, and whether more is an error."""

    tolerance: float = 0.0
    log_if_failed: bool = False


RECORDS = table(
    OperatorRecord(
        "NumericVerify", NumericVerifyOptions, cost=costs.elementwise, writes=np.dtype(np.float32)
    ),
    OperatorRecord("aeq.hadamard_rotation", HadamardRotationOptions, cost=costs.hadamard),
)
