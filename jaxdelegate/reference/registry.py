"""Every operator in numpy. Imports no jax."""

from jaxdelegate.lazy_table import LazyTable
from jaxdelegate.op_lowering.families import FAMILIES
from jaxdelegate.reference.kernel import Kernel

KERNELS = LazyTable[Kernel](
    "jaxdelegate.reference",
    "KERNELS",
    FAMILIES,
    in_module={"composite": "control_flow", "pooling_argmax": "pooling"},
)
