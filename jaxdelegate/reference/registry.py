"""Every operator in numpy. Imports no jax.

A kernel is registered by standing in the table `KERNELS` of a module in one of the folders below.
"""

import importlib
import pkgutil
from collections.abc import Iterator

from jaxdelegate.reference.kernel import Kernel

FOLDERS = ("builtin", "conv", "matmul", "recurrent", "stablehlo")


def _kernels() -> Iterator[tuple[str, Kernel]]:
    """The rows of every module in these folders, in the order of their names."""
    for folder in FOLDERS:
        package = importlib.import_module(f"jaxdelegate.reference.{folder}")
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            yield from getattr(module, "KERNELS", {}).items()


KERNELS: dict[str, Kernel] = {}
for _name, _kernel in _kernels():
    if _name in KERNELS:
        raise ValueError(f"two modules have a kernel of {_name}")
    KERNELS[_name] = _kernel
