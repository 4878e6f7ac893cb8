"""Every operator in numpy, written out. Imports no jax."""

from jaxdelegate.reference import resize
from jaxdelegate.reference.kernel import Kernel

# Custom operators stand under their custom name.
KERNELS: dict[str, Kernel] = {
    # resize
    "RESIZE_BILINEAR": Kernel(resize.resize_bilinear, resize.resized_shape),
}
