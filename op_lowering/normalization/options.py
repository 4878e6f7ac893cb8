"""Options and records of softmax and normalizations."""

from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType
from jaxdelegate.op_lowering.records.operator import (
    OF_INPUTS,
    UNROUNDED,
    Batch,
    OperatorRecord,
    table,
)
from jaxdelegate.op_lowering.records.record import Record


class SoftmaxOptions(Record):
    beta: float = 0.0


class L2NormOptions(Record):
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


class LocalResponseNormalizationOptions(Record):
    radius: int = 0
    bias: float = 0.0
    alpha: float = 0.0
    beta: float = 0.0


RECORDS = table(
    OperatorRecord(
        "L2_NORMALIZATION",
        L2NormOptions,
        cost=costs.l2_normalization,
        batch=Batch.LAST_AXIS,
        scales=OF_INPUTS,
    ),
    OperatorRecord(
        "LOCAL_RESPONSE_NORMALIZATION", LocalResponseNormalizationOptions, cost=costs.local_response
    ),
    OperatorRecord(
        "LOG_SOFTMAX",
        cost=costs.softmax,
        precision=UNROUNDED,
        rereads=True,
        batch=Batch.LAST_AXIS,
        scales=OF_INPUTS,
    ),
    OperatorRecord(
        "SOFTMAX",
        SoftmaxOptions,
        cost=costs.softmax,
        precision=UNROUNDED,
        rereads=True,
        batch=Batch.LAST_AXIS,
        scales=OF_INPUTS,
    ),
)
