"""What a Predictor counts and times: a record of its own, and Ray's metrics where Ray runs."""

import dataclasses
from typing import Any

from jaxdelegate.ray.errors import import_ray, running_ray

_SECONDS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100]
# Ray puts `ray_` before the names, and Prometheus's exporter `_total` behind those of counters.
_COUNTERS = {
    "rows": "Rows that were predicted.",
    "rows_skipped": "Rows that were left out because of an error.",
    "rows_padded": "Rows that were computed only to fill a batch.",
    "batches": "Batches that were predicted.",
}
_HISTOGRAMS = {
    "input_wait_seconds": "Between two batches: the device had nothing to do.",
    "device_seconds": "In which a batch was run and waited for.",
}


@dataclasses.dataclass
class PredictorStats:
    """What one Predictor did.

    Attributes:
        rows: that it predicted.
        rows_skipped: that it left out because of an error.
        rows_padded: that were computed only to fill a batch.
        batches: calls.
        input_wait_seconds: between calls: the device waited for rows.
        device_seconds: in which the model was run and waited for.
        open_seconds: in which the model was read and programs compiled or loaded.
        programs_loaded: from the folder of programs.
        programs_stored: compiled and stored there.
    """

    rows: int = 0
    rows_skipped: int = 0
    rows_padded: int = 0
    batches: int = 0
    input_wait_seconds: float = 0.0
    device_seconds: float = 0.0
    open_seconds: float = 0.0
    programs_loaded: int = 0
    programs_stored: int = 0


class Meter:
    """Adds to a record, and to Ray's metrics of the same names after `jaxdelegate_`."""

    def __init__(self, model: str) -> None:
        """Begin.

        Args:
            model: the tag of all its metrics.
        """
        self.stats = PredictorStats()
        self._tags = {"model": model}
        self._metrics: dict[str, Any] = {}
        if running_ray() is not None:
            made = import_ray("ray.util.metrics")
            for name, text in _COUNTERS.items():
                self._metrics[name] = made.Counter(
                    f"jaxdelegate_{name}", description=text, tag_keys=("model",)
                )
            for name, text in _HISTOGRAMS.items():
                self._metrics[name] = made.Histogram(
                    f"jaxdelegate_{name}",
                    description=text,
                    boundaries=_SECONDS,
                    tag_keys=("model",),
                )

    def count(self, name: str, amount: int) -> None:
        """Add to a counter."""
        setattr(self.stats, name, getattr(self.stats, name) + amount)
        if amount and name in self._metrics:
            self._metrics[name].inc(amount, tags=self._tags)

    def observe(self, name: str, seconds: float) -> None:
        """Note a time."""
        setattr(self.stats, name, getattr(self.stats, name) + seconds)
        if name in self._metrics:
            self._metrics[name].observe(seconds, tags=self._tags)
