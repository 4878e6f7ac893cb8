"""Throughput from host arrays to host arrays, with several runs in flight."""

import dataclasses
import time
from collections import deque
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Throughput:
    """Runs that overlapped: while the device computed one, inputs and outputs of others moved."""

    in_flight: int  # the most runs that were begun and not yet waited for
    runs: int
    seconds: float  # of all
    inferences_per_second: float  # a batch counts with each of its elements

    def __str__(self) -> str:
        """One line."""
        return (
            f"Throughput with {self.in_flight} in flight, from host to host: "
            f"{self.inferences_per_second:g} inferences/s, {self.runs} runs in {self.seconds:.3g} s"
        )


def measured(
    start: Callable[[], Callable[[], Any]],
    *,
    in_flight: int,
    batch: int,
    runs: int,
    min_secs: float,
    max_secs: float,
) -> Throughput:
    """Begin runs, and wait for the first of them wherever `in_flight` have begun.

    Args:
        start: begins a run; what it answers waits for the results.
        in_flight: at least 1.
        batch: how many inferences a run is.
        runs: how many at least.
        min_secs: how long at least.
        max_secs: no run begins after these.
    """
    start()()  # whatever is done once only
    waiting: deque[Callable[[], Any]] = deque()
    done = 0
    begun = now = time.perf_counter()
    while (done + len(waiting) < runs or now - begun < min_secs) and now - begun <= max_secs:
        waiting.append(start())
        if len(waiting) == in_flight:
            waiting.popleft()()
            done += 1
        now = time.perf_counter()
    while waiting:
        waiting.popleft()()
        done += 1
    seconds = time.perf_counter() - begun
    return Throughput(in_flight, done, seconds, batch * done / seconds)
