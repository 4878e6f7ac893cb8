"""TFLite's statistics line, and the latencies of its evaluation tools."""

import re

import pytest

from jaxdelegate.measuring.stats import Latency, Stat

TFLITE = re.compile(
    r"^count=(\d+) first=(\d+) curr=(\d+) min=(\d+) max=(\d+) avg=([\d.e+]+) std=(\d+)"
    r" p5=(\d+) median=(\d+) p95=(\d+)$"
)


def test_the_line_of_tflite() -> None:
    stat = Stat.of([79449.9, 81350, 77385, 88213])
    found = TFLITE.match(str(stat))
    assert found is not None
    assert [float(v) for v in found.groups()] == [
        4, 79449, 88213, 77385, 88213, 81599.2, 4067, 77385, 81350, 88213,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([], "count=0 p5=0 median=0 p95=0"),
        ([7], "count=1 curr=7 p5=7 median=7 p95=7"),
        ([7, 7], "count=2 curr=7(all same) p5=7 median=7 p95=7"),
    ],
)
def test_lines_that_tflite_abbreviates(values: list[int], line: str) -> None:
    assert str(Stat.of(values)) == line


def test_large_means_are_printed_with_six_digits() -> None:
    assert "avg=1.23457e+06 " in str(Stat.of([1234566, 1234568, 1234570]))


def test_percentiles_are_values_that_occurred() -> None:
    stat = Stat.of(range(100, 0, -1))
    assert [stat.percentile(p) for p in (0, 5, 50, 95, 100)] == [1, 6, 51, 96, 100]


def test_as_dict_divides_by_the_unit() -> None:
    record = Stat.of([1000, 3000]).as_dict(1000)
    assert (record["count"], record["avg"], record["std"], record["newest"]) == (2, 2.0, 1.0, 3.0)
    assert Stat().as_dict()["median"] == 0


def test_latencies_of_an_evaluation() -> None:
    latency = Latency.of([0.001, 0.002, 0.006])
    assert latency.avg_us == pytest.approx(3000)
    assert latency.std_deviation_us == pytest.approx(2160.2469)  # sqrt((4 + 1 + 9) / 3) ms
    assert (latency.min_us, latency.max_us, latency.last_us) == (1000, 6000, 6000)
    assert latency.sum_us == pytest.approx(9000)
    assert str(latency) == "avg=3000(us), std_dev=2160(us)"


def test_no_latencies() -> None:
    assert Latency.of([]) == Latency(0, 0, 0, 0, 0, 0, 0)
    assert str(Latency.of([])) == "avg=0(us), std_dev=0(us)"
