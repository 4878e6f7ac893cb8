"""Throughput from host arrays to host arrays, with several runs in flight."""

import dataclasses
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from jaxdelegate.text import plural


@dataclasses.dataclass(frozen=True)
class Throughput:
    """Overlapping runs: while the device computes one, inputs and outputs of others are copied."""

    in_flight: int  # the maximum number of started runs
    runs: int
    seconds: float  # from the first start to the last result
    inferences_per_second: float  # every element of a batch counts

    def __str__(self) -> str:
        return (
            f"Throughput with {self.in_flight} in flight, from host to host: "
            f"{self.inferences_per_second:g} inferences/s, {plural(self.runs, 'run')} in "
            f"{self.seconds:.3g} s"
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
    """Start runs, and wait for the oldest one whenever `in_flight` runs are started.

    `start` returns a function that waits for the results; a run has `batch` inferences.
    """
    start()()  # warm up
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
