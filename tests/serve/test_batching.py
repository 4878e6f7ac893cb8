"""Which requests run together, and that every request gets its result or an error."""

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import pytest

from jaxdelegate.serve.batching import Batcher
from jaxdelegate.serve.clients import RequestError
from jaxdelegate.serve.decisions import Costs, Decision, compiled_sizes, decide
from jaxdelegate.serve.metrics import ModelRecorder, RunTimes
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.serve.v2.graph_runner import delegates_for

# Seconds of a run: a batch of 8 takes twice as long as a single item, or eight times as long.
GAINS = Costs({1: 1.0, 2: 1.1, 4: 1.4, 8: 2.0})
LOSES = Costs({1: 1.0, 2: 2.2, 4: 4.4, 8: 9.0})
EVEN = Costs({1: 1.0, 2: 2.01, 4: 4.02, 8: 8.05})

STEEP = Costs({1: 1.0, 2: 1.5, 4: 3.5})


@dataclasses.dataclass
class Request:
    key: Hashable = "a"
    rows: int = 1
    since: float = 0.0
    costs: Costs = GAINS


@pytest.mark.parametrize(
    ("most", "sizes"),
    [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (8, (1, 2, 4, 8)), (12, (1, 2, 4, 8, 12))],
)
def test_compiled_sizes(most: int, sizes: tuple[int, ...]) -> None:
    assert compiled_sizes(most) == sizes


def test_batches_of_many_sizes_are_no_reason_to_warn() -> None:
    (delegate,) = delegates_for(ServeSettings(max_batch_size=64))
    assert delegate.compiler.varying_shapes is None


def test_a_batch_is_padded_to_the_next_size() -> None:
    assert [GAINS.padded(n) for n in (1, 2, 3, 4, 5, 8)] == [1, 2, 4, 4, 8, 8]


@pytest.mark.parametrize(("costs", "best"), [(GAINS, 8), (LOSES, 1), (EVEN, 8)])
def test_best_size(costs: Costs, best: int) -> None:
    assert costs.best == best


@pytest.mark.parametrize(
    ("waiting", "taken"),
    [
        ([Request()], (0,)),
        ([Request()] * 5, (0, 1, 2, 3, 4)),
        ([Request()] * 10, tuple(range(8))),
        ([Request(costs=LOSES)] * 10, (0,)),
        ([Request(costs=EVEN)] * 10, tuple(range(8))),
        ([Request("a"), Request("b"), Request("a")], (0, 2)),
        ([Request(rows=5), Request(rows=3)], (0, 1)),
        ([Request(rows=5), Request(rows=4), Request(rows=1)], (0,)),  # no overtaking
        ([Request(rows=8), Request()], (0,)),
        ([Request(rows=3, costs=LOSES), Request(rows=3, costs=LOSES)], (0,)),
        ([Request(costs=STEEP)] * 3, (0, 1)),  # 2 and 1 are done before a padded 4
    ],
)
def test_which_requests_run_together(waiting: list[Request], taken: tuple[int, ...]) -> None:
    assert decide(waiting, now=1.0, max_delay_s=0.0) == Decision(taken)


def test_the_oldest_waits_for_others_no_longer_than_allowed() -> None:
    waiting = [Request(since=10.0), Request(since=10.4)]
    assert decide(waiting, 10.5, 2.0) == Decision((), 1.5)
    assert decide(waiting, 12.0, 2.0).taken == (0, 1)
    assert decide([Request(since=10.0)] * 8, 10.5, 2.0).taken == tuple(range(8))


def test_no_request_waits_if_batches_gain_nothing() -> None:
    assert decide([Request(since=10.0, costs=LOSES)], 10.0, 2.0).taken == (0,)


# ---- the thread


