"""Modules of bench/ import each other by plain names, as scripts do."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
PLAIN = (
    "absent_device",
    "accept_report",
    "agreement",
    "device_gates",
    "device_peaks",
    "engines",
    "gpu_switches",
    "harness",
    "hlo_text",
    "http_clients",
    "matrix",
    "onnx_engines",
    "roofline",
    "server_process",
    "text_clients",
    "torch_engines",
    "torch_network",
)


@pytest.fixture(scope="module", autouse=True)
def bench() -> Iterator[None]:
    sys.path.insert(0, str(BENCH))
    yield
    sys.path.remove(str(BENCH))
    for name in PLAIN:
        sys.modules.pop(name, None)
