"""The thread that generates: turns of clients, limits, cancelling and errors, with a fake batch."""

import asyncio
import dataclasses
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from jaxdelegate.errors import ModelError
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.sampling_params import SamplingParams
from jaxdelegate.lm.scheduler import ActiveRequest
from jaxdelegate.lm.text_stream import StoppedStream, TextStream
from jaxdelegate.serve.clients import Client, RequestError
from jaxdelegate.serve.metrics import TextRecorder
from jaxdelegate.serve.openai.batching import Delta, Job, TextBatcher
from jaxdelegate.serve.openai.fair_queue import FairQueue
from jaxdelegate.serve.settings import ServeSettings
from tests.lm.test_text_stream import Bytes


class FakeScheduler:
    """Each sequence gets its prompt, a byte in each run; runs wait for permits."""

    slots = 2
    is_held = False
    waiting = 0

    def __init__(self) -> None:
        self.running: list[ActiveRequest] = []
        self.joined = queue.Queue[bytes]()
        self.left = queue.Queue[ActiveRequest]()
        self.permits = threading.Semaphore(0)
        self.error: Exception | None = None
        self.compiled_later = set[bytes]()

    @property
    def free(self) -> int:
        return self.slots - len(self.running)

    @property
    def use(self) -> float:
        return len(self.running) / self.slots

    def join(self, request: Request) -> ActiveRequest:
        if request.ids[0] == 0:
            raise ValueError("a bad prompt")
        running = ActiveRequest(request, 0, 0, 0)
        self.running.append(running)
        self.joined.put(bytes(request.ids))
        return running

    def is_ready(self, request: Request) -> bool:
        return bytes(request.ids) not in self.compiled_later

    def leave(self, running: ActiveRequest) -> None:
        if running in self.running:
            self.running.remove(running)
            self.left.put(running)

    def step(self) -> list[ActiveRequest]:
        if not self.running:
            return []
        self.permits.acquire()
        if self.error is not None:
            raise self.error
        found = list(self.running)
        for running in found:
            running.tokens.append(running.request.ids[len(running.tokens)])
            running.settled = len(running.tokens)
            if running.settled == len(running.request.ids):
                running.finish_reason = "length"
                self.running.remove(running)
        return found


@dataclasses.dataclass(eq=False)
class Item:
    """In a queue, of a client `address/key`."""

    name: str

    @property
    def client(self) -> Client:
        return Client(*self.name.split("/"))


class Server:
    """A batcher with fake batches."""

    def __init__(self, max_queue_size: int = 3, error: Exception | None = None) -> None:
        self.batches = [FakeScheduler()]
        self.recorder, self._error = TextRecorder(), error
        settings = ServeSettings(max_batch_size=2, max_queue_size=max_queue_size)
        self.batcher = TextBatcher("m", settings, self.recorder, self._prepare, self._open)

    @property
    def batch(self) -> FakeScheduler:
        return self.batches[-1]

    def _prepare(self) -> None:
        if self._error is not None:
            raise self._error

    def _open(self) -> Any:
        return self.batch

    def submit(self, text: str, client: str = "c", stops: tuple[str, ...] = ()) -> "Call":
        call = Call(text, client, stops)
        self.batcher.submit([call.job])
        return call


class Call:
    """A job and what it got."""

    def __init__(self, text: str, client: str, stops: tuple[str, ...]) -> None:
        self.deltas = queue.Queue[Delta]()
        stream = StoppedStream(TextStream(Bytes()), stops)
        request = Request(list(text.encode()), 99, SamplingParams())
        self.job = Job(0, Client(*client.split("/")), request, stream, self.deltas.put)

    def next(self) -> Delta:
        return self.deltas.get(timeout=20)

    def text(self) -> str:
        """All of it."""
        found = ""
        while True:
            delta = self.next()
            if delta.error is not None:
                raise delta.error
            found += "".join(part.text for part in delta.parts)
            if delta.finish_reason is not None:
                return f"{found}|{delta.finish_reason}"


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    server.batcher.start()
    yield server
    server.batch.permits.release(1000)
    server.batcher.close()


