"""Threads for works: their order, errors, and futures that are cancelled."""

import queue
import threading
from concurrent.futures import CancelledError

import pytest

from jaxdelegate.lm.threads import Lane, in_thread


def test_works_in_their_order() -> None:
    lane, may_go, order = Lane(), threading.Event(), list[int]()

    def work(number: int) -> int:
        may_go.wait(60)
        order.append(number)
        return number

    found = [lane.submit(lambda n=n: work(n)) for n in range(5)]  # type: ignore[misc]
    may_go.set()
    assert [each.result(60) for each in found] == order == [0, 1, 2, 3, 4]
    assert lane.submit(lambda: "later").result(60) == "later"  # its thread has ended, perhaps


def test_a_work_that_is_cancelled_is_not_done() -> None:
    lane, may_go, done = Lane(), threading.Event(), list[str]()
    first = lane.submit(lambda: may_go.wait(60))
    second, third = (lane.submit(lambda name=name: done.append(name)) for name in "ab")  # type: ignore[misc]
    assert second.cancel()
    may_go.set()
    assert first.result(60)
    third.result(60)
    assert not first.cancel()
    with pytest.raises(CancelledError):
        second.result(60)
    assert done == ["b"]


def test_several_threads() -> None:
    lane, running, may_end = Lane(2), queue.Queue[int](), threading.Event()

    def work() -> None:
        running.put(threading.get_ident())
        may_end.wait(60)

    found = [lane.submit(work) for _ in range(3)]
    first, second = running.get(timeout=60), running.get(timeout=60)
    assert first != second
    with pytest.raises(queue.Empty):
        running.get(timeout=0.1)
    may_end.set()
    for each in found:
        each.result(60)


def test_errors_are_those_of_the_work() -> None:
    class PanicError(BaseException):
        pass

    def panics() -> None:
        raise PanicError("no")

    lane = Lane()
    for found in (in_thread(panics), lane.submit(panics)):
        with pytest.raises(PanicError, match="no"):
            found.result(60)
    assert lane.submit(lambda: 1).result(60) == 1


def test_deep_recursion() -> None:
    def depth(n: int) -> int:
        return 0 if n == 0 else 1 + depth(n - 1)

    before = threading.stack_size()
    assert in_thread(lambda: depth(900)).result(60) == 900
    assert threading.stack_size() == before
