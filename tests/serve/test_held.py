"""Bodies and answers that wait for room, and that none waits for ever."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from jaxdelegate.serve.held import SMALL, Body, Held, Share
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.records import RequestError

MOST = 10 * SMALL


@contextlib.asynccontextmanager
async def body_in(held: Held) -> AsyncIterator[Body]:
    body = Body(held)
    try:
        yield body
    finally:
        await body.leave()


@contextlib.asynccontextmanager
async def answer_in(held: Held, size: int) -> AsyncIterator[None]:
    answer = Share(held.answers)
    try:
        yield await answer.take(size)
    finally:
        await answer.leave()


def run(test: Callable[[Held], Awaitable[None]], seconds: float = 30.0) -> None:
    async def main() -> None:
        held = Held(Limits(body_timeout_s=seconds, max_held_bytes=MOST))
        await test(held)
        assert (held.bodies.used, held.answers.used, held.arriving) == (0, 0, {})

    asyncio.run(main())


async def waits(task: "asyncio.Task[Any]") -> bool:
    for _ in range(5):
        await asyncio.sleep(0)
    return not task.done()


def test_bodies_beyond_the_bound_wait_until_others_are_answered() -> None:
    async def test(held: Held) -> None:
        async with body_in(held) as second:
            async with body_in(held) as first:
                held.arriving = {first: None, second: None}
                await first.take(8 * SMALL)
                await first.take(3 * SMALL)
                first.complete()
                await second.take(SMALL)
                task = asyncio.create_task(second.take(3 * SMALL))
                assert await waits(task)
                async with body_in(held) as small:
                    await small.take(SMALL)
            await task
            assert held.bodies.used == 4 * SMALL

    run(test)


def test_of_bodies_that_only_arrive_the_first_goes_on() -> None:
    """Each has a part, and none could be whole within the bound."""

    async def test(held: Held) -> None:
        async with body_in(held) as second, body_in(held) as third:
            async with body_in(held) as first:
                held.arriving = {first: None, second: None, third: None}
                for body in (first, second, third):
                    await body.take(3 * SMALL)
                later = asyncio.create_task(second.take(3 * SMALL))
                last = asyncio.create_task(third.take(3 * SMALL))
                assert await waits(later)
                await first.take(8 * SMALL)
                first.complete()
                assert held.bodies.used == 17 * SMALL
                assert await waits(later)  # else all of them would exceed the bound
            await later
            last.cancel()

    run(test)


def test_waiting_ends() -> None:
    async def test(held: Held) -> None:
        async with body_in(held) as first, body_in(held) as second:
            await first.take(MOST)
            await first.take(SMALL)
            first.complete()
            with pytest.raises(RequestError, match="max_held_bytes") as error:
                await second.take(2 * SMALL)
            assert error.value.status == 503
        async with answer_in(held, MOST):
            with pytest.raises(RequestError, match="max_held_bytes"):
                async with answer_in(held, 2 * SMALL):
                    pass

    run(test, seconds=0.01)


def test_a_large_answer_waits_for_others() -> None:
    """One alone may exceed the bound."""

    async def test(held: Held) -> None:
        async def answer() -> None:
            async with answer_in(held, 2 * SMALL):
                pass

        async with answer_in(held, 100 * MOST):
            task = asyncio.create_task(answer())
            assert await waits(task)
        await task

    run(test)


def test_what_is_larger_than_the_room_does_not_wait_for_an_empty_one() -> None:
    """Others come and go all the time."""

    async def test(held: Held) -> None:
        async with body_in(held) as other, body_in(held) as large:
            await other.take(9 * SMALL)
            other.complete()
            for _ in range(20):
                await large.take(SMALL)
        async with answer_in(held, 9 * SMALL), answer_in(held, 2 * MOST):
            later = asyncio.create_task(Share(held.answers).take(2 * MOST))
            assert await waits(later)  # one of them, not two
            later.cancel()

    run(test)