class Model:
    """A model that multiplies items by ten. It waits for `may_run`, and records its batches."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.threads: set[int] = set()
        self.may_run, self.is_running = threading.Event(), threading.Event()
        self.may_run.set()

    def __call__(self, items: Sequence[Any]) -> tuple[list[Any], RunTimes]:
        self.is_running.set()
        assert self.may_run.wait(30)
        self.threads.add(threading.get_ident())
        self.batches.append(list(items))
        if "bad" in items:
            raise ValueError("a bad item")
        return [item * 10 for item in items], RunTimes(infer_s=0.001)


class Served:
    """A batcher whose model is busy with the item 0 while others are queued."""

    def __init__(self, prepare: Callable[[], None] = lambda: None, **options: Any) -> None:
        self.model, self.recorder = Model(), ModelRecorder()
        settings = ServeSettings(**options)
        self.batcher: Batcher[Any, Any] = Batcher(
            "net", settings, self.recorder, prepare, self.model
        )
        self.batcher.start()

    def submit(self, item: Any, **options: Any) -> "asyncio.Task[Any]":
        given = {"key": "a", "rows": 1, "costs": GAINS, **options}
        return asyncio.create_task(self.batcher.submit(item, **given))

    async def busy(self) -> "asyncio.Task[Any]":
        self.model.may_run.clear()
        first = self.submit(0)
        await asyncio.to_thread(self.model.is_running.wait, 30)
        return first

    async def queued(self, *items: Any, **options: Any) -> "list[asyncio.Task[Any]]":
        tasks = [self.submit(item, **options) for item in items]
        await asyncio.sleep(0)  # each task starts, and queues its item
        return tasks


def run(test: Callable[[Served], Any], **options: Any) -> Served:
    async def main() -> Served:
        served = Served(**options)
        try:
            await test(served)
        finally:
            served.model.may_run.set()
            await asyncio.to_thread(served.batcher.close)
        return served

    return asyncio.run(main())


def test_requests_that_wait_while_the_model_is_busy_form_a_batch() -> None:
    async def test(served: Served) -> None:
        first = await served.busy()
        tasks = await served.queued(*range(1, 13))
        served.model.may_run.set()
        assert await asyncio.gather(first, *tasks) == [10 * n for n in range(13)]

    served = run(test)
    assert served.model.batches == [[0], [*range(1, 9)], [*range(9, 13)]]
    assert len(served.model.threads) == 1
    read = served.recorder.read()
    counts = read.values
    assert counts["inference_request_success"] == counts["inference_count"] == 13
    assert counts["inference_exec_count"] == 3
    assert counts["inference_compute_infer_duration_us"] == pytest.approx(13_000)
    assert read.values["inference_pending_request_count"] == 0
    assert read.reasons == {}


def test_different_keys_are_in_different_batches() -> None:
    async def test(served: Served) -> None:
        first = await served.busy()
        tasks = [t for n in range(1, 7) for t in await served.queued(n, key="ab"[n % 2])]
        served.model.may_run.set()
        assert await asyncio.gather(first, *tasks) == [0, 10, 20, 30, 40, 50, 60]

    assert run(test).model.batches == [[0], [1, 3, 5], [2, 4, 6]]


def test_a_bad_item_fails_alone() -> None:
    async def test(served: Served) -> None:
        await served.busy()
        tasks = await served.queued(1, "bad", 3)
        served.model.may_run.set()
        one, bad, three = await asyncio.gather(*tasks, return_exceptions=True)
        assert (one, three) == (10, 30)
        assert isinstance(bad, ValueError)

    served = run(test)
    assert served.model.batches == [[0], [1, "bad", 3], [1], ["bad"], [3]]
    assert served.recorder.read().reasons == {"BACKEND": 1}


def test_a_full_queue_refuses() -> None:
    async def test(served: Served) -> None:
        await served.busy()
        kept = await served.queued(1, 2)
        (refused,) = await served.queued(3)
        with pytest.raises(
            RequestError, match=r"queue is full with 2 requests.*max_queue_size"
        ) as error:
            await refused
        assert error.value.status == 503
        served.model.may_run.set()
        assert await asyncio.gather(*kept) == [10, 20]

    assert run(test, max_queue_size=2).recorder.read().reasons == {"REJECTED": 1}


def test_a_request_that_times_out_leaves_the_queue() -> None:
    async def test(served: Served) -> None:
        await served.busy()
        late, kept = await served.queued(1, timeout_s=0.001), await served.queued(2)
        with pytest.raises(RequestError, match=r"took longer than 0\.001 s") as error:
            await late[0]
        assert error.value.status == 504
        served.model.may_run.set()
        assert await kept[0] == 20

    served = run(test)
    assert served.model.batches == [[0], [2]]
    assert served.recorder.read().reasons == {"TIMEOUT": 1}


def test_a_request_that_times_out_while_it_runs_does_not_affect_others() -> None:
    async def test(served: Served) -> None:
        served.model.may_run.clear()
        task = served.submit(1, timeout_s=0.001)
        with pytest.raises(RequestError) as error:
            await task
        assert error.value.status == 504
        (other,) = await served.queued(2)
        served.model.may_run.set()
        assert await other == 20

    run(test)


def test_a_cancelled_task_leaves_the_queue() -> None:
    async def test(served: Served) -> None:
        await served.busy()
        gone, kept = await served.queued(1, 2)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        (third,) = await served.queued(3)  # the queue holds two
        served.model.may_run.set()
        assert await asyncio.gather(kept, third) == [20, 30]

    served = run(test, max_queue_size=2)
    assert served.model.batches == [[0], [2, 3]]
    assert served.recorder.read().reasons == {"CANCELED": 1}


def test_a_batch_waits_for_others_up_to_the_delay() -> None:
    """The delay is longer than the test: only a full batch or `close` starts a run."""

    async def test(served: Served) -> None:
        assert await asyncio.gather(*(served.submit(n) for n in range(8))) == [
            10 * n for n in range(8)
        ]
        last = await served.queued(8)
        await asyncio.to_thread(served.batcher.close)
        assert await last[0] == 80

    assert run(test, max_queue_delay_us=10**9).model.batches == [[*range(8)], [8]]


def test_close_runs_queued_requests_and_refuses_new_ones() -> None:
    async def test(served: Served) -> None:
        await served.busy()
        tasks = await served.queued(1, 2)
        closing = asyncio.create_task(asyncio.to_thread(served.batcher.close))
        await asyncio.sleep(0)
        served.batcher.stop()
        with pytest.raises(RequestError, match="is shutting down") as error:
            await served.submit(3)
        assert error.value.status == 503
        served.model.may_run.set()
        assert await asyncio.gather(*tasks) == [10, 20]
        await closing
        await asyncio.to_thread(served.batcher.close)  # again

    run(test)


def test_a_failed_preparation_refuses_all(caplog: pytest.LogCaptureFixture) -> None:
    def prepare() -> None:
        raise ValueError("no such kernel")

    async def test(served: Served) -> None:
        with pytest.raises(ValueError, match="no such kernel"):
            served.batcher.wait_until_ready(30)
        with pytest.raises(RequestError, match="net failed: no such kernel") as error:
            await served.submit(1)
        assert error.value.status == 503

    run(test, prepare=prepare)
    assert "cannot be served" in caplog.text


def test_several_event_loops_share_a_batcher() -> None:
    served = Served()
    results = {}

    def client(number: int) -> None:
        async def main() -> None:
            tasks = [served.submit(10 * number + n) for n in range(10)]
            results[number] = await asyncio.gather(*tasks)

        asyncio.run(main())

    threads = [threading.Thread(target=client, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    served.batcher.close()
    assert results == {n: [10 * (10 * n + k) for k in range(10)] for n in range(4)}
