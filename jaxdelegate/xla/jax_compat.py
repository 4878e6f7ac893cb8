"""The one place that leans on jax's private side; jaxlib's is pjrt/client.py's."""

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

    XLA:CPU does not write out what it has read: what is serialized of such a one lacks its code.
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


def ffi_attributes(eqn: Any) -> dict[str, np.ndarray]:
    """The arrays among the attributes of a traced `jax.ffi.ffi_call`, by name and in its order."""
    return {name: hashable.val for name, hashable in eqn.params["attributes"]}
