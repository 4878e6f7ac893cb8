"""Options and records of DENSIFY."""

from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.operator import OperatorRecord, table
from jaxdelegate.op_lowering.records.record import Record


class DensifyOptions(Record):
    """Table `DensifyOptions`: DENSIFY."""


RECORDS = table(OperatorRecord("DENSIFY", DensifyOptions, cost=costs.movement))
