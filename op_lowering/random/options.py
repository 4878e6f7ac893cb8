"""Options and records of random numbers."""

from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import RngAlgorithm
from jaxdelegate.op_lowering.records.operator import OperatorRecord, table
from jaxdelegate.op_lowering.records.record import Record


class RandomOptions(Record):
    seed: int = 0
    seed2: int = 0


class StablehloRngBitGeneratorOptions(Record):
    algorithm: RngAlgorithm = RngAlgorithm.DEFAULT


RECORDS = table(
    OperatorRecord("MULTINOMIAL", RandomOptions, cost=costs.random),
    OperatorRecord("RANDOM_STANDARD_NORMAL", RandomOptions, cost=costs.random),
    OperatorRecord("RANDOM_UNIFORM", RandomOptions, cost=costs.random),
    OperatorRecord(
        "STABLEHLO_RNG_BIT_GENERATOR", StablehloRngBitGeneratorOptions, cost=costs.random
    ),
)
