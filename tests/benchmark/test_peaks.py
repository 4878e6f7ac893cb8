"""Peaks of a device."""

import json

import jax
import numpy as np
import pytest

from jaxdelegate.benchmark import peaks
from jaxdelegate.benchmark.options import BenchmarkOptions
from jaxdelegate.benchmark.peaks import DevicePeaks, measured_peaks
from jaxdelegate.benchmark.run import benchmark
from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.providers import flag_values

SIZES = (1 << 16, 1 << 20)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, "_SIDES", {"cpu": (64,)})
    monkeypatch.setattr(peaks, "_SIZES", SIZES)


def test_they_are_measured() -> None:
    found = measured_peaks(jax.devices("cpu")[0], np.dtype(np.float32))
    assert 1e7 < found.flops < 1e14
    assert tuple(found.bandwidths) == SIZES
    assert all(1e7 < bandwidth < 1e14 for bandwidth in found.bandwidths.values())


def test_the_memory_is_the_largest_array() -> None:
    record = DevicePeaks(3e9, {1 << 20: 2e9, 4 << 20: 1e9}, "bfloat16").as_dict()
    assert record == {
        "flops_per_second": 3e9,
        "bytes_per_second": 1e9,
        "flops_source": "measured: product of matrices, bfloat16",
        "bytes_source": "measured: addition in place",
        "cached": {"1048576": 2e9},
    }


def test_a_benchmark_reports_them_in_the_dtype_of_its_products() -> None:
    options = BenchmarkOptions(
        num_runs=1, min_secs=0, warmup_runs=0, warmup_min_secs=0, measure_peaks=True
    )
    report = benchmark(mobilenet_v1(size=32, width=0.25), options)
    assert report.peaks is not None
    assert report.peaks.dtype == "float32"
    assert json.loads(json.dumps(report.as_dict()))["peaks"] == report.peaks.as_dict()


def test_no_peaks_without_jax_delegate() -> None:
    options = BenchmarkOptions(
        num_runs=1, min_secs=0, warmup_runs=0, warmup_min_secs=0, measure_peaks=True
    )
    report = benchmark(
        mobilenet_v1(size=32, width=0.25), options, values=flag_values(use_jax=False)
    )
    assert report.peaks is None
    assert "peaks" not in report.as_dict()
