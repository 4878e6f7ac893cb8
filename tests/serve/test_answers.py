"""What the sequences of a request get, on the side of the event loop."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from jaxdelegate.serve.clients import NO_CLIENT, RequestError
from jaxdelegate.serve.openai.answers import Answers
from jaxdelegate.serve.openai.batching import Delta, Job


class Batcher:
    """Delivers deltas that are given to it."""

    name = "m"

    def __init__(self, *deltas: Delta) -> None:
        self.deltas = deltas
        self.cancelled: list[Job] = []

    def submit(self, jobs: Sequence[Job]) -> None:
        for delta in self.deltas:
            jobs[delta.index].deliver(delta)

    def cancel(self, jobs: Sequence[Job]) -> None:
        self.cancelled += jobs


def asked(*deltas: Delta, timeout_s: float = 0.0) -> list[Delta]:
    """What a request for two sequences gets; they are cancelled afterwards."""

    async def ask() -> list[Delta]:
        nothing: Any = None
        jobs = [Job(index, NO_CLIENT, nothing, nothing) for index in range(2)]
        batcher: Any = Batcher(*deltas)
        answers = Answers(batcher, jobs, timeout_s)
        answers.submit()
        try:
            return await answers.all()
        finally:
            await answers.release()
            assert batcher.cancelled == jobs

    return asyncio.run(ask())


def test_they_end_with_the_last_sequence() -> None:
    deltas = [Delta(0), Delta(1, finish_reason="stop"), Delta(0), Delta(0, finish_reason="length")]
    assert asked(*deltas, Delta(1)) == deltas


def test_an_error_of_one_ends_all() -> None:
    with pytest.raises(RequestError, match="no"):
        asked(Delta(0), Delta(1, error=RequestError("no")))


def test_all_of_them_have_one_time_limit() -> None:
    with pytest.raises(RequestError, match=r"m: .* longer than 0\.01 s") as error:
        asked(Delta(0, finish_reason="stop"), Delta(1), timeout_s=0.01)
    assert error.value.status == 504
