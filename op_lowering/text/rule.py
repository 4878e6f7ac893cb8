"""Text: SKIP_GRAM, ParseExample, ParseExampleV2. XLA has no strings."""

from jaxdelegate.op_lowering.rule import host_only, table
from jaxdelegate.op_lowering.text import options

RULES = table(
    *(
        host_only(name, record.options, 1, "XLA does not support strings")
        for name, record in options.RECORDS.items()
    )
)
