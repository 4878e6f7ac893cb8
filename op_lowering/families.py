"""The operator families: each is a folder of this package with every part of its operators.

A family's `options.py` has the table `RECORDS`, its modules `reference` and `reference_...` the
tables `KERNELS`, its other modules the tables `RULES` and `FUSED`.
"""

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from types import ModuleType

FAMILIES = (
    *("activation", "cast", "comparison", "control_flow", "convolution", "custom", "detection"),
    *("elementwise", "flex", "fused", "indexing", "layout", "lookup", "matmul"),
    *("normalization", "padding", "pooling", "random", "recurrent", "reduction", "resize"),
    *("resources", "segment", "shape", "signal", "slicing", "sorting", "sparse"),
    *("stablehlo", "text"),
)


def is_reference(module: str) -> bool:
    """Whether a family's module, named without its package, holds numpy kernels."""
    return module == "reference" or module.startswith("reference_")


def option_modules(families: Sequence[str] = FAMILIES) -> Iterator[ModuleType]:
    """The modules of options and records. They import no jax."""
    for family in families:
        yield importlib.import_module(f"jaxdelegate.op_lowering.{family}.options")


def reference_modules(families: Sequence[str] = FAMILIES) -> Iterator[ModuleType]:
    """The modules of numpy kernels. They import no jax."""
    return (_import(family, name) for family, name in _modules(families) if is_reference(name))


def rule_modules(families: Sequence[str] = FAMILIES) -> Iterator[ModuleType]:
    """The modules of rules and what rules use. They import jax."""
    for family, name in _modules(families):
        if name != "options" and not is_reference(name):
            yield _import(family, name)


def _modules(families: Sequence[str]) -> Iterator[tuple[str, str]]:
    for family in families:
        package = importlib.import_module(f"jaxdelegate.op_lowering.{family}")
        for module in pkgutil.iter_modules(package.__path__):
            yield family, module.name


def _import(family: str, name: str) -> ModuleType:
    return importlib.import_module(f"jaxdelegate.op_lowering.{family}.{name}")
