"""How many bytes of bodies and answers a server holds at a time; more of them wait."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.records import RequestError

SMALL = 1 << 16  # bytes of a body or an answer that is held in any case


class Body:
    """A body that arrives, and is held until its request is answered."""

    def __init__(self, held: "Held") -> None:
        """Nothing of it is there."""
        self._held, self._size = held, 0
        held.arriving[self] = None

    async def take(self, size: int) -> bool:
        """Hold so many bytes more; where there is no room, wait for it. Whether it waited.

        The body that came first need not wait for others that only arrive: they wait for it.

        Raises:
            RequestError: 503: that took too long.
        """
        has_waited = self._size + size > SMALL and await self._held.wait(
            lambda: self._held.has_room(size) or self._may_exceed(), "requests"
        )
        self._size += size
        self._held.bodies += size
        return has_waited

    def _may_exceed(self) -> bool:
        held = self._held
        return next(iter(held.arriving)) is self and held.bodies == sum(
            body._size for body in held.arriving  # noqa: SLF001 (of this class)
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
        """Hold it no more."""
        self.complete()
        await self.give(self._size)


class Held:
    """Counts them, for one event loop.

    Attributes:
        bodies: bytes of bodies.
        arriving: the bodies that are not complete, in the order they came.
    """

    def __init__(self, limits: Limits) -> None:
        """Hold nothing."""
        self._most, self._seconds = limits.max_held_bytes, limits.seconds
        self.bodies = self._answers = 0
        self.arriving: dict[Body, None] = {}
        self._change = asyncio.Condition()
        self._waiting = 0

    @contextlib.asynccontextmanager
    async def body(self) -> AsyncIterator[Body]:
        """Hold a body until the request is answered."""
        body = Body(self)
        try:
            yield body
        finally:
            await body.leave()

    @contextlib.asynccontextmanager
    async def answer(self, size: int) -> AsyncIterator[None]:
        """Hold an answer until it is sent. A large one waits while others are sent.

        Raises:
            RequestError: 503: the others took too long.
        """
        is_large = size > SMALL
        if is_large:
            await self.wait(lambda: not self._answers or self._answers + size <= self._most, "answers")
            self._answers += size
        try:
            yield
        finally:
            if is_large:
                self._answers -= size
                await self.tell()

    def has_room(self, size: int) -> bool:
        """Whether a body may take so many bytes more."""
        return self.bodies + size <= self._most

    async def wait(self, is_free: Callable[[], bool], what: str) -> bool:
        """Wait until something is so; whether it was not so at once.

        Raises:
            RequestError: 503: it took too long.
        """
        if is_free():
            return False
        self._waiting += 1
        try:
            async with asyncio.timeout(self._seconds), self._change:
                await self._change.wait_for(is_free)
        except TimeoutError:
            raise RequestError(
                f"the server holds as many bytes of other {what} as it may (max_held_bytes, "
                f"{self._most}); try again later",
                503,
            ) from None
        finally:
            self._waiting -= 1
        return True

    async def tell(self) -> None:
        """Let those that wait look again."""
        if self._waiting:
            async with self._change:
                self._change.notify_all()
