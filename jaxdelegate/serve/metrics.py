"""Metrics of served models for Prometheus, named as in Triton Inference Server."""

import dataclasses
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from jaxdelegate.optional import install
from jaxdelegate.serve.text_metrics import TextRecorder, families

_LABELS = ("model", "version")

# Counters: name without the prefix, and help text.
_COUNTERS = {
    "inference_request_success": "Requests that succeeded.",
    "inference_count": "Items that were computed; a batch of n counts n.",
    "inference_exec_count": "Runs of the model; a batch counts once.",
    "inference_request_duration_us": "Microseconds of successful requests, queue included.",
    "inference_queue_duration_us": "Microseconds that successful requests waited in the queue.",
    "inference_compute_input_duration_us": "Microseconds to write inputs, summed over requests.",
    "inference_compute_infer_duration_us": "Microseconds to run models, summed over requests.",
    "inference_compute_output_duration_us": "Microseconds to split outputs, summed over requests.",
    "compile_count": "Programs that were compiled.",
    "cache_hit_count": "Programs that were read from the cache directory.",
}
_FAILURE = "inference_request_failure"
_GAUGES = {
    "inference_pending_request_count": "Requests that wait in the queue.",
    "session_count": "Open sequences of models with states.",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Execution:
    """One run of a model; seconds of requests are summed."""

    requests: int
    rows: int  # without padding
    request_s: float  # from arrival to the response
    queue_s: float  # from arrival to the start of the run
    input_s: float  # to write the inputs
    infer_s: float  # to run the model
    output_s: float  # to split the outputs


@dataclasses.dataclass(slots=True)
class BatchCounts:
    """The runs of one batch size, and their seconds."""

    runs: int = 0
    input_s: float = 0.0  # to write the inputs
    infer_s: float = 0.0  # to run the model
    output_s: float = 0.0  # to split the outputs


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """The metrics of a model at one moment."""

    counts: Mapping[str, float]  # counters of `/metrics`, by name
    failures: Mapping[str, int]  # requests by reason
    gauges: Mapping[str, int]  # by name
    failed_s: float  # of failed requests, from their arrival
    batches: Mapping[int, BatchCounts]  # runs by their number of items
    last_s: float  # end of the last run in seconds of Unix time; 0: none


class ModelRecorder:
    """Collects the metrics of one model from its batcher and engine. Thread-safe.

    It does not use prometheus-client's counters: a run takes one lock, not ten.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, float] = dict.fromkeys(_COUNTERS, 0)
        self._failures: dict[str, int] = {}
        self._gauges: dict[str, int] = dict.fromkeys(_GAUGES, 0)
        self._failed_s = self._last_s = 0.0
        self._batches: dict[int, BatchCounts] = {}

    def executed(self, execution: Execution) -> None:
        with self._lock:
            counts = self._counts
            counts["inference_request_success"] += execution.requests
            counts["inference_count"] += execution.rows
            counts["inference_exec_count"] += 1
            counts["inference_request_duration_us"] += execution.request_s * 1e6
            counts["inference_queue_duration_us"] += execution.queue_s * 1e6
            each = execution.requests * 1e6  # all of them waited for the run
            counts["inference_compute_input_duration_us"] += execution.input_s * each
            counts["inference_compute_infer_duration_us"] += execution.infer_s * each
            counts["inference_compute_output_duration_us"] += execution.output_s * each
            batch = self._batches.setdefault(execution.rows, BatchCounts())
            batch.runs += 1
            batch.input_s += execution.input_s
            batch.infer_s += execution.infer_s
            batch.output_s += execution.output_s
            self._last_s = time.time()

    def failed(self, reason: str, seconds: float) -> None:
        """`reason` is "REJECTED", "CANCELED", "TIMEOUT" or "BACKEND"; seconds since its arrival."""
        with self._lock:
            self._failures[reason] = self._failures.get(reason, 0) + 1
            self._failed_s += seconds

    def pending(self, count: int) -> None:
        self._gauges["inference_pending_request_count"] = count

    def sessions(self, count: int) -> None:
        self._gauges["session_count"] = count

    def programs(self, compiled: int, hits: int) -> None:
        """Programs that were compiled, and read from the cache, since the last call."""
        with self._lock:
            self._counts["compile_count"] += compiled
            self._counts["cache_hit_count"] += hits

    def read(self) -> Reading:
        """A consistent copy of all metrics."""
        with self._lock:
            return Reading(
                counts=dict(self._counts),
                failures=dict(self._failures),
                gauges=dict(self._gauges),
                failed_s=self._failed_s,
                batches={rows: dataclasses.replace(b) for rows, b in self._batches.items()},
                last_s=self._last_s,
            )


class Metrics:
    """A separate registry of prometheus-client, and the models' recorders in it."""

    def __init__(self) -> None:
        try:
            from prometheus_client import CollectorRegistry, core, exposition  # noqa: PLC0415
        except ImportError as error:
            raise ImportError(f"metrics need prometheus-client: {install('serve')}") from error
        self._core, self._exposition = core, exposition
        self._recorders: dict[tuple[str, str], ModelRecorder] = {}
        self._text_recorders: dict[str, TextRecorder] = {}
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def recorder(self, model: str, version: str) -> ModelRecorder:
        """The recorder of a model, created at the first call."""
        return self._recorders.setdefault((model, version), ModelRecorder())

    def text_recorder(self, model: str) -> TextRecorder:
        """The recorder of a language model, created at the first call."""
        return self._text_recorders.setdefault(model, TextRecorder())

    def collect(self) -> Iterator[Any]:
        """Every metric, for prometheus-client."""
        read = {labels: recorder.read() for labels, recorder in list(self._recorders.items())}
        counter, gauge = self._core.CounterMetricFamily, self._core.GaugeMetricFamily
        name = f"jaxdelegate_{_FAILURE}"
        failure = counter(name, "Requests that failed.", labels=(*_LABELS, "reason"))
        for labels, own in read.items():
            for reason, count in own.failures.items():
                failure.add_metric((*labels, reason), count)
        yield failure
        yield from _families(counter, _COUNTERS, {at: own.counts for at, own in read.items()})
        yield from _families(gauge, _GAUGES, {at: own.gauges for at, own in read.items()})
        yield from families(self._core, dict(self._text_recorders))

    def text(self) -> tuple[bytes, str]:
        """The response to a scrape: the text, and its content type.

        Counters have Triton's names: the suffix `_total` of prometheus-client is removed.
        """
        text: bytes = self._exposition.generate_latest(self.registry)
        for name in (*_COUNTERS, _FAILURE):
            text = text.replace(
                f"jaxdelegate_{name}_total".encode(), f"jaxdelegate_{name}".encode()
            )
        return text, str(self._exposition.CONTENT_TYPE_LATEST)


def _families(
    family: Any, names: Mapping[str, str], values: Mapping[tuple[str, str], Mapping[str, float]]
) -> Iterator[Any]:
    for name, text in names.items():
        metric = family(f"jaxdelegate_{name}", text, labels=_LABELS)
        for labels, own in values.items():
            metric.add_metric(labels, own[name])
        yield metric
