"""Continuous batching: a thread generates for many prompts, which join and leave between runs."""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence

from jaxdelegate.lm.request import Request
from jaxdelegate.lm.scheduler import ActiveRequest, Scheduler
from jaxdelegate.lm.scores import TokenScore
from jaxdelegate.lm.text_stream import Part, StoppedStream
from jaxdelegate.optional import is_failure
from jaxdelegate.serve.clients import Client, RequestError
from jaxdelegate.serve.metrics import TextRecorder
from jaxdelegate.serve.openai.fair_queue import FairQueue
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.serve.worker import LOGGER, Worker

_LONGEST_RETRY_S = 60
_HELD_SECONDS = 0.02  # until programs are looked for again
_SMOOTHING = 0.1  # the weight of the latest answer in the mean time


@dataclasses.dataclass(frozen=True)
class Delta:
    index: int  # which sequence of its request
    parts: Sequence[Part] = ()  # new tokens and their text
    finish_reason: str | None = None  # "stop" or "length"; None: it goes on
    tokens: int = 0  # generated so far, those of a stop text included
    reused: int = 0  # tokens of the prompt that the caches had
    prompt_scores: Sequence[TokenScore] = ()  # the first delta has them, if requested
    error: RequestError | None = None  # why it has ended


@dataclasses.dataclass(eq=False)
class Job:
    index: int  # which sequence of its request
    client: Client  # whose turn it is
    request: Request  # its prompt
    stream: StoppedStream  # turns its tokens into text
    # Called in the batcher's thread. A RuntimeError says that no one waits for the sequence.
    deliver: Callable[[Delta], None] = lambda _: None
    is_cancelled: bool = False  # it ends before the next run
    since: float = 0.0  # by time.monotonic, like the next two
    joined_at: float = 0.0
    last_at: float = 0.0  # 0: it has no token
    sent: int = 0  # tokens that the stream got
    has_begun: bool = False  # a delta was delivered
    running: ActiveRequest | None = None
    grammar_field: str = ""  # of the request, which says what the answer matches


