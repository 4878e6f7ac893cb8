"""The numpy CPU reference. It imports no jax; rules and it share options, specs and `quant/` only.

The kernels are in the folders of `jaxdelegate.op_lowering`; this package has their common parts.
"""

from typing import TYPE_CHECKING, Any

from jaxdelegate.reference.kernel import Folds as Folds
from jaxdelegate.reference.kernel import Kernel as Kernel

if TYPE_CHECKING:
    from jaxdelegate.reference.registry import KERNELS as KERNELS


def __getattr__(name: str) -> Any:
    # Imported late, since the kernels import this package.
    if name != "KERNELS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from jaxdelegate.reference.registry import KERNELS  # noqa: PLC0415

    return KERNELS
