"""TensorFlow's operators that the host runs: on strings, tables, sets, and checks."""

from jaxdelegate.op_lowering.flex import options as flex
from jaxdelegate.op_lowering.records.flex import FLEX
from jaxdelegate.op_lowering.rule import host_only, table

_STRINGS = (
    *("DecodeBase64", "DecodeRaw", "EncodeBase64", "StringFormat", "StringNGrams", "StringSplit"),
    *("UnicodeDecode", "UnicodeDecodeWithOffsets", "UnicodeEncode", "UnicodeTranscode"),
    *("AsString", "ParseExample", "ParseExampleV2", "ReduceJoin", "RegexFullMatch"),
    *("RegexReplace", "StaticRegexFullMatch", "StaticRegexReplace", "StringJoin"),
    *("StringLength", "StringLower", "StringSplitV2", "StringStrip", "StringToHashBucketFast"),
    *("StringToNumber", "StringUpper", "Substr"),
)
_TABLES = (
    *("HashTableV2", "InitializeTableV2", "LookupTableFindV2", "LookupTableImportV2"),
    "LookupTableSizeV2",
)
_DYNAMIC = ("DynamicPartition", "RaggedTensorToTensor", "UniqueV2", "UniqueWithCounts")
_REASONS = {
    **dict.fromkeys(_STRINGS, "XLA does not support strings"),
    **dict.fromkeys(_TABLES, "XLA does not support hash tables"),
    **dict.fromkeys(_DYNAMIC, "the shape of its result depends on data"),
    "Assert": "it stops the model if a condition fails, which compiled code cannot",
    "CheckNumerics": "it stops the model at NaN or infinity, which compiled code cannot",
    "Print": "it prints, which compiled code cannot",
    "PrintV2": "it prints, which compiled code cannot",
    "NoOp": "it computes nothing",
}

RULES = table(
    *(
        host_only(f"{FLEX}{name}", flex.RECORDS[f"{FLEX}{name}"].options, 1, reason)
        for name, reason in _REASONS.items()
    )
)
