"""Analysis of a .tflite model: its contents and costs, what a delegate takes of it, and advice.

Names are loaded at their first use, because importing `costs` must not import jax.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxdelegate.analysis.analyzer import analyze_model
    from jaxdelegate.analysis.page import html_page
    from jaxdelegate.analysis.records import ModelAnalysis
    from jaxdelegate.costs import operator_cost

__all__ = ["ModelAnalysis", "analyze_model", "html_page", "operator_cost"]

_LAZY = {
    "ModelAnalysis": "records",
    "analyze_model": "analyzer",
    "html_page": "page",
    "operator_cost": "costs",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'jaxdelegate.analysis' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"jaxdelegate.analysis.{_LAZY[name]}"), name)
    globals()[name] = value
    return value
