"""The thread of a model: it prepares, works on its queue, ends, and says when it has failed."""

import threading
from collections.abc import Callable, Iterator

import pytest

from jaxdelegate.errors import ModelError, StoppedError
from jaxdelegate.serve.clients import RequestError
from jaxdelegate.serve.worker import Worker


class Echo(Worker):
    """Its queue has numbers; a negative one ends the thread with an error."""

    def __init__(self, prepare: Callable[[], None] = lambda: None) -> None:
        super().__init__("m", prepare)
        self.waiting: list[int] = []
        self.done: list[int] = []
        self.refused: list[RequestError] = []

    def put(self, number: int) -> None:
        with self._change:
            if refusal := self._refusal():
                raise RequestError(refusal, 503)
            self.waiting.append(number)
            self._change.notify()

    def _run_queue(self) -> None:
        while (number := self._next()) is not None:
            if number < 0:
                raise ModelError("negative")
            self.done.append(number)

    def _next(self) -> int | None:
        with self._change:
            while not self.waiting and not self._is_closing:
                self._change.wait()
            return self.waiting.pop(0) if self.waiting else None

    def _refuse_queue(self, error: RequestError) -> None:
        self.refused += [error] * len(self.waiting)


@pytest.fixture
def worker() -> Iterator[Echo]:
    worker = Echo()
    yield worker
    worker.close()


def test_what_was_accepted_is_done_before_the_end(worker: Echo) -> None:
    closed = list[str]()
    worker.resources.callback(closed.append, "first")
    worker.resources.callback(closed.append, "last")
    worker.put(1)
    assert not worker.is_ready
    worker.start()
    worker.start()  # again
    assert worker.wait_until_ready(30)
    worker.put(2)
    worker.close()
    assert worker.done == [1, 2]
    assert closed == ["last", "first"]
    with pytest.raises(RequestError, match="m is shutting down; no requests are accepted"):
        worker.put(3)


def test_one_whose_thread_fails_is_not_ready(
    worker: Echo, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (-1, 2):
        worker.put(number)
    worker.start()
    worker.close()
    assert not worker.is_ready
    with pytest.raises(ModelError, match="negative"):
        worker.wait_until_ready(30)
    assert [(str(e), e.status) for e in worker.refused] == [("m failed: negative", 503)]
    with pytest.raises(RequestError, match="m failed: negative; no requests are accepted"):
        worker.put(3)
    assert "m: cannot be served: negative" in caplog.text
    assert "Traceback" not in caplog.text  # the message of our own errors is enough


def test_it_can_be_closed_while_it_prepares(caplog: pytest.LogCaptureFixture) -> None:
    begun, go = threading.Event(), threading.Event()

    def prepare() -> None:
        worker.check_open()
        begun.set()
        assert go.wait(30)
        worker.check_open()

    worker = Echo(prepare)
    worker.start()
    assert begun.wait(30)
    assert not worker.wait_until_ready(0)
    worker.stop()
    go.set()
    worker.close()
    with pytest.raises(StoppedError, match="m was closed before it was compiled"):
        worker.wait_until_ready(30)
    assert caplog.text == ""
