"""Metrics of language models for Prometheus, named as in vLLM."""

import bisect
import dataclasses
import itertools
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

_LABEL = "model_name"
_GAUGES = {
    "num_requests_running": "Sequences in slots.",
    "num_requests_waiting": "Sequences that wait for a slot.",
    "kv_cache_usage_perc": "The part of all caches that sequences in slots use; 1: all.",
}
_COUNTERS = {
    "prompt_tokens": "Tokens of prompts.",
    "generation_tokens": "Tokens that were generated.",
    "prefix_cache_queries": "Tokens of prompts, as prompt_tokens.",
    "prefix_cache_hits": "Tokens of prompts that caches had.",
}
_SUCCESS = "request_success"
_HISTOGRAMS = {
    "time_to_first_token_seconds": "From the arrival of a request to its first token.",
    "time_per_output_token_seconds": "Between two tokens of a sequence.",
    "e2e_request_latency_seconds": "From the arrival of a request to its end.",
}
# Seconds; vLLM's, shortened.
_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0),
)


@dataclasses.dataclass
class Histogram:
    """How often values were in each range, and their sum."""

    counts: list[int] = dataclasses.field(default_factory=lambda: [0] * (len(_BOUNDS) + 1))
    total: float = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Count a value, several times."""
        self.counts[bisect.bisect_left(_BOUNDS, value)] += count
        self.total += value * count

    @property
    def buckets(self) -> list[tuple[str, int]]:
        """Bounds and cumulative counts."""
        bounds = [*map(str, _BOUNDS), "+Inf"]
        return list(zip(bounds, itertools.accumulate(self.counts), strict=True))


class TextRecorder:
    """Collects the metrics of one language model. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gauges: dict[str, float] = dict.fromkeys(_GAUGES, 0)
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._ended: dict[str, int] = {}
        self._histograms = {name: Histogram() for name in _HISTOGRAMS}

    def running(self, count: int) -> None:
        self._gauges["num_requests_running"] = count

    def waiting(self, count: int) -> None:
        self._gauges["num_requests_waiting"] = count

    def cache_use(self, part: float) -> None:
        self._gauges["kv_cache_usage_perc"] = part

    def prompt(self, tokens: int, reused: int) -> None:
        """A prompt joined whose first tokens caches had."""
        with self._lock:
            self._counts["prompt_tokens"] += tokens
            self._counts["prefix_cache_queries"] += tokens
            self._counts["prefix_cache_hits"] += reused

    def generated(self, tokens: int, since: float, *, first: bool) -> None:
        """A sequence got tokens; `since` is the time of its last one, or of its arrival."""
        seconds = time.monotonic() - since
        with self._lock:
            self._counts["generation_tokens"] += tokens
            if first:
                self._histograms["time_to_first_token_seconds"].add(seconds)
            elif tokens:
                each = self._histograms["time_per_output_token_seconds"]
                each.add(seconds / tokens, tokens)

    def ended(self, reason: str, seconds: float) -> None:
        """A sequence ended; seconds since its arrival."""
        with self._lock:
            self._ended[reason] = self._ended.get(reason, 0) + 1
            self._histograms["e2e_request_latency_seconds"].add(seconds)

    def read(self) -> "Reading":
        """A consistent copy of all metrics."""
        with self._lock:
            return Reading(
                {**self._gauges, **self._counts},
                dict(self._ended),
                {name: (h.buckets, h.total) for name, h in self._histograms.items()},
            )


@dataclasses.dataclass(frozen=True)
class Reading:
    """The metrics of a model at one moment."""

    values: Mapping[str, float]  # of gauges and counters
    ended: Mapping[str, int]  # sequences by the reason of their end
    histograms: Mapping[str, tuple[list[tuple[str, int]], float]]


def families(core: Any, recorders: Mapping[str, TextRecorder]) -> Iterator[Any]:
    """The metrics of all models, by name, as families of `prometheus_client.core`."""
    read = {model: recorder.read() for model, recorder in recorders.items()}
    if not read:
        return
    for names, kind in (
        (_GAUGES, core.GaugeMetricFamily),
        (_COUNTERS, core.CounterMetricFamily),
    ):
        for name, text in names.items():
            family = kind(f"vllm:{name}", text, labels=[_LABEL])
            for model, own in read.items():
                family.add_metric([model], own.values[name])
            yield family
    text = "Sequences that ended."
    family = core.CounterMetricFamily(f"vllm:{_SUCCESS}", text, labels=[_LABEL, "finished_reason"])
    for model, own in read.items():
        for reason, count in own.ended.items():
            family.add_metric([model, reason], count)
    yield family
    for name, text in _HISTOGRAMS.items():
        family = core.HistogramMetricFamily(f"vllm:{name}", text, labels=[_LABEL])
        for model, own in read.items():
            family.add_metric([model], *own.histograms[name])
        yield family
