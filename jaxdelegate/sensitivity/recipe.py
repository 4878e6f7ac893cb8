"""Recipes for litert-quantizer.

Source: litert_quantizer/recipe_manager.py. The last matching rule applies. An operator's scope is
the names of its outputs, each followed by a semicolon.
"""

import re
from collections.abc import Sequence
from typing import Any

from jaxdelegate.sensitivity.schemes import Scheme

_MAX_SCOPE = 10000  # characters; the quantizer truncates scopes
# The quantizer's names that differ from the schema's.
_NAMES = {"TRANSPOSE_CONV": "CONV_2D_TRANSPOSE"}

Named = tuple[str, tuple[str, ...]]  # an operator and the names of its outputs


def recipe(
    scheme: Scheme, kept: Sequence[Named], inputs: Sequence[str], outputs: Sequence[str]
) -> list[dict[str, Any]]:
    """Rules that quantize everything in a scheme except `kept` and the model's ends named here."""
    rules = [_rule(".*", "*", "min_max_uniform_quantize", scheme.config)]
    rules += [_in_float(_NAMES.get(op, op), names) for op, names in kept]
    if scheme.is_calibrated:
        ends = (("INPUT", inputs), ("OUTPUT", outputs))
        rules += [_in_float(name, names) for name, names in ends if names]
    return rules


def _in_float(operation: str, names: Sequence[str]) -> dict[str, Any]:
    scope = "".join(f"{name};" for name in names if name)[:_MAX_SCOPE]
    return _rule(f"^{re.escape(scope)}$", operation, "no_quantize", {})


def _rule(regex: str, operation: str, algorithm: str, config: dict[str, Any]) -> dict[str, Any]:
    return {
        "regex": regex,
        "operation": operation,
        "algorithm_key": algorithm,
        "op_config": config,
    }
