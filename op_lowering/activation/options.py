"""Options and records of activation functions."""

from jaxdelegate.op_lowering.records import c_struct as c
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.operator import OperatorRecord, Result, Scales, table
from jaxdelegate.op_lowering.records.record import Record


class LeakyReluOptions(Record):
    """Table `LeakyReluOptions`: LEAKY_RELU."""

    alpha: float = 0.0


class HardSwishOptions(Record):
    """Table `HardSwishOptions`: HARD_SWISH."""


class GeluOptions(Record):
    """Table `GeluOptions`: GELU."""

    approximate: bool = False


RECORDS = table(
    OperatorRecord(
        "ELU",
        cost=costs.transcendental,
        is_elementwise=True,
        result=Result.REDUCED,
        scales=Scales.FREE,
    ),
    OperatorRecord(
        "GELU",
        GeluOptions,
        cost=costs.transcendental,
        struct={"approximate": c.BOOL},
        is_elementwise=True,
        result=Result.REDUCED,
        scales=Scales.FREE,
    ),
    OperatorRecord(
        "HARD_SWISH",
        HardSwishOptions,
        cost=costs.elementwise,
        is_elementwise=True,
        result=Result.REDUCED,
        scales=Scales.FREE,
    ),
    OperatorRecord(
        "LEAKY_RELU",
        LeakyReluOptions,
        cost=costs.elementwise,
        struct={"alpha": c.FLOAT},
        is_elementwise=True,
        result=Result.REDUCED,
        scales=Scales.FREE,
    ),
    OperatorRecord(
        "PRELU",
        cost=costs.elementwise,
        is_elementwise=True,
        result=Result.REDUCED,
        scales=Scales.FREE,
    ),
    *(
        OperatorRecord(
            name,
            cost=costs.elementwise,
            is_elementwise=True,
            result=Result.MOVED,
            scales=Scales.FREE,
        )
        for name in ("RELU", "RELU6", "RELU_0_TO_1", "RELU_N1_TO_1")
    ),
    *(
        OperatorRecord(
            name,
            cost=costs.transcendental,
            is_elementwise=True,
            result=Result.REDUCED,
            scales=Scales.OF_INPUTS,
        )
        for name in ("LOGISTIC", "TANH")
    ),
)
