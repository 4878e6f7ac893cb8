"""Memory of the process and of the device."""

import dataclasses
import importlib
import sys
import threading
from pathlib import Path
from typing import Any, Self

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # proc(5): resets the high water mark of the resident set


@dataclasses.dataclass(frozen=True)
class HostMemory:
    """The memory of the process in KiB."""

    resident: int
    peak: int  # the high water mark of `resident`
    shared: int = 0  # files and shared memory

    @classmethod
    def now(cls) -> "HostMemory":
        if _STATUS.exists():
            lines = (line.split() for line in _STATUS.read_text().splitlines())
            fields = {words[0][:-1]: int(words[1]) for words in lines if words[-1:] == ["kB"]}
            shared = fields.get("RssFile", 0) + fields.get("RssShmem", 0)
            return cls(fields.get("VmRSS", 0), fields.get("VmHWM", 0), shared)
        resource = importlib.import_module("resource")  # not on Windows
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peak //= 1024 if sys.platform == "darwin" else 1
        return cls(peak, peak)


def reset_peak() -> None:
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:  # another system, or no permission: the mark stays, and deltas are lower bounds
        return


@dataclasses.dataclass(frozen=True)
class Footprint:
    """TFLite's memory figures: the growth of the process since the start, in KiB."""

    init_kb: int
    overall_kb: int
    peak_mb: float | None = None  # sampled; MiB


class PeakMonitor:
    def __init__(self, interval_ms: int) -> None:
        self._interval = interval_ms / 1000
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.peak_mb = 0.0

    def _sample(self) -> None:
        while True:
            self.peak_mb = max(self.peak_mb, HostMemory.now().resident / 1024)
            if self._stop.wait(self._interval):
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()


@dataclasses.dataclass(frozen=True)
class DeviceMemory:
    """The memory of one device in bytes."""

    device: str
    # What XLA planned for the compiled partitions: arguments, results and temporaries.
    programs_bytes: int
    # Figures of the allocator; None: the platform has no such figures (the CPU).
    in_use_bytes: int | None = None
    peak_bytes: int | None = None  # the allocator's peak, or None
    limit_bytes: int | None = None

    @classmethod
    def of(cls, device: Any, executables: list[Any]) -> "DeviceMemory":
        stats = device.memory_stats() or {}
        return cls(
            str(device),
            sum(map(_planned_bytes, executables)),
            stats.get("bytes_in_use"),
            stats.get("peak_bytes_in_use"),
            stats.get("bytes_limit"),
        )

    def __str__(self) -> str:
        text = f"programs={self.programs_bytes / 2**20:g}"
        if self.peak_bytes is None:
            return text
        in_use, peak = (self.in_use_bytes or 0) / 2**20, self.peak_bytes / 2**20
        return f"{text} in_use={in_use:g} peak={peak:g}"


def _planned_bytes(executable: Any) -> int:
    analysis = executable.memory_analysis()
    if analysis is None:  # the backend does not report it
        return 0
    names = ("argument_size_in_bytes", "output_size_in_bytes", "temp_size_in_bytes")
    return sum(int(getattr(analysis, name)) for name in names)
