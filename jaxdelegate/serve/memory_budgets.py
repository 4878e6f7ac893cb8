"""Limits on the bytes of bodies, results and responses in memory; requests wait for a free part."""

import asyncio
from collections.abc import Callable

from jaxdelegate.serve.clients import RequestError
from jaxdelegate.serve.limits import Limits

SMALL = 1 << 16  # bytes of a body or a response that are always allowed
_RESULTS = 3  # times the budget of bodies or responses: queued results make batches possible


class ByteBudget:
    """A limit on bytes of one kind, for one event loop."""

    def __init__(self, what: str, most: int, seconds: float | None) -> None:
        """`what` names the bytes in messages; callers wait at most `seconds`, None: no limit."""
        self.most, self.used = most, 0
        self._what, self._seconds = what, seconds
        self._change = asyncio.Condition()
        self._waiting = 0

    async def wait(self, is_free: Callable[[], bool]) -> None:
        """A RequestError of status 503 at a timeout."""
        self._waiting += 1
        try:
            async with asyncio.timeout(self._seconds), self._change:
                await self._change.wait_for(is_free)
        except TimeoutError:
            raise RequestError(
                f"the server holds as many bytes of other {self._what} as allowed "
                f"(max_held_bytes, {self.most}); try again later",
                503,
            ) from None
        finally:
            self._waiting -= 1

    async def release(self, size: int) -> None:
        self.used -= size
        if self._waiting:
            async with self._change:
                self._change.notify_all()


class Reservation:
    """The bytes that one request has reserved of a budget, until its response is sent."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget, self._size = budget, 0

    def has_room(self, size: int) -> bool:
        """Whether it may take this many bytes now.

        It may exceed the whole budget if it is the only one that does: otherwise it would wait
        forever.
        """
        budget = self._budget
        is_single = size > budget.most and budget.used <= budget.most
        return budget.used + size <= budget.most or is_single

    async def reserve(self, size: int) -> None:
        """Wait until the bytes are available."""
        if not self.has_room(size):
            await self._budget.wait(lambda: self.has_room(size))
        self._size += size
        self._budget.used += size

    async def shrink(self, size: int) -> None:
        self._size -= size
        await self._budget.release(size)

    async def release(self) -> None:
        """Return all bytes to the budget, after the response."""
        await self.shrink(self._size)


class Budgets:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        most, seconds = limits.max_held_bytes, limits.seconds
        # Requests count from their first byte until their response is sent.
        self.bodies = ByteBudget("requests", most, seconds)
        # Results count from the queue until the response is sent.
        self.results = ByteBudget("results", _RESULTS * most, seconds)
        self.responses = ByteBudget("responses", most, seconds)  # while they are sent
        self.incomplete: dict[Reservation, None] = {}  # still being received, oldest first


class BodyReservation(Reservation):
    """A reservation that grows while a body is received."""

    def __init__(self, budgets: Budgets) -> None:
        super().__init__(budgets.bodies)
        self._budgets = budgets
        budgets.incomplete[self] = None

    def has_room(self, size: int) -> bool:
        """The oldest incomplete body may exceed the budget if all others are within it.

        Otherwise none of them might ever be complete.
        """
        budget, is_first = self._budget, next(iter(self._budgets.incomplete), None) is self
        return (
            self._size + size <= SMALL
            or budget.used + size <= budget.most
            or (is_first and budget.used - self._size <= budget.most)
        )

    def complete(self) -> None:
        """The whole body was received."""
        self._budgets.incomplete.pop(self, None)

    async def release(self) -> None:
        self.complete()
        await super().release()
