"""Every operator that XLA can run; `reference/registry.py` is its twin in numpy."""

from jaxdelegate.lazy_table import LazyTable
from jaxdelegate.op_lowering.families import FAMILIES
from jaxdelegate.op_lowering.options import FusedOptions, Options
from jaxdelegate.op_lowering.rule import OpRule

RULES = LazyTable[OpRule](
    "jaxdelegate.op_lowering",
    "RULES",
    FAMILIES,
    in_module={"parse_example": "text"},
)

# Operators that no file holds; only rewrites make them.
FUSED = LazyTable[OpRule](
    "jaxdelegate.op_lowering",
    "FUSED",
    {
        "layer_norm": ("fused_layer_norm",),
        "attention": ("fused_attention",),
        "ended_convolution": ("ended_convolution",),
    },
)


def rule_of(name: str, options: Options) -> OpRule | None:
    """The rule of an operator; the options tell those that rewrites made from a file's."""
    return (FUSED if isinstance(options, FusedOptions) else RULES).get(name)
