"""The arrays of caches, made and resized where programs run, and results that the host reads.

A device makes and resizes all of them in one program, so that their bytes never pass through the
host: for 64 sequences of a small model they are gigabytes. A CPU shares its memory with numpy.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxdelegate.lm.program_spec import Array
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.pjrt.client import Runtime, as_programs, on_purpose, viewed


def zeros(runtime: Runtime, arrays: Sequence[Array]) -> list[Any]:
    """Arrays of zeros."""
    if not is_on_device(runtime):
        return [runtime.put(np.zeros(*array)) for array in arrays]
    with as_programs(runtime.device):
        found: list[Any] = _jitted(_zeros)(tuple(arrays))
        return found


def resized(
    source: Runtime, target: Runtime, arrays: Sequence[Any], shapes: Sequence[Shape]
) -> list[Any]:
    """Arrays of one runtime in another one, cut or filled with zeros to these shapes."""
    if source is target and is_on_device(target):
        with as_programs(target.device):
            found: list[Any] = _jitted(_resized)(tuple(shapes), arrays)
            return found
    pairs = zip(arrays, shapes, strict=True)
    return [target.put(_fitting(np, viewed(array), shape)) for array, shape in pairs]


def with_row(runtime: Runtime, array: Any, number: int, row: np.ndarray) -> Any:
    """A copy of an array with another row."""
    if is_on_device(runtime):
        with as_programs(runtime.device):
            return _jitted(_with_row)((number,), array, row)
    copy = np.array(viewed(array))
    copy[number] = row
    return runtime.put(copy)


def fetched(runtime: Runtime, array: Any) -> np.ndarray:
    """A result as an array of numpy; a device copies it right behind the program."""
    if is_on_device(runtime):
        with on_purpose():
            array.copy_to_host_async()
    return viewed(array)


def is_on_device(runtime: Runtime) -> bool:
    """Whether arrays are in the memory of a device, where jax makes them."""
    return runtime.has_jax and runtime.device.platform != "cpu"


@functools.cache
def _jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    import jax  # noqa: PLC0415 (only other devices than the CPU need it)

    return jax.jit(function, static_argnums=0)


def _zeros(arrays: Sequence[Array]) -> list[Any]:
    import jax.numpy as jnp  # noqa: PLC0415 (as above)

    return [jnp.zeros(*array) for array in arrays]


def _resized(shapes: Sequence[Shape], arrays: Sequence[Any]) -> list[Any]:
    import jax.numpy as jnp  # noqa: PLC0415 (as above)

    return [_fitting(jnp, array, shape) for array, shape in zip(arrays, shapes, strict=True)]


def _with_row(place: tuple[int], array: Any, row: Any) -> Any:
    return array.at[place].set(row)


def _fitting(numpy: Any, array: Any, shape: Shape) -> Any:
    """`numpy`: or jax.numpy."""
    kept = array[tuple(map(slice, shape))]
    ends = zip(kept.shape, shape, strict=True)
    return numpy.pad(kept, [(0, new - old) for old, new in ends])
