"""How many bytes of bodies, results and answers a server holds at a time; more of them wait."""

import asyncio
from collections.abc import Callable

from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.records import RequestError

SMALL = 1 << 16  # bytes of a body or an answer that is held in any case
_RESULTS = 3  # as many bytes of arrays as of bodies, or of answers: a queue of them makes batches


class Room:
    """Bytes of one kind, for one event loop.

    Attributes:
        most: how many may be held.
        used: how many are.
    """

    def __init__(self, what: str, most: int, seconds: float | None) -> None:
        """Hold nothing.

        Args:
            what: is held, for messages.
            most: bytes that may be.
            seconds: that others wait; None: any time.
        """
        self.most, self.used = most, 0
        self._what, self._seconds = what, seconds
        self._change = asyncio.Condition()
        self._waiting = 0

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more may be held."""
        return self.used + size <= self.most

    async def wait(self, is_free: Callable[[], bool]) -> None:
        """Wait until something is so.

        Raises:
            RequestError: 503: it took too long.
        """
        self._waiting += 1
        try:
            async with asyncio.timeout(self._seconds), self._change:
                await self._change.wait_for(is_free)
        except TimeoutError:
            raise RequestError(
                f"the server holds as many bytes of other {self._what} as it may (max_held_bytes, "
                f"{self.most}); try again later",
                503,
            ) from None
        finally:
            self._waiting -= 1

    async def give(self, size: int) -> None:
        """Hold so many bytes less."""
        self.used -= size
        if self._waiting:
            async with self._change:
                self._change.notify_all()


class Share:
    """What one request holds of a room, until it is answered."""

    def __init__(self, room: Room) -> None:
        """Nothing."""
        self._room, self._size = room, 0

    async def take(self, size: int) -> None:
        """Hold so many bytes; where there is no room, wait for it.

        One share may be larger than the room: else it would wait for ever.

        Raises:
            RequestError: 503: that took too long.
        """
        room = self._room

        def fits() -> bool:
            return room.has_room(size) or (size > room.most and room.used <= room.most)

        if not fits():
            await room.wait(fits)
        self._size = size
        room.used += size

    async def leave(self) -> None:
        """Hold it no more."""
        await self._room.give(self._size)


class Held:
    """What a server holds.

    Attributes:
        bodies: of requests, from their first byte to the answer.
        results: of models, from the queue to the answer.
        answers: that are sent.
        arriving: the bodies that are not complete, in the order they came.
    """

    def __init__(self, limits: Limits) -> None:
        """Hold nothing."""
        most, seconds = limits.max_held_bytes, limits.seconds
        self.bodies = Room("requests", most, seconds)
        self.results = Room("results", _RESULTS * most, seconds)
        self.answers = Room("answers", most, seconds)
        self.arriving: dict[Body, None] = {}


class Body:
    """A body that arrives, and is held until its request is answered."""

    def __init__(self, held: Held) -> None:
        """Nothing of it is there."""
        self._held, self._size = held, 0
        held.arriving[self] = None

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more may be held now.

        The one that came first of those that arrive may exceed the room, if all others are within
        it: else none of them might ever be whole.
        """
        return self._size + size <= SMALL or self._held.bodies.has_room(size) or self._is_first()

    def _is_first(self) -> bool:
        room = self._held.bodies
        is_first = next(iter(self._held.arriving), None) is self
        return is_first and room.used - self._size <= room.most

    async def take(self, size: int) -> None:
        """Hold so many bytes more; where there is no room, wait for it.

        Raises:
            RequestError: 503: that took too long.
        """
        if not self.has_room(size):
            await self._held.bodies.wait(lambda: self.has_room(size))
        self._size += size
        self._held.bodies.used += size

    async def give(self, size: int) -> None:
        """Hold so many bytes less."""
        self._size -= size
        await self._held.bodies.give(size)

    def complete(self) -> None:
        """All of it is there."""
        self._held.arriving.pop(self, None)

    async def leave(self) -> None:
        """Hold it no more: the request is answered."""
        self.complete()
        await self.give(self._size)
