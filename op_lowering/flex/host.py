"""TensorFlow's operators that the host runs: on strings, tables, sets, files, and checks."""

from jaxdelegate.op_lowering.flex import options as flex
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.flex import FLEX
from jaxdelegate.op_lowering.rule import host_only, table

_STRINGS = "XLA does not support strings"
_REASONS = {
    "Assert": "it stops the model if a condition fails, which compiled code cannot",
    "CheckNumerics": "it stops the model at NaN or infinity, which compiled code cannot",
    "NoOp": "it computes nothing",
    "Restore": "it reads a file",
    "Save": "it writes a file",
    **dict.fromkeys(("Print", "PrintV2"), "it prints, which compiled code cannot"),
    **dict.fromkeys(flex.HOSTED, "JAX has no such function"),
    **dict.fromkeys(
        ("DynamicPartition", "RaggedTensorToTensor", "UniqueV2", "UniqueWithCounts"),
        "the shape of its result depends on data",
    ),
    **dict.fromkeys(
        (
            *("HashTableV2", "InitializeTableV2", "LookupTableFindV2", "LookupTableImportV2"),
            "LookupTableSizeV2",
        ),
        "XLA does not support hash tables",
    ),
}

RULES = table(
    *(
        host_only(name, 1, _REASONS.get(name.removeprefix(FLEX), _STRINGS))
        for name, record in flex.RECORDS.items()
        if record.cost is costs.host_work
    )
)
