"""The table of all primitives."""

from jaxdelegate.conversion import (
    control_flow,
    elementwise,
    indexing,
    loaded,
    mathematics,
    movement,
    products,
    random_keys,
    windows,
)

_MODULES = (
    elementwise, mathematics, movement, products, windows, indexing, control_flow, loaded,
    random_keys,
)  # fmt: skip
PRIMITIVES = {p.name: p for module in _MODULES for p in module.PRIMITIVES}
