"""Energy, with a fake NVML."""

import sys
import types
from typing import Any

import pytest

from jaxdelegate.benchmark.energy import energy_meter
from jaxdelegate.errors import OptionError


class NVMLError(Exception):
    pass


class Nvml(types.ModuleType):
    """Two GPUs that use 5 J between any two calls."""

    NVMLError = NVMLError

    def __init__(self, counts: bool = True) -> None:
        super().__init__("pynvml")
        self.counts, self.millijoules, self.opened, self.asked = counts, 1000, 0, ""

    def nvmlInit(self) -> None:  # noqa: N802 (NVML's name)
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.opened -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return f"index {index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return f"uuid {uuid}"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:  # noqa: N802
        if not self.counts:
            raise NVMLError
        self.asked = handle
        self.millijoules += 5000
        return self.millijoules


def gpu(ordinal: int = 1) -> Any:
    return types.SimpleNamespace(platform="gpu", local_hardware_id=ordinal)


@pytest.mark.parametrize(
    ("visible", "handle"),
    [(None, "index 1"), ("3,2", "index 2"), ("GPU-a,GPU-b", "uuid GPU-b")],
)
def test_joules_of_the_gpu_that_cuda_means(
    visible: str | None, handle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with energy_meter(gpu()) as meter:
        assert meter is not None
        meter.start()
        assert meter.joules() == 5.0
        assert meter.joules() == 10.0
        assert nvml.opened == 1
    assert nvml.asked == handle
    assert nvml.opened == 0


def test_no_meter_without_a_gpu_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml(counts=False)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    for device in (None, types.SimpleNamespace(platform="cpu"), gpu()):
        with energy_meter(device) as meter:
            assert meter is None
    assert nvml.opened == 0


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with energy_meter(gpu()) as meter:
        assert meter is None
    requested = energy_meter(gpu(), is_requested=True)
    with pytest.raises(OptionError, match=r"pip install 'nvidia-ml-py>="), requested:
        pass


def test_energy_that_is_not_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    with energy_meter(gpu(), is_requested=False) as meter:
        assert meter is None
