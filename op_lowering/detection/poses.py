"""PosenetDecoderOp, Coral's custom operator."""

from jaxdelegate.op_lowering.detection.options import PosenetDecoderOptions
from jaxdelegate.op_lowering.rule import host_only, table

RULES = table(
    host_only(
        "PosenetDecoderOp", PosenetDecoderOptions, 1, "how many persons it follows depends on data"
    )
)
