"""The sequences of a request while they are generated, on the side of the event loop."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from jaxdelegate.serve.clients import RequestError
from jaxdelegate.serve.openai.batching import Delta, Job, TextBatcher


class Answers:
    """The sequences of a request, which end when it is released."""

    def __init__(self, batcher: TextBatcher, jobs: Sequence[Job], timeout_s: float = 0.0) -> None:
        """A timeout of 0 is no limit."""
        self._batcher, self._jobs, self._timeout_s = batcher, jobs, timeout_s
        self._deltas: asyncio.Queue[Delta] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def submit(self) -> None:
        """Queue the sequences. A RequestError: too many wait."""
        for job in self._jobs:
            job.deliver = self._deliver
        self._deadline = self._loop.time() + self._timeout_s if self._timeout_s else None
        self._batcher.submit(self._jobs)

    def _deliver(self, delta: Delta) -> None:
        """In the batcher's thread."""
        self._loop.call_soon_threadsafe(self._deltas.put_nowait, delta)

    async def __aiter__(self) -> AsyncIterator[Delta]:
        left = len(self._jobs)
        while left:
            delta = await self._next()
            if delta.error is not None:
                raise delta.error
            left -= delta.finish_reason is not None
            yield delta

    async def all(self) -> list[Delta]:
        return [delta async for delta in self]

    async def _next(self) -> Delta:
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._deltas.get()
        except TimeoutError:
            raise RequestError(
                f"{self._batcher.name}: the request took longer than {self._timeout_s:g} s "
                "(answer_timeout_s)",
                504,
            ) from None

    async def release(self) -> None:
        self._batcher.cancel(self._jobs)
