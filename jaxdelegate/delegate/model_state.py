"""What a delegate keeps with an open model: resident weights, the latest programs by shape."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from jaxdelegate.cache.partition_key import KnownModel
from jaxdelegate.compiler.program import Program, ResidentWeights
from jaxdelegate.pjrt import client
from jaxdelegate.runtime.buffers import give_back

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, MutableMapping

    from jaxdelegate.delegate.target import Target
    from jaxdelegate.pjrt.client import Runtime


class ModelState:
    """Of one delegate and one subgraph of an open model."""

    def __init__(self) -> None:
        """Begin empty."""
        self._weights: dict[Runtime, ResidentWeights] = {}
        self.known = KnownModel()
        self._programs: OrderedDict[Hashable, Program] = OrderedDict()

    @classmethod
    def of(cls, shared: MutableMapping[Any, Any], delegate: object) -> ModelState:
        """The state of a delegate in a DelegateContext's `shared`; made at its first use."""
        state = shared.setdefault(delegate, cls())
        if not isinstance(state, cls):
            raise TypeError(f"context.shared[delegate] holds {type(state).__name__}")
        return state

    def on(self, where: Runtime) -> ResidentWeights:
        """The weights on a device."""
        return self._weights.setdefault(where, ResidentWeights(where))

    def weights(self, target: Target) -> Iterator[ResidentWeights]:
        """Where a stored program can be loaded: without jax, then with it."""
        first = target.runtime
        yield self.on(first)
        if not first.has_jax:
            yield self.on(client.of_jax(target.device))

    def forget(self) -> None:
        """Drop all programs."""
        self._programs.clear()

    def get(self, key: Hashable) -> Program | None:
        """The program of a partition for some shapes, if it is kept."""
        if key in self._programs:
            self._programs.move_to_end(key)
        return self._programs.get(key)

    def put(self, key: Hashable, program: Program, most: int) -> None:
        """Keep a program among the `most` latest; the one not used for longest gives way."""
        self._programs[key] = program
        if len(self._programs) > most:
            while len(self._programs) > most:
                self._programs.popitem(last=False)
            give_back()
