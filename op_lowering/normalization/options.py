"""Options and records of softmax and normalizations."""

from jaxdelegate.op_lowering.records import c_struct as c
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType
from jaxdelegate.op_lowering.records.operator import Batch, OperatorRecord, Scales, table
from jaxdelegate.op_lowering.records.record import Record


class SoftmaxOptions(Record):
    """Table `SoftmaxOptions`: SOFTMAX."""

    beta: float = 0.0


class L2NormOptions(Record):
    """Table `L2NormOptions`: L2_NORMALIZATION."""

    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


class LocalResponseNormalizationOptions(Record):
    """Table `LocalResponseNormalizationOptions`: LOCAL_RESPONSE_NORMALIZATION."""

    radius: int = 0
    bias: float = 0.0
    alpha: float = 0.0
    beta: float = 0.0


class LogSoftmaxOptions(Record):
    """Table `LogSoftmaxOptions`: LOG_SOFTMAX."""


RECORDS = table(
    OperatorRecord(
        "L2_NORMALIZATION",
        L2NormOptions,
        cost=costs.l2_normalization,
        struct=c.ACTIVATED,
        batch=Batch.LAST_AXIS,
        scales=Scales.OF_INPUTS,
    ),
    OperatorRecord(
        "LOCAL_RESPONSE_NORMALIZATION",
        LocalResponseNormalizationOptions,
        cost=costs.local_response,
        struct={"radius": c.INT, "bias": c.FLOAT, "alpha": c.FLOAT, "beta": c.FLOAT},
    ),
    OperatorRecord(
        "LOG_SOFTMAX",
        LogSoftmaxOptions,
        cost=costs.softmax,
        reads_unrounded=True,
        rereads=True,
        batch=Batch.LAST_AXIS,
        scales=Scales.OF_INPUTS,
    ),
    OperatorRecord(
        "SOFTMAX",
        SoftmaxOptions,
        cost=costs.softmax,
        struct={"beta": c.FLOAT},
        reads_unrounded=True,
        rereads=True,
        batch=Batch.LAST_AXIS,
        scales=Scales.OF_INPUTS,
    ),
)
