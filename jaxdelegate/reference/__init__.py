"""The numpy CPU reference: an answer that shares no code with the lowerings."""

from jaxdelegate.reference.kernel import Folds as Folds
from jaxdelegate.reference.kernel import Kernel as Kernel
from jaxdelegate.reference.registry import KERNELS as KERNELS
