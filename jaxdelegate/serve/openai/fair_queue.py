"""The queue of prompts that wait for a free slot: addresses take turns, and then their keys."""

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from jaxdelegate.serve.clients import Client


class _HasClient(Protocol):
    @property
    def client(self) -> Client: ...


_LOOKED_AT = 8  # items of a client: others wait while they are looked at
T = TypeVar("T", bound=_HasClient)
_Keys = collections.OrderedDict[str, collections.deque[T]]


class FairQueue(Generic[T]):
    """Takes the next item of each address in turn, and of each of its keys in turn.

    The items of one client keep their order. Keys are not checked, so an address may have many.
    """

    def __init__(self) -> None:
        self._waiting: collections.OrderedDict[str, _Keys[T]] = collections.OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def _first(self, most: int | None = None) -> Iterator[T]:
        """The first items of each client, those first whose turn it is."""
        clients = (items for keys in self._waiting.values() for items in keys.values())
        return (item for items in clients for item in itertools.islice(items, most))

    def add(self, items: Iterable[T]) -> None:
        for item in items:
            keys = self._waiting.setdefault(item.client.address, _Keys[T]())
            keys.setdefault(item.client.key, collections.deque()).append(item)
            self._count += 1

    def take(self, may_go: Callable[[T], bool]) -> T | None:
        """Remove the next item of those that may go; None: none of the first ones may."""
        taken = next((item for item in self._first(_LOOKED_AT) if may_go(item)), None)
        if taken is not None:
            self.remove(taken)
            address, key = taken.client
            if address in self._waiting:
                self._waiting.move_to_end(address)
                if key in self._waiting[address]:
                    self._waiting[address].move_to_end(key)
        return taken

    def remove(self, item: T) -> bool:
        """Remove an item; False: it does not wait."""
        address, key = item.client
        keys = self._waiting.get(address, _Keys[T]())
        items = keys.get(key, collections.deque[T]())
        if item not in items:
            return False
        items.remove(item)
        if not items:
            del keys[key]
        if not keys:
            del self._waiting[address]
        self._count -= 1
        return True

    def displaced_by(self, client: Client, count: int) -> T | None:
        """The newest item of who has more than a client will have with `count` more."""
        sizes = {a: sum(map(len, keys.values())) for a, keys in self._waiting.items()}
        largest = max(sizes, key=sizes.__getitem__, default="")
        if sizes.get(largest, 0) > sizes.get(client.address, 0) + count:
            return max(self._waiting[largest].values(), key=len)[-1]
        keys = self._waiting.get(client.address, _Keys[T]())
        most = max(keys.values(), key=len, default=collections.deque[T]())
        return most[-1] if len(most) > len(keys.get(client.key, ())) + count else None

    def clear(self) -> list[T]:
        items = list(self._first())
        self._waiting.clear()
        self._count = 0
        return items
