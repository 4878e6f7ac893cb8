"""Text: SKIP_GRAM, ParseExample, ParseExampleV2. XLA has no strings."""

from jaxdelegate.op_lowering.records.custom import CustomOptions
from jaxdelegate.op_lowering.rule import host_only, table
from jaxdelegate.op_lowering.text.options import SkipGramOptions

_REASON = "XLA does not support strings"
SKIP_GRAM = host_only("SKIP_GRAM", SkipGramOptions, 1, _REASON)
PARSE_EXAMPLE = host_only("ParseExample", CustomOptions, 1, _REASON)
PARSE_EXAMPLE_V2 = host_only("ParseExampleV2", CustomOptions, 1, _REASON)

RULES = table(SKIP_GRAM, PARSE_EXAMPLE, PARSE_EXAMPLE_V2)
