"""Timed runs of algorithms: how they alternate, and which is the fastest."""

from collections.abc import Callable

import numpy as np

from jaxdelegate.tuning import measure


def test_the_fastest_beyond_noise() -> None:
    fastest = measure.fastest
    assert fastest("a", {"a": [1.0] * 5, "b": [0.9] * 5, "c": [0.8] * 5}) == "c"
    assert fastest("a", {"a": [1.0] * 5, "b": [0.98] * 5}) == "a"  # within 3 %
    assert fastest("a", {"a": [1.0] * 5, "b": [1.2] * 5}) == "a"
    # The median is far lower, but in two of five rounds it was the slower one.
    assert fastest("a", {"a": [1.0] * 5, "b": [0.5, 0.5, 0.5, 1.1, 1.1]}) == "a"
    assert fastest("a", {"a": [1e-5] * 5, "b": [0.9e-5] * 5}) == "a"  # a microsecond


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def spending(self, seconds: float, called: list[str], name: str) -> Callable[[], None]:
        def run() -> None:
            called.append(name)
            self.now += seconds

        return run


def test_interleaved_alternates_and_drops_slow_algorithms() -> None:
    clock, called = FakeClock(), list[str]()
    times = {"a": 1e-3, "b": 2e-3 - 1e-9, "slow": 0.5}
    runs = {name: clock.spending(t, called, name) for name, t in times.items()}
    samples = measure.interleaved(runs, "a", clock)
    assert called.count("slow") == 2
    for name, seconds in times.items():
        np.testing.assert_allclose(samples[name], seconds, rtol=1e-6)
    assert len(samples["a"]) == len(samples["b"]) > 3
    assert len(samples["slow"]) == 1
    rounds = called[6:]  # the first two of each
    assert rounds[:8] == ["a", "a", "b", "b", "b", "b", "a", "a"]


def test_interleaved_ends_in_time() -> None:
    clock, called = FakeClock(), list[str]()
    runs = {name: clock.spending(t, called, name) for name, t in {"a": 2.0, "b": 1.0}.items()}
    samples = measure.interleaved(runs, "a", clock)
    assert {name: len(s) for name, s in samples.items()} == {"a": 3, "b": 3}