def test_sequences_join_when_others_end(server: Server) -> None:
    first, second, third = (server.submit(text) for text in ("ab", "cdef", "gh"))
    server.batch.permits.release(1000)
    assert [c.text() for c in (first, second, third)] == ["ab|length", "cdef|length", "gh|length"]
    assert [server.batch.joined.get(timeout=20) for _ in range(3)] == [b"ab", b"cdef", b"gh"]


def test_clients_take_turns() -> None:
    server = Server(max_queue_size=9)
    for text in ("a1", "a2", "a3", "a4"):
        server.submit(text, "a")
    last = [server.submit(t, t[0]) for t in ("b1", "c1", "b2")][-1]
    server.batcher.start()
    server.batch.permits.release(1000)
    last.text()
    server.batcher.close()
    found = [server.batch.joined.get(timeout=20).decode() for _ in range(7)]
    assert found == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_a_full_queue_says_when_to_try_again(server: Server) -> None:
    calls = [server.submit("xy") for _ in range(5)]  # two in slots, three that wait
    with pytest.raises(RequestError, match="the queue is full") as found:
        server.submit("xy")
    assert found.value.status == 429
    assert int(found.value.headers["Retry-After"]) >= 1
    server.batcher.cancel([calls[-1].job])
    calls[-1] = server.submit("z")
    server.batch.permits.release(1000)
    assert [c.text() for c in calls] == [*["xy|length"] * 4, "z|length"]


def test_cancelled_sequences_free_their_slots(server: Server) -> None:
    first = server.submit("a" * 50)
    server.batch.permits.release()
    assert first.next().parts[0].text == "a"
    waiting = [server.submit("bc") for _ in range(3)]
    server.batcher.cancel([first.job, waiting[2].job])
    server.batch.permits.release(1000)
    assert server.batch.left.get(timeout=20) is first.job.running
    assert [c.text() for c in waiting[:2]] == ["bc|length"] * 2
    assert waiting[2].deltas.empty()


def test_a_stop_text_ends_a_sequence(server: Server) -> None:
    server.batch.permits.release(1000)
    call = server.submit("one two three", stops=("tw", "zzz"))
    assert call.text() == "one |stop"
    assert server.batch.left.get(timeout=20) is call.job.running
    assert call.job.stream.count == 6


def test_an_error_ends_what_runs_but_not_what_waits(server: Server) -> None:
    failed, also, waits = (server.submit("abc") for _ in range(3))
    broken = server.batch
    broken.joined.get(timeout=20), broken.joined.get(timeout=20)
    server.batches.append(FakeScheduler())
    broken.error = RuntimeError("secret")
    broken.permits.release()
    for call in (failed, also):
        with pytest.raises(RequestError, match=r"^m: generation failed; see") as found:
            call.text()
        assert found.value.status == 500
    server.batch.permits.release(1000)
    assert waits.text() == "abc|length"


def test_a_prompt_that_cannot_join_is_not_lost(server: Server) -> None:
    with pytest.raises(RequestError, match="generation failed"):
        server.submit("\0").text()
    server.batch.permits.release(1000)
    assert server.submit("ok").text() == "ok|length"


class PanicException(BaseException):
    """Like the exception that pyo3 raises."""


@pytest.mark.parametrize("error", [ValueError("secret"), PanicException("secret")])
def test_an_error_of_one_sequence_is_its_own(server: Server, error: BaseException) -> None:
    failing, other = Call("abcdef", "c", ()), Call("ghijkl", "d", ())

    def add(*_: Any) -> Any:
        raise error

    failing.job.stream.add = add  # type: ignore[method-assign]
    server.batcher.submit([failing.job])
    server.batcher.submit([other.job])
    server.batch.permits.release(1000)
    with pytest.raises(RequestError, match=r"^m: generation failed; see") as found:
        failing.text()
    assert found.value.status == 500
    assert server.batch.left.get(timeout=20) is failing.job.running  # its slot is free
    assert other.text() == "ghijkl|length"
    assert server.submit("mn").text() == "mn|length"


def test_a_prompt_that_cannot_join_leaves_others_alone(server: Server) -> None:
    other = server.submit("abcdef")
    server.batch.joined.get(timeout=20)
    wrong = server.submit("\0")
    server.batch.permits.release(1000)
    with pytest.raises(RequestError, match="generation failed"):
        wrong.text()
    assert other.text() == "abcdef|length"


