"""Uses of private names of jax; pjrt/client.py has those of jaxlib, and one of jax."""

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax.monitoring
import numpy as np
from jax._src import config

# jax imports these late, when it first lowers, where a signal could cut the imports short.
for _late in ("arith", "builtin", "func", "mhlo"):
    with contextlib.suppress(ImportError):
        importlib.import_module(f"jaxlib.mlir.dialects.{_late}")


class _Hits(threading.local):
    """The number of compilations of this thread that JAX's own cache saved."""

    count = 0


_HITS = _Hits()


def _listen(event: str, **_: object) -> None:
    if event == "/jax/compilation_cache/cache_hits":
        _HITS.count += 1


jax.monitoring.register_event_listener(_listen)


@contextlib.contextmanager
def watch_jax_cache() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether JAX's own compilation cache was hit since then.

    XLA:CPU cannot serialize a program that it has loaded: the result lacks the code.
    """
    before = _HITS.count
    yield lambda: _HITS.count > before


def without_source_lines() -> contextlib.AbstractContextManager[Any]:
    """Lower programs without the lines of Python that they come from.

    Operators keep their names. A stored program loads in a quarter less time and does not contain
    the paths of its callers.
    """
    limit = getattr(config, "traceback_in_locations_limit", None)
    return contextlib.nullcontext() if limit is None else limit(0)


def ffi_attributes(eqn: Any) -> dict[str, np.ndarray]:
    """The arrays among the attributes of a traced `jax.ffi.ffi_call`, by name and in its order."""
    return {name: hashable.val for name, hashable in eqn.params["attributes"]}
