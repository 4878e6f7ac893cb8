"""Compiled programs in memory: one for all callers that run a graph with the same options.

Programs belong to the model, not to an interpreter, a delegate or a function: the second caller
gets the program of the first. They are freed with the last compiler that uses them, or the model.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxdelegate.cache.constants import ConstantDigests
from jaxdelegate.cache.partition_key import KnownModel
from jaxdelegate.device_weights import ModelWeights
from jaxdelegate.lru_cache import LruCache
from jaxdelegate.pjrt import client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxdelegate.compile.target import Target
    from jaxdelegate.options import DelegateOptions
    from jaxdelegate.passes.batch_slices import BatchSlices
    from jaxdelegate.pjrt.client import Runtime
    from jaxdelegate.program import Program
    from jaxdelegate.xla.over_mesh import OverMesh


class ProgramKey(NamedTuple):
    """A partition, and all that its program depends on besides the options."""

    nodes: tuple[int, ...]
    shapes: Hashable
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    slices: BatchSlices | None = None
    over: OverMesh | None = None

    @property
    def partition(self) -> Hashable:
        """Which partition it is: its first node, because others may vary with the shapes."""
        return self.nodes[:1]


class RecentPrograms(LruCache[ProgramKey, "Program"]):
    """The programs of each partition for the latest shapes."""

    def part(self, key: ProgramKey) -> Hashable:
        return key.partition


class ModelPrograms:
    """The programs of one model by options and graph: those in use, and recent ones."""

    def __init__(self) -> None:
        self._recent: MutableMapping[tuple[Hashable, Hashable], RecentPrograms] = (
            weakref.WeakValueDictionary()
        )
        self._in_use: MutableMapping[tuple[Hashable, Hashable], Program] = (
            weakref.WeakValueDictionary()
        )
        self._lock = threading.Lock()

    def recent(self, group: Hashable, options: DelegateOptions) -> RecentPrograms:
        """The programs of a group for the latest shapes; kept as long as a caller holds the cache.

        A group is options and a graph; the options also say how many programs are kept.
        """
        limits = options.max_programs, options.max_program_bytes
        with self._lock:
            return self._recent.setdefault((group, limits), RecentPrograms(options.max_programs))

    def get(
        self,
        group: Hashable,
        key: Any,
        recent: LruCache[Any, Program],
        most_bytes: float,
        compute: Callable[[], Program],
    ) -> Program:
        """A program, compiled if it is missing; threads that ask for it at once compile it once.

        `recent` are the programs of the group that the caller keeps, of which idle ones may hold
        `most_bytes`: see `drop_idle`.
        """
        known = self._in_use.get((group, key))
        if known is not None and known.is_deleted:
            self.forget(group, known)

        is_new = False

        def shared() -> Program:
            nonlocal is_new
            is_new = True
            # Another thread, or one with other limits, may have compiled it meanwhile.
            program = self._in_use.get((group, key)) or compute()
            with self._lock:
                return self._in_use.setdefault((group, key), program)

        program = recent.get(key, shared)
        if is_new:
            drop_idle(recent, most_bytes)
        return program

    def forget(self, group: Hashable, program: Program) -> None:
        """Drop the programs of a group, if this program is one of them."""
        with self._lock:
            of_group = {key: p for key, p in self._in_use.items() if key[0] == group}
            if all(p is not program for p in of_group.values()):
                return  # other callers have dropped it already
            for key in of_group:
                del self._in_use[key]
            for (name, _), recent in self._recent.items():
                if name == group:
                    recent.clear()


def drop_idle(kept: LruCache[Any, Program], most: float) -> None:
    """Evict the least recently used programs while they hold too much that the latest does not.

    `most` is in bytes of machine code and weights.
    """
    while len(kept) > 1:
        *idle, latest = kept.values()
        own = {id(array) for array in latest.weights}
        arrays = {id(a): client.nbytes(a) for p in idle for a in p.weights if id(a) not in own}
        if sum(arrays.values()) + sum(p.code_bytes for p in idle) <= most:
            return
        kept.drop_oldest()


_OF_MODELS: MutableMapping[Any, ModelPrograms] = weakref.WeakKeyDictionary()
_OF_CONTENTS: MutableMapping[str, ModelPrograms] = weakref.WeakValueDictionary()
_MAKING = threading.Lock()


def programs_of(model: Any) -> ModelPrograms:
    """The programs of a model: see `jaxdelegate.simple_delegate.GraphKey`."""
    with _MAKING:
        return _OF_MODELS.setdefault(model, ModelPrograms())


def programs_of_content(digest: str) -> ModelPrograms:
    """The programs of models that may not have been read, by the digest of their files."""
    with _MAKING:
        return _OF_CONTENTS.setdefault(digest, ModelPrograms())


class GraphState:
    """What a compiler remembers of an open graph: digests of constants, and names of weights."""

    def __init__(self, constants: ConstantDigests | None = None) -> None:
        self.known = KnownModel(constants)
        self._weights: dict[Runtime, ModelWeights] = {}

    @classmethod
    def of(cls, shared: MutableMapping[Any, Any], key: Hashable) -> GraphState:
        """The state in a DelegateContext's `shared`; created at its first use."""
        state = shared.get(key)
        if state is None:
            constants = shared.setdefault(ConstantDigests, ConstantDigests())
            state = shared.setdefault(key, cls(constants))
        if not isinstance(state, cls):
            raise TypeError(f"context.shared[{key!r}] holds {type(state).__name__}")
        return state

    def on(self, where: Runtime) -> ModelWeights:
        return self._weights.setdefault(where, ModelWeights(where))

    def weights(self, target: Target) -> Iterator[ModelWeights]:
        """Where a stored program can be loaded: without jax, then with it."""
        first = target.runtime
        yield self.on(first)
        if not first.has_jax:
            yield self.on(client.of_jax(target.device))