class TextBatcher(Worker):
    """Owns a scheduler, and calls its `step` in a thread.

    A step prefills one part of one prompt at most, so that a long prompt does not make the others
    wait.
    """

    def __init__(
        self,
        name: str,
        settings: ServeSettings,
        recorder: TextRecorder,
        prepare: Callable[[], None],
        open_scheduler: Callable[[], Scheduler],
    ) -> None:
        """The thread calls `open_scheduler`, with `max_batch_size` slots, again after an error."""
        super().__init__(name, prepare)
        self._open_scheduler, self._recorder = open_scheduler, recorder
        self._slots, self._max_queue_size = settings.max_batch_size, settings.max_queue_size
        self.most = self._slots + self._max_queue_size
        self._queue: FairQueue[Job] = FairQueue()
        self._jobs: dict[ActiveRequest, Job] = {}  # in slots; changed by the thread only
        self._held = 0  # of these, by the thread, those that wait for programs
        self._mean_s = 1.0  # that an answer is in its slot

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue a request's sequences. A RequestError of status 429: too many wait; 503: closed."""
        with self._change:
            if refusal := self._refusal():
                raise RequestError(refusal, 503)
            displaced = self._displaced(jobs)
            now = time.monotonic()
            for job in jobs:
                job.since = now
            self._queue.add(jobs)
            self._count_waiting()
            self._change.notify()
        for job in displaced:
            self._deliver(job, Delta(job.index, error=self._full()))

    def _displaced(self, jobs: Sequence[Job]) -> list[Job]:
        """What leaves a full queue, so that who has much in it does not shut out the others."""
        displaced: list[Job] = []
        while len(self._queue) + len(self._jobs) + len(jobs) > self.most:
            job = self._queue.displaced_by(jobs[0].client, len(jobs))
            if job is None:
                self._queue.add(reversed(displaced))
                raise self._full()
            self._queue.remove(job)
            displaced.append(job)
        return displaced

    def _full(self) -> RequestError:
        waiting = len(self._queue)
        seconds = math.ceil(self._mean_s * (waiting + 1) / self._slots)
        return RequestError(
            f"{self.name}: the queue is full with {waiting} prompts (max_queue_size, "
            f"{self._max_queue_size}), and clients with fewer go first; try again later",
            429,
            headers={"Retry-After": str(min(max(seconds, 1), _LONGEST_RETRY_S))},
        )

    def cancel(self, jobs: Sequence[Job]) -> None:
        """End sequences that no one waits for; those that have ended stay as they are."""
        with self._change:
            for job in jobs:
                job.is_cancelled = True
                if job.running is None:
                    self._queue.remove(job)
            self._count_waiting()
            self._change.notify()

    def _count_waiting(self) -> None:
        """A slot that waits for its program does not count as one that runs."""
        self._recorder.set("num_requests_waiting", len(self._queue) + self._held)
        self._recorder.set("num_requests_running", len(self._jobs) - self._held)

    # ---- the thread

    def _run_queue(self) -> None:
        scheduler = self._open_scheduler()
        while self._wait():
            try:
                self._step(scheduler)
            except Exception as error:  # sequences are in an unknown state now
                self._fail_all(error)
                scheduler = self._open_scheduler()

    def _wait(self) -> bool:
        """Wait for work; False: the batcher is closed and all accepted requests have ended."""
        with self._change:
            while not (self._queue or self._jobs):
                if self._is_closing:
                    return False
                self._change.wait()
        return True

    def _step(self, scheduler: Scheduler) -> None:
        for running, job in list(self._jobs.items()):
            if job.is_cancelled:
                scheduler.leave(running)
                self._ended(job, "abort")
        all_joined = self._join(scheduler)
        for running in scheduler.step():
            job = self._jobs[running]
            try:
                self._advance(scheduler, job)
            except BaseException as error:  # concerns this job alone
                if not is_failure(error):
                    raise
                scheduler.leave(running)
                self._fail_one(job, error)
        self._recorder.set("kv_cache_usage_perc", scheduler.use)
        with self._change:
            self._held = scheduler.waiting
            self._count_waiting()
        if scheduler.is_held or not (all_joined or self._jobs):
            with self._change:
                self._change.wait(_HELD_SECONDS)

    def _join(self, scheduler: Scheduler) -> bool:
        """Fill free slots; False: none of those that wait has its programs yet."""
        while scheduler.free:
            with self._change:
                job = self._queue.take(lambda job: scheduler.is_ready(job.request))
                if job is None:
                    return not self._queue
                self._count_waiting()
            job.joined_at = time.monotonic()
            try:
                running = scheduler.join(job.request)
            except ValueError as error:  # concerns this job alone
                self._fail_one(job, error)
                continue
            except Exception:
                self._deliver(job, self._failed(job))
                raise
            with self._change:
                self._jobs[running], job.running = job, running
                self._count_waiting()
        return True

    def _advance(self, scheduler: Scheduler, job: Job) -> None:
        running, stream = job.running, job.stream
        assert running is not None
        if running.refusal is not None:
            problem = f"change the schema, on which llguidance gave up: {running.refusal}"
            self._fail_one(job, RequestError(f"{job.grammar_field}: {problem}"))
            return
        if running.error is not None:
            self._fail_one(job, running.error)
            return
        tokens = running.tokens[job.sent : running.settled]
        new = slice(job.sent, running.settled)
        parts = stream.add(tokens, running.scores[new], running.tops[new])
        job.sent += len(tokens)
        reason: str | None = running.finish_reason
        if reason is not None:
            parts += stream.end()
        if stream.is_stopped:
            scheduler.leave(running)
            reason = "stop"
        if not job.last_at:
            self._recorder.prompt(len(job.request.ids), running.reused)
        self._recorder.generated(len(tokens), job.last_at or job.since, first=not job.last_at)
        job.last_at = time.monotonic()
        if parts or reason is not None:
            prompt_scores = () if job.has_begun else running.prompt_scores
            job.has_begun = True
            self._deliver(
                job,
                Delta(job.index, parts, reason, stream.count, running.reused, prompt_scores),
            )
        if reason is not None:
            self._ended(job, reason)

    def _deliver(self, job: Job, delta: Delta) -> None:
        try:
            job.deliver(delta)
        except RuntimeError:  # the event loop is closed
            job.is_cancelled = True

    def _ended(self, job: Job, reason: str) -> None:
        assert job.running is not None
        with self._change:
            del self._jobs[job.running]
            self._held = min(self._held, len(self._jobs))
            self._count_waiting()
        now = time.monotonic()
        if reason != "abort":
            self._mean_s += _SMOOTHING * (now - job.joined_at - self._mean_s)
        self._recorder.ended(reason, now - job.since)

    def _fail_one(self, job: Job, error: BaseException | str) -> None:
        if isinstance(error, RequestError):
            self._deliver(job, Delta(job.index, error=error))
        else:
            shown = None if isinstance(error, str) else error
            LOGGER.error("%s: an answer failed: %s", self.name, error, exc_info=shown)
            self._deliver(job, self._failed(job))
        if job.running in self._jobs:
            self._ended(job, "error")

    def _fail_all(self, error: Exception) -> None:
        LOGGER.error("%s: generation failed: %s", self.name, error, exc_info=error)
        for job in list(self._jobs.values()):
            self._deliver(job, self._failed(job))
            self._ended(job, "error")

    def _failed(self, job: Job) -> Delta:
        message = f"{self.name}: generation failed; see the server's log"
        return Delta(job.index, error=RequestError(message, 500))

    def _refuse_queue(self, error: RequestError) -> None:
        with self._change:
            jobs = [*self._jobs.values(), *self._queue.clear()]
            self._jobs.clear()
        for job in jobs:
            self._deliver(job, Delta(job.index, error=error))
