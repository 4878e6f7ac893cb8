"""What a Predictor counts and times: a record, and Ray's metrics if Ray runs."""

import dataclasses
from typing import Any

from jaxdelegate.optional import optional_module
from jaxdelegate.ray.errors import running_ray

_SECONDS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100]
# Ray adds the prefix `ray_` to the names; Prometheus's exporter adds `_total` to those of counters.
_COUNTERS = {
    "rows": "Rows that were predicted.",
    "rows_skipped": "Rows that were skipped because of an error.",
    "input_tokens": "Tokens that a language model read.",
    "rows_padded": "Rows that were computed only to fill a batch.",
    "batches": "Batches that were predicted.",
}
_HISTOGRAMS = {
    "input_wait_seconds": "Time between two batches, in which the device was idle.",
    "device_seconds": "Time to run a batch and wait for it.",
}


@dataclasses.dataclass
class PredictorStats:
    """The counts and times of one Predictor.

    Attributes:
        rows: rows that it predicted.
        rows_skipped: rows that it skipped because of an error.
        rows_padded: rows that were computed only to fill a batch.
        input_tokens: tokens of these rows, if the model reads text.
        batches: calls.
        input_wait_seconds: time between calls, in which the device waited for rows.
        device_seconds: time in which the model was run and waited for.
        open_seconds: time in which the model was read and programs were compiled or loaded.
        programs_loaded: programs read from the cache directory.
        programs_stored: programs compiled and stored there.
    """

    rows: int = 0
    rows_skipped: int = 0
    rows_padded: int = 0
    input_tokens: int = 0
    batches: int = 0
    input_wait_seconds: float = 0.0
    device_seconds: float = 0.0
    open_seconds: float = 0.0
    programs_loaded: int = 0
    programs_stored: int = 0


class Meter:
    """Adds to a record, and to Ray's metrics `jaxdelegate_<name>`, tagged with the model."""

    def __init__(self, model: str) -> None:
        self.stats = PredictorStats()
        self._tags = {"model": model}
        self._metrics: dict[str, Any] = {}
        if running_ray() is None:
            return
        module = optional_module("ray.util.metrics", "ray")
        more: dict[str, Any] = {"tag_keys": ("model",)}
        for name, text in _COUNTERS.items():
            self._metrics[name] = module.Counter(f"jaxdelegate_{name}", description=text, **more)
        more["boundaries"] = _SECONDS
        for name, text in _HISTOGRAMS.items():
            self._metrics[name] = module.Histogram(f"jaxdelegate_{name}", description=text, **more)

    def count(self, name: str, amount: int) -> None:
        setattr(self.stats, name, getattr(self.stats, name) + amount)
        if amount and name in self._metrics:
            self._metrics[name].inc(amount, tags=self._tags)

    def observe(self, name: str, seconds: float) -> None:
        setattr(self.stats, name, getattr(self.stats, name) + seconds)
        if name in self._metrics:
            self._metrics[name].observe(seconds, tags=self._tags)
