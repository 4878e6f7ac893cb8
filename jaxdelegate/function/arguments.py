"""Checks the arguments of a model's function: inputs, parameters and state."""

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.errors import TensorError
from jaxdelegate.function.records import Params
from jaxdelegate.model.records import Tensor
from jaxdelegate.op_lowering.common.quantized_cache import QuantizedCache
from jaxdelegate.op_lowering.dtypes import HALVES
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.pjrt import client
from jaxdelegate.plan.fitting import grid, remedy

_WIDE = frozenset(map(np.dtype, (np.int64, np.uint64, np.float64, np.complex128)))
_SOURCES = {"params": "model.function()", "state": "model.initial_state()"}


def check_names(what: str, value: Any, wanted: Collection[str]) -> None:
    """Check that `value`, the argument "params" or "state", is a dictionary with these names."""
    if not isinstance(value, Mapping):
        raise TensorError(
            f"apply(params, *inputs, state=None): expected {what} to be a dictionary by tensor "
            f"name, as {_SOURCES[what]} returns it, got {type(value).__name__}"
        )
    missing = [name for name in wanted if name not in value]
    if missing:
        raise TensorError(
            f"apply: {what} has no {missing[0]!r}, and lacks {len(missing)} of {len(wanted)} "
            f"names; {_SOURCES[what]} returns all of them"
        )


def selected(what: str, value: Any, shapes: Mapping[str, Shape]) -> Params:
    """Select arrays of these names and shapes from the argument `what`, see `check_names`."""
    check_names(what, value, shapes)
    for name, shape in shapes.items():
        check_alive(f"apply: {what}", name, value[name])
        if (got := jnp.shape(value[name])) != shape:
            raise TensorError(
                f"apply: {what}[{name!r}]: expected the shape {list(shape)}, got {list(got)}"
            )
    return {name: value[name] for name in shapes}


def check_leaves(call: str, value: Any) -> None:
    """Check that the `params` of a call are a dictionary."""
    if not isinstance(value, Mapping):
        remedy = "; pass its .params" if hasattr(value, "params") else ""
        raise TypeError(
            f"{call}: expected params to be a dictionary of arrays by name, as model.params, got "
            f"{type(value).__name__}{remedy}"
        )


def check_saved(call: str, path: Any, params: Any) -> None:
    """Check that the arguments of a `save` are in the order that `call` shows."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{call}: expected path to be that of a file, got {type(path).__name__}")
    if params is not None:
        check_leaves(call, params)


def check_alive(what: str, name: str, leaf: Any) -> None:
    """Check that a leaf, `what[name]`, was not donated to a jitted function."""
    if isinstance(leaf, jax.Array) and not is_traced(leaf) and leaf.is_deleted():
        raise TensorError(
            f"{what}[{name!r}] has been deleted, because it was donated to a jitted function "
            "(donate_argnums): use the array that this function returned instead; the file's "
            "weights are in jaxdelegate.load(path).params"
        )


def fitting(tensor: Tensor, x: Any, io: str, *, may_be_symbolic: bool = False) -> Any:
    """An input, an array or numbers, as an array of the tensor's dtype.

    `io`: as that of `Mode`.
    """
    if io == "reduced" and isinstance(x, QuantizedCache):
        return x
    dtype = dtype_of(tensor, io)
    array = x if isinstance(x, jax.Array | np.ndarray) else _as_array(x, dtype)
    if dtype.hasobject and array.dtype.kind in "SU":  # the DelegationError says more of strings
        array = array.astype(object)
    is_narrowed = array.dtype.kind == dtype.kind and isinstance(x, jax.Array)
    if array.dtype != dtype and is_narrowed and dtype in _WIDE:
        with jax.enable_x64(True), client.on_purpose():  # JAX has no such arrays otherwise
            return jnp.asarray(array, dtype)
    is_reduced = io == "reduced" and dtype == np.float32 and array.dtype in HALVES
    if array.dtype != dtype and not is_reduced:
        what_to_do = remedy(array.dtype, array.shape, dtype, tensor.shape)
        if io == "file" and (of_grid := grid(array.dtype, tensor.spec())):
            what_to_do = f"{of_grid}, or x itself to the apply of model.function(io='float')"
        raise TensorError(
            f"input {tensor.index} {tensor.name!r} wants {dtype} {list(tensor.shape)}, "
            f"got {array.dtype} {list(array.shape)}{what_to_do}"
        )
    symbols = [(axis, str(n)) for axis, n in enumerate(array.shape) if not isinstance(n, int)]
    if symbols and not may_be_symbolic:
        axis, symbol = symbols[-1]
        what_to_do = "for a symbolic batch use model.batched('b')"
        if axis > 0:
            what_to_do = "only a batch can be symbolic, so export once for each size"
        raise TensorError(
            f"input {tensor.index} {tensor.name!r} has the symbolic dimension {symbol!r}; models "
            f"are lowered for known sizes: {what_to_do}"
        )
    return array


def dtype_of(tensor: Tensor, io: str) -> np.dtype:
    """An input's dtype; with `io="float"`, float32 for quantized inputs."""
    is_float = io == "float" and tensor.spec().is_quantized
    return np.dtype(np.float32) if is_float else tensor.dtype


def _as_array(x: Any, dtype: np.dtype) -> np.ndarray:
    """An array of the tensor's dtype from numbers or lists of them, unless floats became integers.

    Other objects keep the dtype of their numpy array.
    """
    array = np.asarray(x)
    is_number = array.dtype.kind in "iuf" and dtype.kind in "iuf"
    if not isinstance(x, int | float | list | tuple) or not is_number:
        return array
    return array if array.dtype.kind == "f" and dtype.kind != "f" else np.asarray(x, dtype)


def device_of(arrays: Sequence[Any], platform: str | None) -> jax.Device | None:
    """The device to run on; None for traced arrays, and for arrays on several devices."""
    if any(map(is_traced, arrays)):
        return None
    devices = {d for a in arrays if isinstance(a, jax.Array) and a.committed for d in a.devices()}
    if len(devices) > 1:
        return None
    return next(iter(devices), None) or _default_device(platform)


def is_traced(x: Any) -> bool:
    return isinstance(x, jax.core.Tracer)


def _default_device(platform: str | None) -> jax.Device:
    """The platform's first device; without a platform, JAX's default device."""
    chosen = jax.config.jax_default_device  # type: ignore[attr-defined]
    if platform is not None:
        return jax.local_devices(backend=platform)[0]
    if chosen is None or isinstance(chosen, str):
        return jax.local_devices(backend=chosen)[0]
    return chosen
