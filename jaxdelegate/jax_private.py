"""The one place that leans on jax's private side: executables as bytes, settings by name.

`jax.experimental.serialize_executable` pickles an executable together with what jax knows of its
arguments. Here it is unpickled with a list of what a pickle may name, for the device that is meant;
the argument trees are always the same flat tuples and are not stored.
"""

import contextlib
import enum
import io
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.monitoring
import numpy as np
from jax._src import config
from jax.experimental import serialize_executable

# What loading may raise on bytes that are no executable of this jax: a miss, whatever it was.
LOAD_ERRORS = (
    pickle.PickleError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ImportError,
    EOFError,
    ArithmeticError,
    AssertionError,
    MemoryError,
    OSError,
)

_ALLOWED = frozenset(
    {
        ("jax", "P"),
        ("jax._src.core", "ManualAxisType"),
        ("jax._src.core", "MemorySpace"),
        ("jax._src.core", "ShapedArray"),
        ("jax._src.interpreters.pxla", "AllArgsInfo"),
        ("jax._src.interpreters.pxla", "UnloadedMeshExecutable"),
        ("jax._src.layout", "AutoLayoutSingleton"),
        ("jax._src.layout", "Format"),
        ("jax._src.layout", "Layout"),
        ("jax._src.linear_util", "DebugInfo"),
        ("jax._src.mesh", "AbstractMesh"),
        ("jax._src.mesh", "AxisType"),
        ("jax._src.named_sharding", "_unpickle_named_sharding"),
        ("jax._src.partition_spec", "PartitionSpec"),
        ("jax._src.partition_spec", "UnreducedKind"),
        ("jax._src.sharding_impls", "_unpickle_single_device_sharding"),
        ("jax._src.stages", "ArgInfo"),
        ("jaxlib._jax", "DeviceList"),
        ("ml_dtypes", "bfloat16"),
        ("ml_dtypes", "int2"),
        ("ml_dtypes", "int4"),
        ("ml_dtypes", "uint4"),
        ("numpy", "dtype"),
    }
)


# Python 3.11.0 to 3.11.3 pickle a member of an enumeration as getattr(class, name).
_GETATTR = ("builtins", "getattr")


def _check(module: str, name: str) -> None:
    if (module, name) not in _ALLOWED and (module, name) != _GETATTR:
        raise pickle.UnpicklingError(f"a stored program must not name {module}.{name}")


def _member(kind: Any, name: str) -> Any:
    """What stands for getattr: a member of an enumeration, and nothing else."""
    if not (isinstance(kind, enum.EnumMeta) and name in kind.__members__):
        raise pickle.UnpicklingError(f"a stored program must not name {kind!r}.{name}")
    return kind[name]


class _Unpickler(serialize_executable._JaxPjrtUnpickler):
    def find_class(self, module: str, name: str) -> Any:
        _check(module, name)
        return _member if (module, name) == _GETATTR else super().find_class(module, name)


class _Anything:
    """Stands for every object while only the names in a pickle are looked at."""

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


class _Names(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        _check(module, name)
        return _Anything

    def persistent_load(self, pid: Any) -> Any:
        return pid[0]


def dump_executable(compiled: Any) -> bytes:
    """An executable that `jax.stages.Lowered.compile` made, as bytes.

    Raises:
        ValueError: its platform cannot serialize it.
        NotImplementedError: it holds constants of the caller.
        UnpicklingError: this jax names what `load_executable` would not take.
    """
    content = bytes(serialize_executable.serialize(compiled)[0])
    _Names(io.BytesIO(content)).load()
    return content


def load_executable(
    content: bytes | memoryview, device: jax.Device, n_in: int, n_out: int
) -> Callable[..., Any]:
    """The executable behind `dump_executable`, on `device`; nothing is traced or compiled.

    Args:
        content: what `dump_executable` answered. It becomes machine code: check where it comes
            from first.
        device: where it will run; it must have been compiled for that device.
        n_in: how many arrays it takes.
        n_out: how many it returns.

    Raises:
        LOAD_ERRORS: the bytes are no executable of this jax, or name what they must not.
    """
    unpickler = _Unpickler(io.BytesIO(content), device.client, [device])  # type: ignore[no-untyped-call]
    unloaded, arguments, no_kwargs = unpickler.load()
    in_tree, out_tree = _tree(((0,) * n_in, {})), _tree((0,) * n_out)
    return jax.stages.Compiled(
        unloaded.load(), [], in_tree.unflatten(arguments), out_tree, no_kwargs=no_kwargs
    )


class _Hits(threading.local):
    """How many compilations JAX's own cache has answered in this thread."""

    count = 0


_HITS = _Hits()


def _listen(event: str, **_: object) -> None:
    if event == "/jax/compilation_cache/cache_hits":
        _HITS.count += 1


jax.monitoring.register_event_listener(_listen)


@contextlib.contextmanager
def watch_jax_cache() -> Iterator[Callable[[], bool]]:
    """Answers whether JAX's own compilation cache was the source of anything since.

    XLA:CPU does not write out what it has read: `dump_executable` of such a one lacks its code.
    """
    before = _HITS.count
    yield lambda: _HITS.count > before


def without_source_lines() -> contextlib.AbstractContextManager[Any]:
    """While it lowers, jax leaves out of programs which lines of Python they come from.

    Operators keep their names. A stored program takes a quarter less time to load, and does not
    name the files of its callers.
    """
    limit = getattr(config, "traceback_in_locations_limit", None)
    return contextlib.nullcontext() if limit is None else limit(0)


def config_values() -> dict[str, Any]:
    """JAX's settings by name, as local contexts have set them."""
    return {name: getattr(jax.config, name, value) for name, value in jax.config.values.items()}


def _tree(value: Any) -> Any:
    return jax.tree_util.tree_structure(value)


def ffi_attributes(eqn: Any) -> dict[str, np.ndarray]:
    """The arrays among the attributes of a traced `jax.ffi.ffi_call`, by name and in its order."""
    return {name: hashable.val for name, hashable in eqn.params["attributes"]}
