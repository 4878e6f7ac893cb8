"""Metrics of served models for Prometheus: those of tensors named as in Triton, of text as in vLLM.

The recorders do not use prometheus-client's counters: a run takes one lock, not ten.
"""

import bisect
import dataclasses
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from jaxdelegate.optional import install

# Seconds; vLLM's, shortened.
_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0),
)
_SUFFIX = re.compile(rb"^((?:# \w+ )?jaxdelegate_\w+)_total\b", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class _Names:
    """The metrics of one kind of model: help texts by name, without the prefix."""

    prefix: str
    labels: tuple[str, ...]  # a model's
    counters: Mapping[str, str]
    gauges: Mapping[str, str]
    reasons: tuple[str, str, str]  # the counter of requests by reason: name, help, label
    histograms: Mapping[str, str] = dataclasses.field(default_factory=dict)


_TRITON = _Names(
    "jaxdelegate_",
    ("model", "version"),
    counters={
        "inference_request_success": "Requests that succeeded.",
        "inference_count": "Items that were computed; a batch of n counts n.",
        "inference_exec_count": "Runs of the model; a batch counts once.",
        "inference_request_duration_us": "Microseconds of successful requests, queue included.",
        "inference_queue_duration_us": "Microseconds that successful requests waited in the queue.",
        "inference_compute_input_duration_us": "Microseconds to write inputs, summed over requests.",  # noqa: E501
        "inference_compute_infer_duration_us": "Microseconds to run models, summed over requests.",
        "inference_compute_output_duration_us": "Microseconds to split outputs, summed over requests.",  # noqa: E501
        "compile_count": "Programs that were compiled.",
        "cache_hit_count": "Programs that were read from the cache directory.",
    },
    gauges={
        "inference_pending_request_count": "Requests that wait in the queue.",
        "session_count": "Open sequences of models with states.",
    },
    reasons=("inference_request_failure", "Requests that failed.", "reason"),
)
_VLLM = _Names(
    "vllm:",
    ("model_name",),
    counters={
        "prompt_tokens": "Tokens of prompts.",
        "generation_tokens": "Tokens that were generated.",
        "prefix_cache_queries": "Tokens of prompts, as prompt_tokens.",
        "prefix_cache_hits": "Tokens of prompts that caches had.",
    },
    gauges={
        "num_requests_running": "Sequences in slots.",
        "num_requests_waiting": "Sequences that wait for a slot.",
        "kv_cache_usage_perc": "The part of all caches that sequences in slots use; 1: all.",
    },
    reasons=("request_success", "Sequences that ended.", "finished_reason"),
    histograms={
        "time_to_first_token_seconds": "From the arrival of a request to its first token.",
        "time_per_output_token_seconds": "Between two tokens of a sequence.",
        "e2e_request_latency_seconds": "From the arrival of a request to its end.",
    },
)


class RunTimes(NamedTuple):
    """Seconds of runs of a model."""

    input_s: float = 0.0  # to write the inputs
    infer_s: float = 0.0  # until the outputs were in host memory
    output_s: float = 0.0  # to split them by request


@dataclasses.dataclass(slots=True)
class Histogram:
    """How often values were in each range, and their sum."""

    counts: list[int] = dataclasses.field(default_factory=lambda: [0] * (len(_BOUNDS) + 1))
    total: float = 0.0

    def add(self, value: float, count: int = 1) -> None:
        self.counts[bisect.bisect_left(_BOUNDS, value)] += count
        self.total += value * count

    @property
    def buckets(self) -> list[tuple[str, int]]:
        bounds = [*map(str, _BOUNDS), "+Inf"]
        return list(zip(bounds, itertools.accumulate(self.counts), strict=True))


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """The metrics of a model at one moment."""

    values: Mapping[str, float]  # counters and gauges
    reasons: Mapping[str, int]  # requests that failed, or sequences that ended
    histograms: Mapping[str, tuple[list[tuple[str, int]], float]]  # buckets and sum
    batches: Mapping[int, tuple[int, RunTimes]]  # runs and their times, by the number of items
    failed_s: float  # sum over failed requests, from their arrival
    last_s: float  # end of the last run in seconds of Unix time; 0: none

    def samples(self, name: str) -> tuple[Any, ...]:
        return self.histograms[name] if name in self.histograms else (self.values[name],)


class Recorder:
    """Collects the metrics of one model. Thread-safe."""

    names: ClassVar[_Names]

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, float] = dict.fromkeys(
            (*self.names.counters, *self.names.gauges), 0
        )
        self._reasons: dict[str, int] = {}
        self._histograms = {name: Histogram() for name in self.names.histograms}
        self._batches: dict[int, tuple[int, RunTimes]] = {}
        self._failed_s = self._last_s = 0.0

    def read(self) -> Reading:
        with self._lock:
            return Reading(
                dict(self._values),
                dict(self._reasons),
                {name: (h.buckets, h.total) for name, h in self._histograms.items()},
                dict(self._batches),
                self._failed_s,
                self._last_s,
            )

    def set(self, gauge: str, value: float) -> None:
        self._values[gauge] = value

    def _add(self, **counts: float) -> None:
        for name, count in counts.items():
            self._values[name] += count

    def _count(self, reason: str) -> None:
        self._reasons[reason] = self._reasons.get(reason, 0) + 1


