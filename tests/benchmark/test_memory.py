"""Memory of the process and of devices."""

import threading

import jax
import numpy as np
import pytest

from jaxdelegate.benchmark.memory import DeviceMemory, HostMemory, PeakMonitor, reset_peak

MIB = 2**20


def test_the_process_grows_by_what_it_allocates() -> None:
    reset_peak()
    before = HostMemory.now()
    block = np.ones(64 * MIB, np.uint8)
    with PeakMonitor(5) as monitor:
        during = HostMemory.now()
    assert during.resident - before.resident > 55 * 1024
    assert during.peak >= during.resident - 1024
    assert monitor.peak_mb * 1024 >= before.resident + 55 * 1024
    del block
    assert HostMemory.now().peak - before.resident > 55 * 1024  # a high water mark


def test_what_xla_plans_for_programs() -> None:
    x = jax.ShapeDtypeStruct((256, 256), np.float32)
    executable = jax.jit(lambda a: a @ a).lower(x).compile()
    memory = DeviceMemory.of(jax.devices()[0], [executable, executable])
    assert memory.programs_bytes >= 2 * 2 * 256 * 256 * 4
    assert memory.device == str(jax.devices()[0])
    if jax.devices()[0].platform == "cpu":
        assert memory.peak_bytes is None


def test_the_allocators_figures() -> None:
    class Device:
        def memory_stats(self) -> dict[str, int]:
            return {"bytes_in_use": 5, "peak_bytes_in_use": 9, "bytes_limit": 100}

        def __str__(self) -> str:
            return "gpu:0"

    assert DeviceMemory.of(Device(), []) == DeviceMemory("gpu:0", 0, 5, 9, 100)


@pytest.mark.parametrize("interval", [1, 50])
def test_the_monitor_stops_its_thread(interval: int) -> None:
    before = threading.enumerate()
    with PeakMonitor(interval) as monitor:
        pass
    assert set(threading.enumerate()) <= set(before)
    assert monitor.peak_mb > 1
