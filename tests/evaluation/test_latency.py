import pytest

from jaxdelegate.evaluation.latency import Latency, Waits


def test_statistics_over_images() -> None:
    latency = Latency.of([0.001, 0.002, 0.006])
    assert latency.avg_us == pytest.approx(3000)
    assert latency.std_deviation_us == pytest.approx(2160.2469)  # sqrt((4 + 1 + 9) / 3) ms
    assert (latency.min_us, latency.max_us, latency.last_us) == (1000, 6000, 6000)
    assert latency.sum_us == pytest.approx(9000)
    assert str(latency) == "avg=3000(us), std_dev=2160(us)"


def test_no_images() -> None:
    assert str(Latency.of([])) == "avg=0(us), std_dev=0(us)"


def test_waits_in_a_line() -> None:
    waits = Waits(wall_s=12.34, decode_wait=0.5, device_wait=0.0625, device_busy=0.25)
    assert str(waits) == "decode wait 50.0%, device wait 6.2%, device busy 25.0% of 12.3 s"
