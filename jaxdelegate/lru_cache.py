"""A cache that drops what was not used for longest, and computes each entry once."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """The entries used last, by key. Threads that ask for a missing entry at once compute it once.

    Entries of different keys may be computed at the same time.
    """

    def __init__(self, most: int) -> None:
        """Start empty; `most`: how many entries are kept of each part."""
        self._most = most
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._computing: dict[K, threading.RLock] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def known(self) -> list[K]:
        """The keys of all entries, the one used last at the end."""
        with self._lock:
            return list(self._entries)

    def part(self, key: K) -> Hashable:  # noqa: ARG002 (for subclasses)
        """The part of the cache that an entry belongs to; by default all are in one."""
        return None

    def values(self) -> list[V]:
        """All entries, the one used last at the end."""
        with self._lock:
            return list(self._entries.values())

    def get(self, key: K, compute: Callable[[], V]) -> V:
        """The entry of this key, computed if it is missing.

        An error of `compute` is raised, and leaves no entry: the next caller tries again.
        """
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key]
            turn = self._computing.setdefault(key, threading.RLock())
        with turn:
            with self._lock:
                if key in self._entries:  # another thread computed it meanwhile
                    return self._entries[key]
            try:
                value = compute()
                with self._lock:
                    self._entries[key] = value
            finally:
                with self._lock:
                    self._computing.pop(key, None)
        self._drop_surplus(self.part(key))
        return value

    def _drop_surplus(self, part: Hashable) -> None:
        """Drop the entries of a part that were not used for longest."""
        with self._lock:
            entries = [key for key in self._entries if self.part(key) == part]
            surplus = entries[: max(len(entries) - self._most, 0)]
            for key in surplus:
                del self._entries[key]
        if surplus:
            give_back()

    def clear(self) -> None:
        """Drop all entries."""
        with self._lock:
            self._entries.clear()

    def drop_oldest(self) -> None:
        """Drop the entry that was not used for longest."""
        with self._lock:
            if self._entries:
                self._entries.popitem(last=False)
        give_back()


def give_back() -> None:
    """Return freed memory to the system, where the C library is glibc.

    What XLA frees of a program is scattered among what it keeps, and glibc would hold on to it:
    hundreds of megabytes after hundreds of programs (bench/limits.py).
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
