"""Every operator that XLA can run, written out. Beside it stands `reference/registry.py`, operator for operator."""

from jaxdelegate.op_lowering.resize import RESIZE_BILINEAR
from jaxdelegate.op_lowering.rule import OpRule


def table(*rules: OpRule) -> dict[str, OpRule]:
    """The rules by name.

    Raises:
        ValueError: two rules claim one operator.
    """
    rows = {rule.name: rule for rule in rules}
    if len(rows) != len(rules):
        raise ValueError(f"duplicate rules among {sorted(rule.name for rule in rules)}")
    return rows


# Custom operators stand under their custom name.
RULES = table(
    # resize
    RESIZE_BILINEAR,
)
