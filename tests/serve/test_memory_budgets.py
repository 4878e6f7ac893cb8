"""Bodies and responses that wait for memory, and that no wait is endless."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from jaxdelegate.serve.clients import RequestError
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.memory_budgets import SMALL, BodyReservation, Budgets, Reservation

MOST = 10 * SMALL


@contextlib.asynccontextmanager
async def body_in(budgets: Budgets) -> AsyncIterator[BodyReservation]:
    body = BodyReservation(budgets)
    try:
        yield body
    finally:
        await body.release()


@contextlib.asynccontextmanager
async def response_in(budgets: Budgets, size: int) -> AsyncIterator[None]:
    response = Reservation(budgets.responses)
    try:
        yield await response.reserve(size)
    finally:
        await response.release()


def run(test: Callable[[Budgets], Awaitable[None]], seconds: float = 30.0) -> None:
    async def main() -> None:
        budgets = Budgets(Limits(body_timeout_s=seconds, max_held_bytes=MOST))
        await test(budgets)
        assert (budgets.bodies.used, budgets.responses.used, budgets.incomplete) == (0, 0, {})

    asyncio.run(main())


async def waits(task: "asyncio.Task[Any]") -> bool:
    for _ in range(5):
        await asyncio.sleep(0)
    return not task.done()


def test_bodies_beyond_the_limit_wait_for_the_responses_to_others() -> None:
    async def test(budgets: Budgets) -> None:
        async with body_in(budgets) as second:
            async with body_in(budgets) as first:
                budgets.incomplete = {first: None, second: None}
                await first.reserve(8 * SMALL)
                await first.reserve(3 * SMALL)
                first.complete()
                await second.reserve(SMALL)
                task = asyncio.create_task(second.reserve(3 * SMALL))
                assert await waits(task)
                async with body_in(budgets) as small:
                    await small.reserve(SMALL)
            await task
            assert budgets.bodies.used == 4 * SMALL

    run(test)


def test_of_incomplete_bodies_the_oldest_continues() -> None:
    """Each has a part, and none could be complete within the limit."""

    async def test(budgets: Budgets) -> None:
        async with body_in(budgets) as second, body_in(budgets) as third:
            async with body_in(budgets) as first:
                budgets.incomplete = {first: None, second: None, third: None}
                for body in (first, second, third):
                    await body.reserve(3 * SMALL)
                later = asyncio.create_task(second.reserve(3 * SMALL))
                last = asyncio.create_task(third.reserve(3 * SMALL))
                assert await waits(later)
                await first.reserve(8 * SMALL)
                first.complete()
                assert budgets.bodies.used == 17 * SMALL
                assert await waits(later)  # otherwise all of them would exceed the limit
            await later
            last.cancel()

    run(test)


def test_waiting_times_out() -> None:
    async def test(budgets: Budgets) -> None:
        async with body_in(budgets) as first, body_in(budgets) as second:
            await first.reserve(MOST)
            await first.reserve(SMALL)
            first.complete()
            with pytest.raises(RequestError, match="max_held_bytes") as error:
                await second.reserve(2 * SMALL)
            assert error.value.status == 503
        async with response_in(budgets, MOST):
            with pytest.raises(RequestError, match="max_held_bytes"):
                async with response_in(budgets, 2 * SMALL):
                    pass

    run(test, seconds=0.01)


def test_a_large_response_waits_for_others() -> None:
    """A single one may exceed the limit."""

    async def test(budgets: Budgets) -> None:
        async def respond() -> None:
            async with response_in(budgets, 2 * SMALL):
                pass

        async with response_in(budgets, 100 * MOST):
            task = asyncio.create_task(respond())
            assert await waits(task)
        await task

    run(test)


def test_a_reservation_larger_than_the_budget_does_not_wait_for_an_empty_one() -> None:
    """A busy server never has an empty one."""

    async def test(budgets: Budgets) -> None:
        async with body_in(budgets) as other, body_in(budgets) as large:
            await other.reserve(9 * SMALL)
            other.complete()
            for _ in range(20):
                await large.reserve(SMALL)
        async with response_in(budgets, 9 * SMALL), response_in(budgets, 2 * MOST):
            later = asyncio.create_task(Reservation(budgets.responses).reserve(2 * MOST))
            assert await waits(later)  # one of them, not two
            later.cancel()

    run(test)
