"""How many bytes of bodies and answers a server holds at a time; more of them wait."""

import asyncio
from collections.abc import Callable

from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.records import RequestError

SMALL = 1 << 16  # bytes of a body or an answer that is held in any case


class Body:
    """A body that arrives, and is held until its request is answered."""

    def __init__(self, held: "Held") -> None:
        """Nothing of it is there."""
        self._held, self._size = held, 0
        held.arriving[self] = None

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more may be held now.

        The body that came first need not wait for others that only arrive: they wait for it.
        """
        return self._size + size <= SMALL or self._has_room(size)

    async def take(self, size: int) -> None:
        """Hold so many bytes more; where there is no room, wait for it.

        Raises:
            RequestError: 503: that took too long.
        """
        if not self.has_room(size):
            await self._held.wait(lambda: self.has_room(size), "requests")
        self._size += size
        self._held.bodies += size

    def _has_room(self, size: int) -> bool:
        held = self._held
        if held.bodies + size <= held.most:
            return True
        return next(iter(held.arriving)) is self and held.bodies == sum(
            body._size for body in held.arriving
        )

    def complete(self) -> None:
        """All of it is there."""
        self._held.arriving.pop(self, None)

    async def give(self, size: int) -> None:
        """Hold so many bytes less."""
        self._size -= size
        self._held.bodies -= size
        await self._held.tell()

    async def leave(self) -> None:
        """Hold it no more: the request is answered."""
        self.complete()
        if self._size:
            await self.give(self._size)


class Answer:
    """An answer that is sent."""

    def __init__(self, held: "Held") -> None:
        """Nothing of it is there."""
        self._held, self._size = held, 0

    async def take(self, size: int) -> None:
        """Hold it; where there is no room, wait until others are sent. One alone has room.

        Raises:
            RequestError: 503: that took too long.
        """
        held = self._held
        if held.answers and held.answers + size > held.most:
            await held.wait(lambda: not held.answers or held.answers + size <= held.most, "answers")
        self._size = size
        held.answers += size

    async def leave(self) -> None:
        """Hold it no more: it is sent."""
        self._held.answers -= self._size
        await self._held.tell()


class Held:
    """Counts them, for one event loop.

    Attributes:
        most: bytes of bodies, and of answers, that may be held.
        bodies: bytes of bodies.
        answers: bytes of answers.
        arriving: the bodies that are not complete, in the order they came.
    """

    def __init__(self, limits: Limits) -> None:
        """Hold nothing."""
        self.most, self._seconds = limits.max_held_bytes, limits.seconds
        self.bodies = self.answers = 0
        self.arriving: dict[Body, None] = {}
        self._change = asyncio.Condition()
        self._waiting = 0

    async def wait(self, is_free: Callable[[], bool], what: str) -> None:
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
                f"the server holds as many bytes of other {what} as it may (max_held_bytes, "
                f"{self.most}); try again later",
                503,
            ) from None
        finally:
            self._waiting -= 1

    async def tell(self) -> None:
        """Let those that wait look again."""
        if self._waiting:
            async with self._change:
                self._change.notify_all()
