"""Latencies of a run, and where its wall time went."""

import dataclasses
import math
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Latency:
    """Statistics over images, in microseconds; all zero if there were none."""

    count: int
    last_us: float
    min_us: float
    max_us: float
    sum_us: float
    avg_us: float
    std_deviation_us: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Latency":
        """The statistics of some times in seconds; the deviation is the population's."""
        if not seconds:
            return cls(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        us = [1e6 * s for s in seconds]
        mean = math.fsum(us) / len(us)
        deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in us) / len(us))
        return cls(len(us), us[-1], min(us), max(us), math.fsum(us), mean, deviation)

    def __str__(self) -> str:
        """As TFLite's tools print it."""
        return f"avg={self.avg_us:g}(us), std_dev={int(self.std_deviation_us)}(us)"


@dataclasses.dataclass(frozen=True)
class Waits:
    """Where the wall time of decoding and running went.

    Decoding and the device work at the same time; the slower one makes the other wait.
    """

    wall_s: float
    decode_wait: float  # share of it in which the device side waited for decoded images
    device_wait: float  # share of the decoders' time in which they waited for the device
    device_busy: float  # share of it spent in the model

    def __str__(self) -> str:
        """One line."""
        return (
            f"decode wait {self.decode_wait:.1%}, device wait {self.device_wait:.1%}, "
            f"device busy {self.device_busy:.1%} of {self.wall_s:.3g} s"
        )
