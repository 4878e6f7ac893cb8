"""Options and records of DENSIFY."""

from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.operator import OperatorRecord, table

RECORDS = table(OperatorRecord("DENSIFY", cost=costs.movement))
