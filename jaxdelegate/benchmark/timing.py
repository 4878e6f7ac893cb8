"""Timed runs: one after another as in TFLite's tool, or several in flight."""

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from tqdm import tqdm

from jaxdelegate.benchmark.options import RunOptions
from jaxdelegate.benchmark.session import Session
from jaxdelegate.measuring.stats import Stat
from jaxdelegate.text import plural

Log = Callable[[str], None]


def micros() -> int:
    return time.perf_counter_ns() // 1000


def timed_runs(
    session: Session, arrays: Sequence[Any], options: RunOptions, *, warm: bool, log: Log
) -> Stat:
    """Run until both the count and the seconds are reached, but at most max_secs.

    Returns the times of `invoke` in microseconds; `warm` selects the limits of the warm-up.
    """
    label, n_runs, seconds = "inference", options.num_runs, options.min_secs
    if warm:
        label, n_runs, seconds = "warm-up", options.warmup_runs, options.warmup_min_secs
    if options.dry_run:
        n_runs, seconds = 0, -1.0
    log(
        f"Running benchmark for at least {n_runs} iterations and at least {seconds:g} seconds "
        f"but terminate if exceeding {options.max_secs:g} seconds."
    )
    times: list[int] = []
    now = time.perf_counter()
    enough, most = now + seconds, now + options.max_secs
    pace = _Pace(now, options)
    with tqdm(total=n_runs or None, desc=label, unit="run", leave=False, disable=None) as bar:
        while (len(times) < n_runs or now < enough) and now <= most:
            session.set(arrays)
            start = micros()
            session.invoke()
            times.append(micros() - start)
            bar.update()
            pace.wait()
            now = time.perf_counter()
    stat = Stat(tuple(times))
    log(f"{stat}\n")
    return stat


class _Pace:
    def __init__(self, start: float, options: RunOptions) -> None:
        frequency = options.run_frequency
        self._delay, self._gap = options.run_delay, 1 / frequency if frequency > 0 else 0.0
        self._due = start + self._gap

    def wait(self) -> None:
        delay = self._delay
        if self._gap:
            delay = self._due - time.perf_counter()
            self._due += self._gap
        if delay > 0:
            time.sleep(delay)


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


def overlapping_runs(
    start: Callable[[], Callable[[], Any]], options: RunOptions, *, batch: int
) -> Throughput:
    """Start runs, and wait for the oldest one whenever `options.inflight` runs are started.

    `start` returns a function that waits for the results; a run has `batch` inferences.
    """
    start()()  # warm up
    waiting: deque[Callable[[], Any]] = deque()
    runs, spent, begin = 0, 0.0, time.perf_counter()
    while (runs < options.num_runs or spent < options.min_secs) and spent <= options.max_secs:
        waiting.append(start())
        runs += 1
        if len(waiting) == options.inflight:
            waiting.popleft()()
        spent = time.perf_counter() - begin
    while waiting:
        waiting.popleft()()
    seconds = time.perf_counter() - begin
    return Throughput(options.inflight, runs, seconds, batch * runs / seconds)
