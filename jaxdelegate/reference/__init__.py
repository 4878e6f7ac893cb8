"""The numpy CPU reference: it shares no code with the lowerings. Imports no jax.

The kernels are in the folders of `jaxdelegate.op_lowering`; what they share is here.
"""

from typing import TYPE_CHECKING, Any

from jaxdelegate.reference.kernel import Folds as Folds
from jaxdelegate.reference.kernel import Kernel as Kernel

if TYPE_CHECKING:
    from jaxdelegate.reference.registry import KERNELS as KERNELS


def __getattr__(name: str) -> Any:
    # Late, since the kernels import this package.
    if name != "KERNELS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from jaxdelegate.reference.registry import KERNELS  # noqa: PLC0415

    return KERNELS
