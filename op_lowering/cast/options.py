"""Options and records of CAST, QUANTIZE, DEQUANTIZE and FAKE_QUANT."""

from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.op_lowering.records.operator import (
    INTEGERS_ONLY,
    UNROUNDED,
    OperatorRecord,
    Scales,
    Scaling,
    elementwise,
    table,
)
from jaxdelegate.op_lowering.records.record import Record


class CastOptions(Record):
    in_data_type: TensorType = TensorType.FLOAT32
    out_data_type: TensorType = TensorType.FLOAT32


class FakeQuantOptions(Record):
    min: float = 0.0
    max: float = 0.0
    num_bits: int = 0
    narrow_range: bool = False


RECORDS = table(
    elementwise("CAST", CastOptions, precision=UNROUNDED, scales=INTEGERS_ONLY),
    elementwise("DEQUANTIZE", scales=Scaling(Scales.FREE, ignored=frozenset())),
    OperatorRecord("FAKE_QUANT", FakeQuantOptions, cost=costs.elementwise),
    elementwise("QUANTIZE", scales=Scaling(Scales.FREE, ignored=frozenset())),
)
