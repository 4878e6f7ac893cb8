"""How rules call this package's CPU kernels."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxdelegate.op_lowering.spec import Shape


def native_call(
    target: str, shape: Shape, dtype: Any = np.float32, /, **attributes: Any
) -> Callable[..., jax.Array]:
    """The function of arrays that calls a kernel, whose result has this shape and dtype.

    `target` is one of the names in kernels/library.py. `attributes`, int64 or float32 arrays, are
    what that kernel reads besides (kernels.h). `jax.vmap` calls the kernel for each item.
    """
    y_type = jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]
    call = jax.ffi.ffi_call(target, y_type, vmap_method="sequential")
    return functools.partial(call, **attributes)
