"""Dynamic batching: a queue of requests, and the thread that runs them in batches."""

import asyncio
import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, Protocol, TypeVar

from jaxdelegate.errors import JaxDelegateError
from jaxdelegate.serve.decisions import Costs, decide
from jaxdelegate.serve.metrics import Execution, ModelRecorder
from jaxdelegate.serve.records import RequestError

_LOGGER = logging.getLogger("jaxdelegate")
T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@dataclasses.dataclass(eq=False, slots=True)
class _Entry(Generic[T, R]):
    item: T
    key: Hashable
    rows: int
    since: float
    costs: Costs
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[R]
    result: R | None = None
    error: BaseException | None = None


class RunResult(Protocol[R_co]):
    """The result of each item of a run, and the run's times."""

    @property
    def results(self) -> Sequence[R_co]:
        """In the order of the items."""

    @property
    def input_s(self) -> float:
        """Seconds to write the inputs."""

    @property
    def infer_s(self) -> float:
        """Seconds to run the model."""

    @property
    def output_s(self) -> float:
        """Seconds to split the outputs by request."""


class Batcher(Generic[T, R]):
    """Requests come from asyncio tasks, of one event loop or several.

    A model runs only in the batcher's one thread, since interpreters and hosts are not thread-safe.
    """

    def __init__(
        self,
        run: Callable[[Sequence[T]], RunResult[R]],
        *,
        name: str,
        max_queue_delay_us: int = 0,
        max_queue_size: int = 1024,
        may_repeat: bool = True,
        recorder: ModelRecorder | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        """A failed batch with `may_repeat` runs its items again, one by one.

        `run` raises if one of the items, which have the same key, cannot be run. The thread calls
        `prepare` before all requests; if that raises, the batcher is closed with its error.
        """
        self._run, self._name, self._prepare = run, name, prepare
        self._delay_s, self._max_queue_size = max_queue_delay_us * 1e-6, max_queue_size
        self._may_repeat = may_repeat
        self._recorder = ModelRecorder() if recorder is None else recorder
        self._waiting: list[_Entry[T, R]] = []
        self._change = threading.Condition()
        self._delivering = threading.Lock()
        self._finished: dict[asyncio.AbstractEventLoop, list[_Entry[T, R]]] = {}
        self._is_closing = self._has_ended = False
        self._error: BaseException | None = None
        self._ended: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._thread = threading.Thread(target=self._work, name=f"serve {name}", daemon=True)

    def start(self) -> None:
        """Call it once."""
        self._thread.start()

    def fail_after_fork(self, error: BaseException) -> None:
        """This process was forked, and the thread runs only in the parent."""
        self._change = threading.Condition()  # the parent's thread may have held its lock
        self._error, self._waiting = error, []
        self._is_closing = self._has_ended = True

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
                f"{self._name}: the request has {rows} items, but the largest batch is "
                f"{costs.max_rows}: send at most {costs.max_rows} in a request"
            )
        loop = asyncio.get_running_loop()
        entry: _Entry[T, R] = _Entry(
            item=item,
            key=key,
            rows=rows,
            since=time.monotonic(),
            costs=costs,
            loop=loop,
            future=loop.create_future(),
        )
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

    async def close(self) -> None:
        """Refuse new requests, run the queued ones, and end the thread."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        with self._change:
            self._is_closing = True
            is_running = not self._has_ended
            if is_running:
                self._ended.append((loop, ended))
            self._change.notify_all()
        if is_running and self._thread.is_alive():
            await ended
            self._thread.join()

    def join(self, timeout_s: float | None = None) -> None:
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # ---- the queue

    def _put(self, entry: _Entry[T, R]) -> None:
        with self._change:
            if self._is_closing:
                why = "is shutting down" if self._error is None else f"failed: {self._error}"
                raise self._refused(f"{self._name} {why}; no requests are accepted")
            if len(self._waiting) >= self._max_queue_size:
                raise self._refused(
                    f"{self._name}: the queue is full with {self._max_queue_size} requests "
                    "(max_queue_size); try again later"
                )
            self._waiting.append(entry)
            self._recorder.pending(len(self._waiting))
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
            RequestError(f"{self._name}: the request took longer than {timeout_s:g} s", 504)
        )

    def _remove(self, entry: _Entry[T, R]) -> None:
        with self._change, contextlib.suppress(ValueError):
            self._waiting.remove(entry)
            self._recorder.pending(len(self._waiting))

    # ---- the thread

    def _work(self) -> None:
        try:
            if self._prepare is not None:
                self._prepare()
            while batch := self._next():
                self._execute(batch)
        except BaseException as error:  # no caller would see it
            text = "%s: cannot be served: %s"
            _LOGGER.log(logging.ERROR, text, self._name, error, exc_info=_unexpected(error))
            self._error = error
        finally:
            self._end()

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
                    self._recorder.pending(len(self._waiting))
                    return batch
                self._change.wait(decision.wait_s)

    def _execute(self, batch: list[_Entry[T, R]]) -> None:
        begin = time.monotonic()
        try:
            ran = self._run([entry.item for entry in batch])
        except Exception as error:  # it is the result of the items, or of one of them
            if len(batch) > 1 and self._may_repeat:
                for entry in batch:
                    if not entry.future.done():  # otherwise it was cancelled
                        self._execute([entry])
                return
            if not isinstance(error, RequestError):
                _LOGGER.warning(
                    "%s: a request failed: %s", self._name, error, exc_info=_unexpected(error)
                )
            reason = "REJECTED" if isinstance(error, RequestError) else "BACKEND"
            for entry in batch:
                entry.error = error
                self._recorder.failed(reason, time.monotonic() - entry.since)
        else:
            for entry, result in zip(batch, ran.results, strict=True):
                entry.result = result
            self._record(batch, ran, begin)
        self._finish(batch)

    def _record(self, batch: Sequence[_Entry[T, R]], ran: RunResult[R], begin: float) -> None:
        count, now = len(batch), time.monotonic()
        since = sum(entry.since for entry in batch)
        self._recorder.executed(
            Execution(
                requests=count,
                rows=sum(entry.rows for entry in batch),
                request_s=count * now - since,
                queue_s=count * begin - since,
                input_s=ran.input_s,
                infer_s=ran.infer_s,
                output_s=ran.output_s,
            )
        )

    def _finish(self, batch: Sequence[_Entry[T, R]]) -> None:
        """Pass results to each event loop; wakes a loop once for all results it has not read."""
        for loop in {entry.loop for entry in batch}:
            with self._delivering:
                finished = self._finished.setdefault(loop, [])
                is_awake = bool(finished)
                finished.extend(entry for entry in batch if entry.loop is loop)
            if is_awake:
                continue
            try:
                loop.call_soon_threadsafe(self._deliver, loop)
            except RuntimeError:  # the loop is closed: no task waits
                with self._delivering:
                    del self._finished[loop]

    def _deliver(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._delivering:
            entries = self._finished.pop(loop)
        for entry in entries:
            if entry.future.done():  # cancelled, or timed out
                continue
            if entry.error is not None:
                entry.future.set_exception(entry.error)
            else:
                entry.future.set_result(entry.result)  # type: ignore[arg-type]

    def _end(self) -> None:
        """Refuse queued requests, if the thread failed, and notify callers of `close`."""
        with self._change:
            self._is_closing = self._has_ended = True
            left, self._waiting = self._waiting, []
            ended, self._ended = self._ended, []
        for entry in left:
            entry.error = self._refused(f"{self._name} failed: {self._error}")
        self._finish(left)
        for loop, future in ended:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_notify, future)


def _unexpected(error: BaseException) -> BaseException | None:
    """The error to log with its traceback, because the message alone does not explain it."""
    return None if isinstance(error, JaxDelegateError) else error


def _notify(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
