"""Says once that a graph is compiled for one shape after the other, and what helps."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Hashable, MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxdelegate.simple_delegate import GraphKey

_LOGGER = logging.getLogger("jaxdelegate")
_FEW = 4  # shapes that a program may compile without being told


class VaryingShapes:
    """Counts the shapes that partitions were compiled for, and warns once for each graph."""

    def __init__(self, most: int) -> None:
        """`most`: the option `max_programs`, which the warning names."""
        self._most = most
        # Of each model, by graph and partition: seconds of compiling for each shape.
        self._seconds: MutableMapping[Any, dict[Hashable, dict[Hashable, float]]] = (
            weakref.WeakKeyDictionary()
        )
        self._warned: MutableMapping[Any, set[Hashable]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def compiled(
        self, graph: GraphKey, partition: Hashable, shapes: Hashable, seconds: float
    ) -> None:
        """Count that a partition of a graph was compiled for these shapes, in these seconds."""
        with self._lock:
            warned = self._warned.setdefault(graph.model, set())
            if graph.entry in warned:
                return
            of_model = self._seconds.setdefault(graph.model, {})
            by_shape = of_model.setdefault((graph.entry, partition), {})
            by_shape[shapes] = by_shape.get(shapes, 0.0) + seconds
            if len(by_shape) <= _FEW:
                return
            warned.add(graph.entry)
        _LOGGER.warning(
            "%s: XLA compiled %d programs for as many input shapes, in %.1f s; it compiles for "
            "every new shape. If shapes go on changing: use a few sizes only (for batches "
            "JaxDelegate(pad_batch=True) with jaxdelegate.Interpreter); keep programs (delegates: "
            "max_programs=%d, and serialization_dir for later processes; functions: JAX's "
            "jax_compilation_cache_dir); or run this model without the delegate, because LiteRT's "
            "kernels are not compiled for shapes",
            graph.name or "the model",
            len(by_shape),
            sum(by_shape.values()),
            self._most,
        )
