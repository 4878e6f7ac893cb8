"""Dynamic batching: a queue of requests, and the thread that runs them in batches."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from jaxdelegate.serve.clients import RequestError
from jaxdelegate.serve.decisions import Costs, decide
from jaxdelegate.serve.metrics import ModelRecorder, RunTimes
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.serve.worker import LOGGER, Worker, unexpected

T = TypeVar("T")
R = TypeVar("R")


@dataclasses.dataclass(eq=False, slots=True)
class _Entry(Generic[T, R]):
    item: T
    key: Hashable
    rows: int
    costs: Costs
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[R]
    since: float = dataclasses.field(default_factory=time.monotonic)
    result: R | None = None
    error: BaseException | None = None


class Batcher(Worker, Generic[T, R]):
    """Requests come from asyncio tasks, of one event loop or several.

    A model runs only in the batcher's one thread, since interpreters and hosts are not thread-safe.
    """

    def __init__(
        self,
        name: str,
        settings: ServeSettings,
        recorder: ModelRecorder,
        prepare: Callable[[], None],
        run: Callable[[Sequence[T]], tuple[Sequence[R], RunTimes]],
    ) -> None:
        """A failed batch runs its items again, one by one.

        `run` returns the results of items that have the same key, in their order. It raises if one
        of them cannot be run.
        """
        super().__init__(name, prepare)
        self._run, self._recorder = run, recorder
        self._delay_s = settings.max_queue_delay_us * 1e-6
        self._max_queue_size = settings.max_queue_size
        self._waiting: list[_Entry[T, R]] = []

    async def submit(
        self, item: T, *, key: Hashable, rows: int, costs: Costs, timeout_s: float = 0.0
    ) -> R:
        """Queue an item, wait until it has run in a batch, and return its result.

        Items of the same `key` may run in one batch, and an item takes up `rows` of it. A timeout
        of 0 is no limit. If the awaiting task is cancelled, the item leaves the queue. A
        RequestError has status 400 for too many rows, 503 if the queue is full or the batcher
        closed, 504 for a timeout.
        """
        if rows > costs.max_rows:
            raise RequestError(
                f"{self.name}: the request has {rows} items, but the largest batch is "
                f"{costs.max_rows}: send at most {costs.max_rows} in a request"
            )
        loop = asyncio.get_running_loop()
        entry: _Entry[T, R] = _Entry(item, key, rows, costs, loop, loop.create_future())
        self._put(entry)
        timer = None
        if timeout_s > 0:
            timer = loop.call_later(timeout_s, self._expire, entry, timeout_s)
        try:
            return await entry.future
        except asyncio.CancelledError:
            self._recorder.failed("CANCELED", time.monotonic() - entry.since)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if entry.future.cancelled():
                self._remove(entry)

    # ---- the queue

    def _put(self, entry: _Entry[T, R]) -> None:
        with self._change:
            if refusal := self._refusal():
                raise self._refused(refusal)
            if len(self._waiting) >= self._max_queue_size:
                raise self._refused(
                    f"{self.name}: the queue is full with {self._max_queue_size} requests "
                    "(max_queue_size); try again later"
                )
            self._waiting.append(entry)
            self._count_waiting()
            self._change.notify()

    def _refused(self, message: str) -> RequestError:
        self._recorder.failed("REJECTED", 0.0)
        return RequestError(message, 503)

    def _expire(self, entry: _Entry[T, R], timeout_s: float) -> None:
        if entry.future.done():
            return
        self._remove(entry)
        self._recorder.failed("TIMEOUT", time.monotonic() - entry.since)
        entry.future.set_exception(
            RequestError(f"{self.name}: the request took longer than {timeout_s:g} s", 504)
        )

    def _remove(self, entry: _Entry[T, R]) -> None:
        with self._change, contextlib.suppress(ValueError):
            self._waiting.remove(entry)
            self._count_waiting()

    def _count_waiting(self) -> None:
        self._recorder.set("inference_pending_request_count", len(self._waiting))

    # ---- the thread

    def _run_queue(self) -> None:
        while batch := self._next():
            self._execute(batch)

    def _next(self) -> list[_Entry[T, R]]:
        """Wait for the next batch; empty: the batcher is closed and the queue empty."""
        with self._change:
            while True:
                if not self._waiting:
                    if self._is_closing:
                        return []
                    self._change.wait()
                    continue
                delay_s = 0.0 if self._is_closing else self._delay_s
                decision = decide(self._waiting, time.monotonic(), delay_s)
                if decision.taken:
                    batch = [self._waiting[i] for i in decision.taken]
                    for position in reversed(decision.taken):
                        del self._waiting[position]
                    self._count_waiting()
                    return batch
                self._change.wait(decision.wait_s)

    def _execute(self, batch: list[_Entry[T, R]]) -> None:
        begin = time.monotonic()
        try:
            results, times = self._run([entry.item for entry in batch])
        except Exception as error:  # it is the result of the items, or of one of them
            if len(batch) > 1:
                for entry in batch:
                    if not entry.future.done():  # otherwise it was cancelled
                        self._execute([entry])
                return
            self._fail_entry(batch[0], error)
        else:
            for entry, result in zip(batch, results, strict=True):
                entry.result = result
            self._record(batch, times, begin)
        self._finish(batch)

    def _fail_entry(self, entry: _Entry[T, R], error: Exception) -> None:
        reason = "REJECTED"
        if not isinstance(error, RequestError):
            reason = "BACKEND"
            text = "%s: a request failed: %s"
            LOGGER.warning(text, self.name, error, exc_info=unexpected(error))
        entry.error = error
        self._recorder.failed(reason, time.monotonic() - entry.since)

    def _record(self, batch: Sequence[_Entry[T, R]], times: RunTimes, begin: float) -> None:
        count, now = len(batch), time.monotonic()
        since = sum(entry.since for entry in batch)
        self._recorder.executed(
            requests=count,
            rows=sum(entry.rows for entry in batch),
            request_s=count * now - since,
            queue_s=count * begin - since,
            times=times,
        )

    def _finish(self, batch: Sequence[_Entry[T, R]]) -> None:
        for loop in {entry.loop for entry in batch}:
            entries = [entry for entry in batch if entry.loop is loop]
            with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits
                loop.call_soon_threadsafe(_deliver, entries)

    def _refuse_queue(self, error: RequestError) -> None:
        with self._change:
            left, self._waiting = self._waiting, []
        for entry in left:
            self._fail_entry(entry, error)
        self._finish(left)


def _deliver(entries: Sequence[_Entry[T, R]]) -> None:
    for entry in entries:
        if entry.future.done():  # cancelled, or timed out
            continue
        if entry.error is not None:
            entry.future.set_exception(entry.error)
        else:
            entry.future.set_result(entry.result)  # type: ignore[arg-type]
