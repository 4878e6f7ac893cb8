"""Every operator in numpy. Imports no jax.

A kernel is registered by its row in the table `KERNELS` of a reference module of its family.
"""

from jaxdelegate.op_lowering.families import reference_modules
from jaxdelegate.reference.kernel import Kernel

KERNELS: dict[str, Kernel] = {}
for _module in reference_modules():
    for _name, _kernel in getattr(_module, "KERNELS", {}).items():
        if _name in KERNELS:
            raise ValueError(f"two modules have a kernel of {_name}")
        KERNELS[_name] = _kernel
