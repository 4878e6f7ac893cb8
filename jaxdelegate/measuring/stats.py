"""Statistics of repeated measurements, as in TFLite's tools (tsl/util/stats_calculator.h)."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Stat:
    """Statistics of measurements, usually in microseconds."""

    values: tuple[float, ...] = ()

    @classmethod
    def of(cls, values: Iterable[float]) -> "Stat":
        """Values are truncated to integers, as in TFLite."""
        return cls(tuple(int(v) for v in values))

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def first(self) -> float:
        return self.values[0] if self.values else 0

    @property
    def newest(self) -> float:
        return self.values[-1] if self.values else 0

    @property
    def min(self) -> float:
        return min(self.values, default=0)

    @property
    def max(self) -> float:
        return max(self.values, default=0)

    @property
    def sum(self) -> float:
        return sum(self.values)

    @property
    def avg(self) -> float:
        return self.sum / self.count if self.values else 0.0

    @property
    def std(self) -> float:
        """The population's standard deviation."""
        if not self.values:
            return 0.0
        mean = self.avg
        return math.sqrt(math.fsum((v - mean) ** 2 for v in self.values) / self.count)

    def percentile(self, percent: int) -> float:
        """A percentile by TFLite's definition, which is one of the values, or 0."""
        if not self.values:
            return 0
        at = min(self.count * percent // 100, self.count - 1)
        return sorted(self.values)[at]

    def line(self) -> str:
        """Everything except the percentiles, in TFLite's format."""
        if not self.values:
            return "count=0"
        if self.min == self.max:
            same = "(all same)" if self.count > 1 else ""
            return f"count={self.count} curr={self.newest}{same}"
        return (
            f"count={self.count} first={self.first} curr={self.newest} min={self.min} "
            f"max={self.max} avg={self.avg:g} std={int(self.std)}"
        )

    def __str__(self) -> str:
        p5, median, p95 = (self.percentile(p) for p in (5, 50, 95))
        return f"{self.line()} p5={p5} median={median} p95={p95}"

    def as_dict(self, unit: float = 1.0) -> dict[str, Any]:
        names = ("first", "newest", "min", "max", "avg", "std")
        record: dict[str, Any] = {"count": self.count}
        record.update({name: getattr(self, name) / unit for name in names})
        for percent in (5, 25, 50, 75, 90, 95, 99):
            key = "median" if percent == 50 else f"p{percent}"
            record[key] = self.percentile(percent) / unit
        return record


@dataclasses.dataclass(frozen=True)
class Latency:
    """Statistics in microseconds without the values, as the evaluation tools report them."""

    count: int
    last_us: float
    min_us: float
    max_us: float
    sum_us: float
    avg_us: float
    std_deviation_us: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> "Latency":
        """The statistics of times in seconds; zeros without times."""
        stat = Stat(tuple(1e6 * s for s in seconds))
        return cls(
            count=stat.count,
            last_us=stat.newest,
            min_us=stat.min,
            max_us=stat.max,
            sum_us=stat.sum,
            avg_us=stat.avg,
            std_deviation_us=stat.std,
        )

    def __str__(self) -> str:
        return f"avg={self.avg_us:g}(us), std_dev={int(self.std_deviation_us)}(us)"

    def fill(self, message: Any) -> None:
        """Most fields of a tflite.evaluation.LatencyMetrics are integers."""
        message.last_us, message.max_us = int(self.last_us), int(self.max_us)
        message.min_us, message.sum_us = int(self.min_us), int(self.sum_us)
        message.avg_us, message.std_deviation_us = self.avg_us, int(self.std_deviation_us)
