"""Options and records of softmax and normalizations."""

import functools

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


def _local_response(op: costs.Operation[LocalResponseNormalizationOptions]) -> costs.Work:
    """Squares and sums of neighboring channels, a power."""
    n = costs.n(op.inputs[0])
    return costs.Work(n * (2 * (2 * op.options.radius + 1) + 4), n)


_along_last_axis = functools.partial(OperatorRecord, batch=Batch.LAST_AXIS, scales=OF_INPUTS)
_softmax = functools.partial(
    _along_last_axis, cost=costs.softmax, precision=UNROUNDED, rereads=True
)
RECORDS = table(
    _along_last_axis("L2_NORMALIZATION", L2NormOptions, cost=costs.l2_normalization),
    OperatorRecord(
        "LOCAL_RESPONSE_NORMALIZATION", LocalResponseNormalizationOptions, cost=_local_response
    ),
    _softmax("LOG_SOFTMAX"),
    _softmax("SOFTMAX", SoftmaxOptions),
)
