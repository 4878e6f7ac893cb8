"""Every operator that XLA can run; `reference/registry.py` is its counterpart in numpy.

A rule is registered by standing in the table `RULES` of a module in one of the folders below.
"""

import importlib
import pkgutil
from collections.abc import Iterator

from jaxdelegate.op_lowering.options import FusedOptions, Options
from jaxdelegate.op_lowering.rule import OpRule, table

FOLDERS = ("builtin", "conv", "fused", "matmul", "recurrent", "stablehlo")


def _rules(attribute: str) -> Iterator[OpRule]:
    """The rows of every module in these folders, in the order of their names."""
    for folder in FOLDERS:
        package = importlib.import_module(f"jaxdelegate.op_lowering.{folder}")
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            yield from getattr(module, attribute, {}).values()


RULES: dict[str, OpRule] = table(*_rules("RULES"))

# Operators that no file holds; only rewrites make them.
FUSED: dict[str, OpRule] = table(*_rules("FUSED"))


def rule_of(name: str, options: Options) -> OpRule | None:
    """The rule of an operator; the options tell those that rewrites made from a file's."""
    return (FUSED if isinstance(options, FusedOptions) else RULES).get(name)
