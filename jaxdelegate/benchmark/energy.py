"""Energy of an NVIDIA GPU, from its counter (NVML)."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

from jaxdelegate.errors import OptionError
from jaxdelegate.optional import optional_module


@dataclasses.dataclass
class EnergyMeter:
    """Joules since the meter was opened; the counter is updated every 20 to 100 ms."""

    _library: Any
    _handle: Any
    _start: int = 0

    def start(self) -> None:
        self._start = self._millijoules()

    def joules(self) -> float:
        """What the whole GPU has used since `start`, for all processes."""
        return (self._millijoules() - self._start) / 1e3

    def _millijoules(self) -> int:
        return int(self._library.nvmlDeviceGetTotalEnergyConsumption(self._handle))


@contextlib.contextmanager
def energy_meter(device: Any, *, is_requested: bool | None = None) -> Iterator[EnergyMeter | None]:
    """A meter for a jax.Device or None; None if it is not an NVIDIA GPU that counts its energy.

    With `is_requested` None, a missing library means no meter; with True it is an error.
    """
    if device is None or device.platform not in ("gpu", "cuda") or is_requested is False:
        yield None
        return
    try:
        library = optional_module("pynvml", "nvml")
    except OptionError:
        if is_requested:
            raise
        yield None
        return
    try:
        library.nvmlInit()
    except library.NVMLError:
        yield None
        return
    try:
        yield _opened(library, device.local_hardware_id)
    finally:
        library.nvmlShutdown()


def _opened(library: Any, ordinal: int) -> EnergyMeter | None:
    try:
        meter = EnergyMeter(library, _handle(library, ordinal))
        meter.start()
    except library.NVMLError:  # a GPU older than Volta, or no permission
        return None
    return meter


def _handle(library: Any, ordinal: int) -> Any:
    """The GPU that CUDA calls `ordinal`: the environment may hide or reorder GPUs."""
    visible = [v.strip() for v in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    name = visible[ordinal] if ordinal < len(visible) and visible[ordinal] else str(ordinal)
    if name.isdigit():
        return library.nvmlDeviceGetHandleByIndex(int(name))
    return library.nvmlDeviceGetHandleByUUID(name)
