"""Text: SKIP_GRAM, ParseExample, ParseExampleV2. XLA has no strings."""

from jaxdelegate.op_lowering.rule import host_only, table
from jaxdelegate.op_lowering.text import options

RULES = table(*(host_only(name, 1, "XLA does not support strings") for name in options.RECORDS))
