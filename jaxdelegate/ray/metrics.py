"""What a Predictor counts and times: a record, and Ray's metrics if Ray runs."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from jaxdelegate.optional import optional_module
from jaxdelegate.ray.resources import running_ray

_SECONDS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100]
# Ray adds the prefix `ray_` to the names; Prometheus's exporter adds `_total` to those of counters.
_METRICS = {
    "rows": "Rows that were predicted.",
    "rows_skipped": "Rows that were skipped because of an error.",
    "input_tokens": "Tokens that a language model read.",
    "rows_padded": "Rows that were computed only to fill a batch.",
    "batches": "Batches that were predicted.",
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
        is_running = running_ray() is not None
        self._metrics = {name: _metric(name, model) for name in _METRICS} if is_running else {}

    def add(self, name: str, amount: float) -> None:
        setattr(self.stats, name, getattr(self.stats, name) + amount)
        if amount and name in self._metrics:  # Ray's counters refuse 0
            self._metrics[name](amount)


def _metric(name: str, model: str) -> Callable[[float], None]:
    module = optional_module("ray.util.metrics", "ray")
    arguments: dict[str, Any] = {"description": _METRICS[name], "tag_keys": ("model",)}
    if name.endswith("_seconds"):
        histogram = module.Histogram(f"jaxdelegate_{name}", boundaries=_SECONDS, **arguments)
        return functools.partial(histogram.observe, tags={"model": model})
    counter = module.Counter(f"jaxdelegate_{name}", **arguments)
    return functools.partial(counter.inc, tags={"model": model})
