"""The queue of prompts that wait for a free slot: clients take turns."""

import collections
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar


class _HasClient(Protocol):
    client: str


T = TypeVar("T", bound=_HasClient)


class FairQueue(Generic[T]):
    """Takes the next item of each client in turn; the items of one client in their order."""

    def __init__(self) -> None:
        self._waiting: collections.OrderedDict[str, collections.deque[T]] = (
            collections.OrderedDict()
        )
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, items: Iterable[T]) -> None:
        """Append items, each for its client."""
        for item in items:
            self._waiting.setdefault(item.client, collections.deque()).append(item)
            self._count += 1

    def pop(self) -> T:
        """Remove the next item; the queue must not be empty."""
        client, items = self._waiting.popitem(last=False)
        if len(items) > 1:
            self._waiting[client] = items  # behind the others
        self._count -= 1
        return items.popleft()

    def remove(self, item: T) -> bool:
        """Remove an item; False: it does not wait."""
        items = self._waiting.get(item.client, ())
        if item not in items:
            return False
        items.remove(item)  # type: ignore[union-attr]
        if not items:
            del self._waiting[item.client]
        self._count -= 1
        return True

    def clear(self) -> list[T]:
        """Remove and return all items."""
        found = [item for items in self._waiting.values() for item in items]
        self._waiting.clear()
        self._count = 0
        return found
