"""Damaged bundles are read or refused, in bounded time and memory."""

import pytest

from tests.fuzz.run_bundles import KINDS, DamagedBundles
from tests.fuzz.run_mutations import Tally, run
from tests.fuzz.workers import Worker

COUNT = 120
MOST_BYTES = 128 << 20  # that reading a bundle of 400 KB may take


def test_damage_is_the_same_each_time() -> None:
    first, second = DamagedBundles(), DamagedBundles()
    damaged = [first.damaged(n) for n in range(40)]
    assert damaged == [second.damaged(n) for n in range(40)]
    assert {kind for kind, *_ in damaged} == set(KINDS)
    assert len({content for _, content, _ in damaged}) == 40


def test_a_bundle_without_damage_is_read() -> None:
    worker = Worker("bundle")
    try:
        outcomes = {kind: worker.run(DamagedBundles().content(kind), 0).kind for kind in KINDS}
    finally:
        worker.close()
    assert outcomes == dict.fromkeys(KINDS, "ran")


@pytest.mark.slow
def test_a_damaged_bundle_is_read_or_refused() -> None:
    worker, tally = Worker("bundle"), Tally()
    try:
        findings = list(run(DamagedBundles(), range(COUNT), {"bundle": worker}, 1, tally))
    finally:
        worker.close()
    assert [{**finding, "content": ...} for finding in findings] == []
    counts = tally.counts["bundle"]
    assert counts.total() == COUNT
    assert counts["ran"] > COUNT / 20
    assert counts["refused: ModelError"] > COUNT / 4
    assert tally.peak < MOST_BYTES
