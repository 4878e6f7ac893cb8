"""Arrays that users keep on a device: jax's, and by DLPack those of other libraries.

It imports jax only when it is given such an array, so that stored programs run without jax.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from jaxdelegate.errors import TensorError
from jaxdelegate.pjrt import client, jax_settings

if TYPE_CHECKING:
    import jax

# DLPack's numbers for memory that the host reads: kDLCPU, kDLCUDAHost, kDLROCMHost.
_HOST_MEMORY = (1, 3, 11)


def lies_on_device(value: Any) -> bool:
    """Whether it is a jax array (of a CPU too), or a DLPack array that the host cannot read."""
    if isinstance(value, np.ndarray):
        return False
    if client.is_device_array(value):
        return True
    where = getattr(value, "__dlpack_device__", None)
    return where is not None and where()[0] not in _HOST_MEMORY


def taken(value: Any) -> np.ndarray | jax.Array:
    """A user's array: a jax array unchanged, another library's device array copied on its device.

    Arrays of jax are immutable, so they need no copy. Everything else becomes a numpy array.

    Raises:
        TensorError: jax has no such device, or not that dtype.
    """
    if isinstance(value, np.ndarray):
        return value
    if not lies_on_device(value):
        is_dlpack_only = hasattr(value, "__dlpack__") and not hasattr(value, "__array__")
        return np.from_dlpack(value) if is_dlpack_only else np.asarray(value)
    if client.is_device_array(value):
        array: jax.Array = value
        return array
    imported = jax_settings.import_jax()
    try:
        with imported.enable_x64(True):  # else 64-bit types are cut
            copied: jax.Array = imported.dlpack.from_dlpack(value).copy()
    except (RuntimeError, TypeError, ValueError) as error:
        raise TensorError(
            f"Cannot set tensor: jax cannot take this {type(value).__name__} by DLPack: {error}; "
            "give it as a numpy array"
        ) from error
    return copied


def placed(array: Any, device: Any) -> jax.Array:
    """The array on a device; None: its own, or jax's default for one of numpy, which is copied."""
    if not client.is_device_array(array):
        return lent(np.array(array), device)  # on a CPU jax reads the memory that it is given
    if device is not None and not client.of_jax(device).holds(array):
        return lent(array, device)
    result: jax.Array = array
    return result


def lent(array: Any, device: Any) -> jax.Array:
    """The array on a device, without a copy in host memory; the transfer may still be running.

    Do not modify a numpy array until a result computed from it is available: on a CPU jax may read
    its memory, elsewhere XLA copies it in another thread.
    """
    imported = jax_settings.import_jax()
    with imported.enable_x64(True):
        result: jax.Array = imported.device_put(array, device)
    return result
