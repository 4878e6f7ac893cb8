"""Timed runs of a session that does nothing."""

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest

from jaxdelegate.benchmark.options import RunOptions
from jaxdelegate.benchmark.timing import overlapping_runs, timed_runs


class Session:
    """Takes some seconds for each run, and to set its inputs."""

    def __init__(self, running: float = 0.0, setting: float = 0.0) -> None:
        self.running, self.setting, self.events = running, setting, ""

    def set(self, arrays: Any) -> None:
        self.events += "s" * len(arrays)
        time.sleep(self.setting)

    def invoke(self) -> None:
        self.events += "i"
        time.sleep(self.running)


def timed(session: Session, *, warm: bool = False, **options: Any) -> tuple[float, ...]:
    lines: list[str] = []
    limits = RunOptions(**{"min_secs": 0.0, "warmup_min_secs": 0.0, **options})
    stat = timed_runs(session, [1, 2], limits, warm=warm, log=lines.append)  # type: ignore[arg-type]
    assert lines[0].startswith("Running benchmark for at least ")
    assert lines[1] == f"{stat}\n"
    return stat.values


def test_inputs_are_set_before_each_run_and_not_timed() -> None:
    session = Session(setting=0.05)
    times = timed(session, num_runs=3)
    assert session.events == "ssi" * 3
    assert min(times) < 50_000


def test_the_warm_up_has_limits_of_its_own() -> None:
    assert len(timed(Session(), warm=True, num_runs=2, warmup_runs=5)) == 5
    assert len(timed(Session(), num_runs=2, warmup_runs=5)) == 2


@pytest.mark.parametrize(
    ("options", "least", "most"),
    [
        ({"num_runs": 1, "min_secs": 0.05}, 2, 10),
        ({"num_runs": 100, "max_secs": 0.05}, 1, 10),
        ({"num_runs": 100, "dry_run": True}, 0, 0),
    ],
)
def test_limits(options: dict[str, Any], least: int, most: int) -> None:
    assert least <= len(timed(Session(0.01), **options)) <= most


def test_runs_are_paced() -> None:
    start = time.perf_counter()
    timed(Session(), num_runs=5, run_delay=0.02)
    assert time.perf_counter() - start > 5 * 0.02
    start = time.perf_counter()
    timed(Session(0.005), num_runs=5, run_frequency=50)
    assert time.perf_counter() - start > 5 / 50


@pytest.mark.parametrize(
    ("in_flight", "runs", "expected"),
    [(1, 3, "+0 -0 +1 -1 +2 -2"), (2, 3, "+0 +1 -0 +2 -1 -2"), (4, 2, "+0 +1 -0 -1")],
)
def test_the_requested_number_of_runs_is_in_flight(
    in_flight: int, runs: int, expected: str
) -> None:
    events: list[str] = []
    number = itertools.count(-1)  # the first is not timed

    def start() -> Callable[[], None]:
        n = next(number)
        events.append(f"+{n}")
        return lambda: events.append(f"-{n}")

    options = RunOptions(num_runs=runs, min_secs=0, inflight=in_flight)
    throughput = overlapping_runs(start, options, batch=8)
    assert " ".join(events) == f"+-1 --1 {expected}"
    assert (throughput.in_flight, throughput.runs) == (in_flight, runs)
    assert throughput.inferences_per_second == pytest.approx(8 * runs / throughput.seconds)
