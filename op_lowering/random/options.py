"""Options and records of random numbers."""

from jaxdelegate.op_lowering.records import c_struct as c
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import RngAlgorithm
from jaxdelegate.op_lowering.records.operator import OperatorRecord, table
from jaxdelegate.op_lowering.records.record import Record


class RandomOptions(Record):
    """Options of RANDOM_UNIFORM, RANDOM_STANDARD_NORMAL and MULTINOMIAL."""

    seed: int = 0
    seed2: int = 0


class StablehloRngBitGeneratorOptions(Record):
    algorithm: RngAlgorithm = RngAlgorithm.DEFAULT


RECORDS = table(
    OperatorRecord("MULTINOMIAL", RandomOptions, cost=costs.random, struct=c.RANDOM),
    OperatorRecord("RANDOM_STANDARD_NORMAL", RandomOptions, cost=costs.random, struct=c.RANDOM),
    OperatorRecord("RANDOM_UNIFORM", RandomOptions, cost=costs.random, struct=c.RANDOM),
    OperatorRecord(
        "STABLEHLO_RNG_BIT_GENERATOR",
        StablehloRngBitGeneratorOptions,
        cost=costs.random,
        struct={"algorithm": c.after_unknown(RngAlgorithm)},
    ),
)
