"""Metrics of served models for Prometheus, named as in Triton Inference Server."""

import dataclasses
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

_EXTRA = 'metrics need prometheus-client: pip install "jaxdelegate[serve]"'
_LABELS = ("model", "version")

# What is counted: name without the prefix, and its help.
_COUNTERS = {
    "inference_request_success": "Requests that were answered.",
    "inference_count": "Items that were computed; a batch of n counts n.",
    "inference_exec_count": "Runs of the model; a batch counts once.",
    "inference_request_duration_us": "Microseconds of answered requests, queue included.",
    "inference_queue_duration_us": "Microseconds that answered requests waited in the queue.",
    "inference_compute_input_duration_us": "Microseconds to write inputs, summed over requests.",
    "inference_compute_infer_duration_us": "Microseconds to run models, summed over requests.",
    "inference_compute_output_duration_us": "Microseconds to cut outputs, summed over requests.",
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
    """One run of a model.

    Attributes:
        requests: how many it answered.
        rows: items without padding.
        request_s: seconds from arrival to the answer, summed over the requests.
        queue_s: seconds from arrival to the begin of the run, summed over the requests.
        input_s: seconds to write the inputs.
        infer_s: seconds to run the model.
        output_s: seconds to cut the outputs.
    """

    requests: int
    rows: int
    request_s: float
    queue_s: float
    input_s: float
    infer_s: float
    output_s: float


@dataclasses.dataclass(slots=True)
class BatchCounts:
    """Runs of one batch size, and their seconds.

    Attributes:
        runs: how many.
        input_s: to write the inputs.
        infer_s: to run the model.
        output_s: to cut the outputs.
    """

    runs: int = 0
    input_s: float = 0.0
    infer_s: float = 0.0
    output_s: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """The numbers of a model at one moment.

    Attributes:
        counts: counters of `/metrics`, by name.
        failures: requests that failed, by reason.
        gauges: by name.
        failed_s: seconds of requests that failed, from their arrival.
        batches: runs by the items in them.
        last_s: when the last run ended, in seconds of Unix time; 0: there was none.
    """

    counts: Mapping[str, float]
    failures: Mapping[str, int]
    gauges: Mapping[str, int]
    failed_s: float
    batches: Mapping[int, BatchCounts]
    last_s: float


class ModelRecorder:
    """The numbers of one model: batcher and engine tell it what happened, from any thread.

    It adds them itself: a run costs one lock, not ten.
    """

    def __init__(self) -> None:
        """Begin at zero."""
        self._lock = threading.Lock()
        self._counts: dict[str, float] = dict.fromkeys(_COUNTERS, 0)
        self._failures: dict[str, int] = {}
        self._gauges: dict[str, int] = dict.fromkeys(_GAUGES, 0)
        self._failed_s = self._last_s = 0.0
        self._batches: dict[int, BatchCounts] = {}

    def executed(self, execution: Execution) -> None:
        """A run has answered its requests."""
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
        """A request failed, so many seconds after it came.

        Args:
            reason: "REJECTED", "CANCELED", "TIMEOUT" or "BACKEND".
            seconds: since its arrival.
        """
        with self._lock:
            self._failures[reason] = self._failures.get(reason, 0) + 1
            self._failed_s += seconds

    def pending(self, count: int) -> None:
        """So many requests wait now."""
        self._gauges["inference_pending_request_count"] = count

    def sessions(self, count: int) -> None:
        """So many sequences are open now."""
        self._gauges["session_count"] = count

    def programs(self, compiled: int, hits: int) -> None:
        """So many programs were compiled, and so many read from the cache, since the last call."""
        with self._lock:
            self._counts["compile_count"] += compiled
            self._counts["cache_hit_count"] += hits

    def read(self) -> Reading:
        """All numbers of one moment."""
        with self._lock:
            return Reading(
                dict(self._counts),
                dict(self._failures),
                dict(self._gauges),
                self._failed_s,
                {rows: dataclasses.replace(batch) for rows, batch in self._batches.items()},
                self._last_s,
            )


class Metrics:
    """A registry of its own, and the recorders of the models in it."""

    def __init__(self) -> None:
        """Begin without models.

        Raises:
            ImportError: prometheus-client is missing.
        """
        try:
            from prometheus_client import CollectorRegistry, core, exposition  # noqa: PLC0415
        except ImportError as error:
            raise ImportError(_EXTRA) from error
        self._core, self._exposition = core, exposition
        self._recorders: dict[tuple[str, str], ModelRecorder] = {}
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def recorder(self, model: str, version: str) -> ModelRecorder:
        """That of a model; made at its first use."""
        return self._recorders.setdefault((model, version), ModelRecorder())

    def collect(self) -> Iterator[Any]:
        """Every metric, as prometheus-client asks for it."""
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

    def text(self) -> tuple[bytes, str]:
        """What a scrape is answered: the text, and its content type.

        Counters have Triton's names: prometheus-client appends `_total`, which is removed.
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
        made = family(f"jaxdelegate_{name}", text, labels=_LABELS)
        for labels, own in values.items():
            made.add_metric(labels, own[name])
        yield made
