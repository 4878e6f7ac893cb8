"""Statistics of repeated measurements, printed as TFLite's tools do (tsl/util/stats_calculator.h).

All values are whole numbers, microseconds mostly, as there.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Stat:
    """What came of some measurements, in their order."""

    values: tuple[int, ...] = ()

    @classmethod
    def of(cls, values: Iterable[float]) -> "Stat":
        """Whole numbers, cut off as TFLite cuts them."""
        return cls(tuple(int(v) for v in values))

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.values)

    @property
    def first(self) -> int:
        """The first one; 0 if there is none."""
        return self.values[0] if self.values else 0

    @property
    def newest(self) -> int:
        """The last one; 0 if there is none."""
        return self.values[-1] if self.values else 0

    @property
    def min(self) -> int:
        """The smallest; 0 if there is none."""
        return min(self.values, default=0)

    @property
    def max(self) -> int:
        """The largest; 0 if there is none."""
        return max(self.values, default=0)

    @property
    def sum(self) -> int:
        """All of them together."""
        return sum(self.values)

    @property
    def avg(self) -> float:
        """The mean; 0 if there is none."""
        return self.sum / self.count if self.values else 0.0

    @property
    def std(self) -> float:
        """The population's standard deviation."""
        if not self.values:
            return 0.0
        return math.sqrt(math.fsum((v - self.avg) ** 2 for v in self.values) / self.count)

    def percentile(self, percent: int) -> int:
        """The value at that share of the sorted ones, as TFLite picks it; 0 if there is none."""
        if not self.values:
            return 0
        at = min(self.count * percent // 100, self.count - 1)
        return sorted(self.values)[at]

    def line(self) -> str:
        """TFLite's line, without percentiles."""
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
        """TFLite's line, with percentiles."""
        p5, median, p95 = (self.percentile(p) for p in (5, 50, 95))
        return f"{self.line()} p5={p5} median={median} p95={p95}"

    def as_dict(self, unit: float = 1.0) -> dict[str, Any]:
        """Everything by name, each divided by `unit`."""
        names = ("first", "newest", "min", "max", "avg", "std")
        record: dict[str, Any] = {"count": self.count}
        record.update({name: getattr(self, name) / unit for name in names})
        for percent in (5, 25, 50, 75, 90, 95, 99):
            key = "median" if percent == 50 else f"p{percent}"
            record[key] = self.percentile(percent) / unit
        return record