def test_a_constraint_that_gives_up(server: Server) -> None:
    call, other = server.submit("a"), server.submit("def")
    server.batch.joined.get(timeout=20), server.batch.joined.get(timeout=20)
    assert call.job.running is not None
    call.job.running.refusal = "too complex"
    server.batch.permits.release(1000)
    with pytest.raises(RequestError, match=r"change the schema, .* gave up: too complex") as found:
        call.text()
    assert found.value.status == 400
    assert other.text() == "def|length"


def test_a_model_that_cannot_be_opened_refuses_requests() -> None:
    server = Server(error=ModelError("damaged"))
    early = server.submit("x")
    server.batcher.start()
    with pytest.raises(RequestError, match="damaged") as found:
        early.text()
    assert found.value.status == 503
    with pytest.raises(RequestError, match="m failed: damaged"):
        server.submit("x")
    server.batcher.close()


def test_closing_finishes_what_was_accepted() -> None:
    server = Server()
    calls = [server.submit(text) for text in ("ab", "c", "def")]
    server.batcher.start()
    closing = threading.Thread(target=server.batcher.close)
    closing.start()
    server.batch.permits.release(1000)
    assert [c.text() for c in calls] == ["ab|length", "c|length", "def|length"]
    closing.join(20)
    with pytest.raises(RequestError, match="shutting down") as found:
        server.submit("x")
    assert found.value.status == 503


def test_an_event_loop_that_was_closed(server: Server) -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    call = Call("abcdefghij", "c", ())
    call.job.deliver = lambda delta: loop.call_soon_threadsafe(call.deltas.put, delta) and None
    server.batcher.submit([call.job])
    server.batch.permits.release(3)
    assert server.batch.left.get(timeout=20) is call.job.running
    server.batch.permits.release(1000)
    assert server.submit("x").text() == "x|length"


def test_metrics(server: Server) -> None:
    server.batch.permits.release(1000)
    for text in ("abc", "de"):
        server.submit(text).text()
    server.batcher.close()
    read = server.recorder.read()
    assert read.values["generation_tokens"] == read.values["prompt_tokens"] == 5
    assert read.values["num_requests_running"] == read.values["num_requests_waiting"] == 0
    assert read.reasons == {"length": 2}
    counts = {name: buckets[-1][1] for name, (buckets, _) in read.histograms.items()}
    assert counts == {
        "time_to_first_token_seconds": 2,
        "time_per_output_token_seconds": 3,
        "e2e_request_latency_seconds": 2,
    }


def test_slots_that_wait_for_programs_do_not_count(server: Server) -> None:
    server.batch.waiting = 1
    calls = [server.submit(text) for text in ("ab", "cd", "ef")]
    server.batch.permits.release()
    for call in calls[:2]:
        call.next()
    end, counts = time.monotonic() + 20, None
    while counts != (1, 2) and time.monotonic() < end:
        values = server.recorder.read().values
        counts = values["num_requests_running"], values["num_requests_waiting"]
        time.sleep(0.001)
    assert counts == (1, 2)


def test_addresses_take_turns_and_then_their_keys() -> None:
    """Keys are not checked: 800 new ones of one address count as one client for the others."""
    waiting: FairQueue[Item] = FairQueue()
    waiting.add(Item(f"bad/{number}") for number in range(800))
    waiting.add([Item("good"), Item("good"), Item("third/a"), Item("third/a"), Item("third/b")])
    found = [waiting.take(bool) for _ in range(8)]
    assert [item.name for item in found if item] == [
        *("bad/0", "good", "third/a", "bad/1", "good", "third/b", "bad/2", "third/a")
    ]


def test_what_may_not_go_yet_keeps_its_place() -> None:
    waiting: FairQueue[Item] = FairQueue()
    items = [Item(client) for client in ("a", "a", "b")]
    waiting.add(items)
    assert waiting.take(lambda item: item is not items[0]) is items[1]
    assert waiting.take(bool) is items[2]
    assert waiting.take(bool) is items[0]


