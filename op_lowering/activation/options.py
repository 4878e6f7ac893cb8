"""Options and records of activation functions."""

from jaxdelegate.op_lowering.records.operator import (
    FREE,
    MOVED,
    OF_INPUTS,
    REDUCED,
    elementwise,
    table,
    transcendental,
)
from jaxdelegate.op_lowering.records.record import Record


class LeakyReluOptions(Record):
    alpha: float = 0.0


class GeluOptions(Record):
    approximate: bool = False


RECORDS = table(
    transcendental("ELU", precision=REDUCED, scales=FREE),
    transcendental("GELU", GeluOptions, precision=REDUCED, scales=FREE),
    elementwise("HARD_SWISH", precision=REDUCED, scales=FREE),
    elementwise("LEAKY_RELU", LeakyReluOptions, precision=REDUCED, scales=FREE),
    transcendental("LOGISTIC", precision=REDUCED, scales=OF_INPUTS),
    elementwise("PRELU", precision=REDUCED, scales=FREE),
    elementwise("RELU", precision=MOVED, scales=FREE),
    elementwise("RELU6", precision=MOVED, scales=FREE),
    elementwise("RELU_0_TO_1", precision=MOVED, scales=FREE),
    elementwise("RELU_N1_TO_1", precision=MOVED, scales=FREE),
    transcendental("TANH", precision=REDUCED, scales=OF_INPUTS),
)
