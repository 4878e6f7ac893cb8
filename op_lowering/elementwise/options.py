"""Options and records of elementwise arithmetic."""

from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType
from jaxdelegate.op_lowering.records.operator import (
    COMPARED,
    EQUAL,
    EXPONENTIAL,
    FREE,
    GROWTH,
    INTEGERS_ONLY,
    MOVED,
    REDUCED,
    UNROUNDED,
    OperatorRecord,
    elementwise,
    table,
    transcendental,
)
from jaxdelegate.op_lowering.records.record import Record


class AddOptions(Record):
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    pot_scale_int16: bool = True


class MulOptions(Record):
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


class SubOptions(Record):
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    pot_scale_int16: bool = True


class DivOptions(Record):
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


RECORDS = table(
    elementwise("ABS", precision=MOVED, scales=FREE),
    elementwise("ADD", AddOptions, precision=REDUCED, scales=FREE),
    OperatorRecord("ADD_N", cost=costs.add_n, precision=REDUCED),
    transcendental("ATAN2"),
    OperatorRecord("BITCAST", cost=costs.elementwise, scales=INTEGERS_ONLY),
    elementwise("BITWISE_XOR", scales=INTEGERS_ONLY),
    elementwise("CEIL", precision=UNROUNDED),
    elementwise("COMPLEX_ABS"),
    transcendental("COS", precision=UNROUNDED),
    elementwise("DIV", DivOptions, precision=UNROUNDED, scales=FREE),
    transcendental("EXP", precision=EXPONENTIAL, scales=FREE),
    elementwise("FLOOR", precision=UNROUNDED),
    elementwise("FLOOR_DIV", precision=UNROUNDED, scales=INTEGERS_ONLY),
    elementwise("FLOOR_MOD", precision=UNROUNDED, scales=INTEGERS_ONLY),
    OperatorRecord("IMAG", cost=costs.movement),
    transcendental("LOG", precision=UNROUNDED, scales=FREE),
    elementwise("MAXIMUM", precision=MOVED, scales=COMPARED),
    elementwise("MINIMUM", precision=MOVED, scales=COMPARED),
    elementwise("MUL", MulOptions, precision=REDUCED, scales=FREE),
    elementwise("NEG", precision=MOVED, scales=INTEGERS_ONLY),
    transcendental("POW", precision=EXPONENTIAL),
    OperatorRecord("REAL", cost=costs.movement),
    OperatorRecord("RIGHT_SHIFT", cost=costs.elementwise, scales=INTEGERS_ONLY),
    elementwise("ROUND", precision=UNROUNDED),
    transcendental("RSQRT", precision=UNROUNDED, scales=FREE),
    elementwise("SIGN"),
    transcendental("SIN", precision=UNROUNDED),
    transcendental("SQRT", precision=UNROUNDED, scales=FREE),
    elementwise("SQUARE", precision=GROWTH),
    elementwise("SQUARED_DIFFERENCE", scales=FREE),
    elementwise("SUB", SubOptions, precision=REDUCED, scales=FREE),
    OperatorRecord("ZEROS_LIKE", cost=costs.movement, reads_values=False, scales=EQUAL),
)