def test_many_that_may_not_go_are_not_looked_at() -> None:
    """Those of a full queue take long."""
    waiting: FairQueue[Item] = FairQueue()
    waiting.add([*(Item("bad") for _ in range(1000)), Item("good")])
    seen = list[Item]()
    found = waiting.take(lambda item: seen.append(item) or item.name == "good")  # type: ignore[func-returns-value]
    assert found is not None
    assert len(seen) == 9


@pytest.mark.parametrize(
    ("has", "client", "count", "displaced"),
    [
        ({"bad": 9}, "good", 1, "bad"),
        ({"bad": 9}, "good", 8, "bad"),
        ({"bad": 9}, "good", 9, None),  # it would have as many
        ({"bad": 9}, "bad", 1, None),
        ({"bad": 5, "worse": 9}, "bad", 1, "worse"),
        ({"x/bad": 9}, "x/good", 1, "x/bad"),
        ({"x/bad": 9, "x/good": 8}, "x/good", 1, None),
        ({"x/bad": 5, "y": 5}, "x/good", 1, "x/bad"),  # no address has more, but a key of its own
        ({f"bad/{n}": 1 for n in range(9)}, "good", 3, "bad/0"),
        ({}, "good", 1, None),
    ],
)
def test_who_has_more_than_a_client(
    has: dict[str, int], client: str, count: int, displaced: str | None
) -> None:
    waiting: FairQueue[Item] = FairQueue()
    items = {name: [Item(name) for _ in range(count)] for name, count in has.items()}
    for own in items.values():
        waiting.add(own)
    found = waiting.displaced_by(Client(*client.split("/")), count)
    assert found is (None if displaced is None else items[displaced][-1])


def test_a_client_that_fills_the_queue_does_not_shut_out_others(server: Server) -> None:
    """Its newest prompts leave, and it hears of it; the slots are its own until they are free."""
    bad = [server.submit("xy", "bad") for _ in range(5)]
    for _ in range(server.batch.slots):
        server.batch.joined.get(timeout=20)
    with pytest.raises(RequestError, match="the queue is full with 3 prompts"):
        server.submit("xy", "bad")
    good = server.submit("ab", "good")
    with pytest.raises(RequestError, match="clients with fewer go first") as error:
        bad[-1].text()
    assert error.value.status == 429
    third = server.submit("cd", "third")
    with pytest.raises(RequestError, match="the queue is full"):
        bad[-2].text()
    with pytest.raises(RequestError, match="the queue is full"):
        server.batcher.submit([Call("ef", "good", ()).job for _ in range(2)])
    server.batch.permits.release(1000)
    assert [c.text() for c in (*bad[:3], good, third)] == [
        *["xy|length"] * 3,
        "ab|length",
        "cd|length",
    ]


def test_a_refused_request_displaces_nothing(server: Server) -> None:
    bad = [server.submit("xy", "bad") for _ in range(5)]
    for _ in range(server.batch.slots):
        server.batch.joined.get(timeout=20)
    with pytest.raises(RequestError, match="the queue is full"):
        server.batcher.submit([Call("ab", "good", ()).job for _ in range(2)])
    server.batch.permits.release(1000)
    assert [c.text() for c in bad] == ["xy|length"] * 5


def test_what_waits_for_programs_holds_no_slot(server: Server) -> None:
    server.batch.compiled_later |= {b"late"}
    late = [server.submit("late", "bad") for _ in range(2)]
    server.batch.permits.release(1000)
    assert server.submit("ab", "good").text() == "ab|length"
    assert server.submit("cd", "bad").text() == "cd|length"
    assert server.batch.joined.qsize() == 2
    server.batch.compiled_later.clear()
    assert [call.text() for call in late] == ["late|length"] * 2


def test_a_queue_forgets_items() -> None:
    waiting: FairQueue[Item] = FairQueue()
    a, b, c = Item("x"), Item("x"), Item("y")
    waiting.add([a, b, c])
    assert waiting.remove(a)
    assert not waiting.remove(a)
    assert waiting.remove(c)
    assert len(waiting) == 1
    assert waiting.take(lambda item: item is not b) is None
    assert waiting.take(bool) is b
    waiting.add([a, c])
    assert waiting.clear() == [a, c]
    assert len(waiting) == 0
