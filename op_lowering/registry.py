"""Every operator that XLA can run; `jaxdelegate.reference.registry` is its counterpart in numpy.

A rule is registered by its row in the table `RULES` of a module of its family.
"""

from collections.abc import Iterator

from jaxdelegate.op_lowering.families import rule_modules
from jaxdelegate.op_lowering.options import FusedOptions, Options
from jaxdelegate.op_lowering.rule import OpRule, table


def _rules(attribute: str) -> Iterator[OpRule]:
    for module in rule_modules():
        yield from getattr(module, attribute, {}).values()


RULES: dict[str, OpRule] = table(*_rules("RULES"))

# Operators that no file holds; only rewrites create them.
FUSED: dict[str, OpRule] = table(*_rules("FUSED"))


def rule_of(name: str, options: Options) -> OpRule | None:
    """The rule of an operator; its options show whether a rewrite created it."""
    return (FUSED if isinstance(options, FusedOptions) else RULES).get(name)
