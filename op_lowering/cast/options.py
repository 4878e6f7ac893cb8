"""Options and records of CAST, QUANTIZE, DEQUANTIZE and FAKE_QUANT."""

from jaxdelegate.op_lowering.records import c_struct as c
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.op_lowering.records.operator import INTEGERS, OperatorRecord, Scales, table
from jaxdelegate.op_lowering.records.record import Record


class CastOptions(Record):
    """Table `CastOptions`: CAST."""

    in_data_type: TensorType = TensorType.FLOAT32
    out_data_type: TensorType = TensorType.FLOAT32


class DequantizeOptions(Record):
    """Table `DequantizeOptions`: DEQUANTIZE."""


class FakeQuantOptions(Record):
    """Table `FakeQuantOptions`: FAKE_QUANT."""

    min: float = 0.0
    max: float = 0.0
    num_bits: int = 0
    narrow_range: bool = False


class QuantizeOptions(Record):
    """Table `QuantizeOptions`: QUANTIZE."""


RECORDS = table(
    OperatorRecord(
        "CAST",
        CastOptions,
        cost=costs.elementwise,
        struct={"in_data_type": c.TYPE, "out_data_type": c.TYPE},
        is_elementwise=True,
        reads_unrounded=True,
        ignores_scales=INTEGERS,
    ),
    OperatorRecord(
        "DEQUANTIZE",
        DequantizeOptions,
        cost=costs.elementwise,
        is_elementwise=True,
        scales=Scales.FREE,
        ignores_scales=frozenset(),
    ),
    OperatorRecord(
        "FAKE_QUANT",
        FakeQuantOptions,
        cost=costs.elementwise,
        struct={"min": c.FLOAT, "max": c.FLOAT, "num_bits": c.INT, "narrow_range": c.BOOL},
    ),
    OperatorRecord(
        "QUANTIZE",
        QuantizeOptions,
        cost=costs.elementwise,
        is_elementwise=True,
        scales=Scales.FREE,
        ignores_scales=frozenset(),
    ),
)