class ModelRecorder(Recorder):
    """Collects the metrics of a model of tensors, or a text encoder."""

    names = _TRITON
    # How many programs were compiled, and how many were read from the cache.
    count_programs: Callable[[], tuple[int, int]] = staticmethod(lambda: (0, 0))

    def executed(
        self, *, requests: int, rows: int, request_s: float, queue_s: float, times: RunTimes
    ) -> None:
        """One run of the model, with the rows of its requests but without padding.

        `request_s` and `queue_s`: seconds from arrival to the response, and to the start of the
        run, summed over requests.
        """
        each = requests * 1e6  # all of them waited for the run
        with self._lock:
            self._add(
                inference_request_success=requests,
                inference_count=rows,
                inference_exec_count=1,
                inference_request_duration_us=request_s * 1e6,
                inference_queue_duration_us=queue_s * 1e6,
                inference_compute_input_duration_us=times.input_s * each,
                inference_compute_infer_duration_us=times.infer_s * each,
                inference_compute_output_duration_us=times.output_s * each,
            )
            runs, before = self._batches.get(rows, (0, RunTimes()))
            total = RunTimes(*(a + b for a, b in zip(before, times, strict=True)))
            self._batches[rows] = runs + 1, total
            self._last_s = time.time()

    def failed(self, reason: str, seconds: float) -> None:
        """`reason` is "REJECTED", "CANCELED", "TIMEOUT" or "BACKEND"; seconds since its arrival."""
        with self._lock:
            self._count(reason)
            self._failed_s += seconds

    def read(self) -> Reading:
        self._values["compile_count"], self._values["cache_hit_count"] = self.count_programs()
        return super().read()


class TextRecorder(Recorder):
    """Collects the metrics of a language model."""

    names = _VLLM

    def prompt(self, tokens: int, reused: int) -> None:
        """A prompt was read whose first `reused` tokens caches had."""
        with self._lock:
            self._add(prompt_tokens=tokens, prefix_cache_queries=tokens, prefix_cache_hits=reused)

    def generated(self, tokens: int, since: float, *, first: bool) -> None:
        """A sequence got tokens; `since` is the time of its last one, or of its arrival."""
        seconds = time.monotonic() - since
        with self._lock:
            self._add(generation_tokens=tokens)
            if first:
                self._histograms["time_to_first_token_seconds"].add(seconds)
            elif tokens:
                each = self._histograms["time_per_output_token_seconds"]
                each.add(seconds / tokens, tokens)

    def ended(self, reason: str, seconds: float) -> None:
        with self._lock:
            self._count(reason)
            self._histograms["e2e_request_latency_seconds"].add(seconds)


class Metrics:
    """A separate registry of prometheus-client, and the models' recorders in it."""

    def __init__(self) -> None:
        try:
            from prometheus_client import CollectorRegistry, core, exposition  # noqa: PLC0415
        except ImportError as error:
            raise ImportError(f"metrics need prometheus-client: {install('serve')}") from error
        self._core, self._exposition = core, exposition
        self._models: dict[tuple[str, str], ModelRecorder] = {}
        self._texts: dict[tuple[str], TextRecorder] = {}
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def recorder(self, model: str, version: str) -> ModelRecorder:
        return self._models.setdefault((model, version), ModelRecorder())

    def text_recorder(self, model: str) -> TextRecorder:
        return self._texts.setdefault((model,), TextRecorder())

    def collect(self) -> Iterator[Any]:
        for names, recorders in ((_TRITON, self._models), (_VLLM, self._texts)):
            yield from self._families(names, {at: r.read() for at, r in [*recorders.items()]})

    def _families(self, names: _Names, read: Mapping[tuple[str, ...], Reading]) -> Iterator[Any]:
        kinds = {"Counter": names.counters, "Gauge": names.gauges, "Histogram": names.histograms}
        for kind, texts in kinds.items() if read else ():
            for name, text in texts.items():
                family = self._family(kind, names, name, text)
                for labels, reading in read.items():
                    family.add_metric(labels, *reading.samples(name))
                yield family
        if read:
            family = self._family("Counter", names, *names.reasons)
            for labels, reading in read.items():
                for reason, count in reading.reasons.items():
                    family.add_metric((*labels, reason), count)
            yield family

    def _family(self, kind: str, names: _Names, name: str, text: str, *more: str) -> Any:
        family = getattr(self._core, f"{kind}MetricFamily")
        return family(names.prefix + name, text, labels=(*names.labels, *more))

    def text(self) -> tuple[bytes, str]:
        """The response to a scrape: the text, and its content type.

        Counters have Triton's names: the suffix `_total` of prometheus-client is removed.
        """
        text: bytes = self._exposition.generate_latest(self.registry)
        return _SUFFIX.sub(rb"\1", text), str(self._exposition.CONTENT_TYPE_LATEST)
