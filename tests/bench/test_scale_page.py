"""docs/scale.md is current, and its model agrees with calculations by hand."""

import dataclasses
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "scale.md"
GENERATE: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "generate_scale.py"))
MODEL = "resnet50_224"


@pytest.fixture
def measured() -> Any:
    """10 ms for an image: 7.5 of the model, 2 of decoding, 500 us of the pipeline."""
    found = GENERATE["measured"]()
    return dataclasses.replace(found, core_ms={MODEL: 7.5}, decode_ms=2.0, pipeline_us=500.0)


def assumed(**values: float) -> Any:
    return GENERATE["Assumptions"](**values)


def test_the_page_is_as_the_results_say() -> None:
    page = PAGE.read_text()
    assert GENERATE["filled"](page) == page, "run `python docs/generate_scale.py`"


def test_other_assumptions_are_another_page() -> None:
    page = PAGE.read_text()
    other = GENERATE["filled"](page, assumed(core_price=0.08))
    assert "| `--core_price` | 0.08 |" in other
    assert other != page


def test_a_page_without_a_mark_is_refused() -> None:
    with pytest.raises(ValueError, match="no mark <!-- table: assumptions -->"):
        GENERATE["filled"]("# nothing")


@pytest.mark.parametrize(
    ("cores", "rate", "limit"),
    [
        (1, 100, "cores"),
        (8, 800, "cores"),
        (10, 1000, "hosts' network"),  # one host of 16 cores reads 1000 files
        (100, 5000, "storage"),  # seven hosts would read 7000
    ],
)
def test_what_ends_first(measured: Any, cores: int, rate: float, limit: str) -> None:
    a = assumed(item_bytes=125e3, host_gbit=1, storage_gbit=5, cores_per_host=16)
    found = GENERATE["on_cores"](measured, a, MODEL, cores)
    assert found.rate == pytest.approx(rate)
    assert found.gbit == pytest.approx(rate / 1000)
    if cores != 10:  # there both are equal
        assert found.limit == limit


def test_a_gpu_at_its_peaks(measured: Any) -> None:
    row = {"batch": 100, "moved_mb": 2000.0, "gflop": 100.0}
    m = dataclasses.replace(measured, gpu={MODEL: row})
    by_memory = GENERATE["gpu_at_peaks"](m, assumed(gpu_tbyte=2, gpu_tflop=1000), MODEL)
    assert by_memory == pytest.approx(100 / 1e-3)
    by_products = GENERATE["gpu_at_peaks"](m, assumed(gpu_tbyte=2, gpu_tflop=10), MODEL)
    assert by_products == pytest.approx(100 / 10e-3)
