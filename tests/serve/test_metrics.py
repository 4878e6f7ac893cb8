"""The response to a scrape."""

import time
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from jaxdelegate.serve.metrics import Metrics, RunTimes

RUN: dict[str, Any] = {
    "requests": 3,
    "rows": 5,
    "request_s": 0.6,
    "queue_s": 0.3,
    "times": RunTimes(0.1, 0.2, 0.05),
}


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    text, content_type = metrics.text()
    assert content_type.startswith("text/plain")
    return {  # the parser appends prometheus-client's suffix to counters
        (s.name.removesuffix("_total"), *(label for _, label in sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(text.decode())
        for s in family.samples
    }


def test_each_model_has_separate_metrics() -> None:
    metrics = Metrics()
    one, two = metrics.recorder("one", "1"), metrics.recorder("two", "1")
    assert metrics.recorder("one", "1") is one
    one.executed(**RUN)
    one.executed(**RUN)
    one.failed("TIMEOUT", 0.25)
    one.failed("TIMEOUT", 0.25)
    one.set("inference_pending_request_count", 7)
    two.set("session_count", 4)
    two.count_programs = lambda: (2, 3)
    found = samples(metrics)
    own = {name[0]: value for name, value in found.items() if "one" in name}
    assert own == {
        "jaxdelegate_inference_request_success": 6,
        "jaxdelegate_inference_request_failure": 2,
        "jaxdelegate_inference_count": 10,
        "jaxdelegate_inference_exec_count": 2,
        "jaxdelegate_inference_request_duration_us": 1.2e6,
        "jaxdelegate_inference_queue_duration_us": 0.6e6,
        "jaxdelegate_inference_compute_input_duration_us": 0.6e6,
        "jaxdelegate_inference_compute_infer_duration_us": 1.2e6,
        "jaxdelegate_inference_compute_output_duration_us": 0.3e6,
        "jaxdelegate_inference_pending_request_count": 7,
        "jaxdelegate_session_count": 0,
        "jaxdelegate_compile_count": 0,
        "jaxdelegate_cache_hit_count": 0,
    }
    assert found["jaxdelegate_session_count", "two", "1"] == 4
    assert found["jaxdelegate_compile_count", "two", "1"] == 2
    assert found["jaxdelegate_cache_hit_count", "two", "1"] == 3
    assert ("jaxdelegate_inference_request_failure", "one", "TIMEOUT", "1") in found


def test_further_numbers_for_statistics() -> None:
    recorder = Metrics().recorder("net", "1")
    before = time.time()
    recorder.executed(**RUN)
    recorder.executed(**RUN)
    recorder.executed(**{**RUN, "requests": 1, "rows": 1})
    recorder.failed("TIMEOUT", 0.25)
    recorder.failed("CANCELED", 0.5)
    read = recorder.read()
    assert read.failed_s == 0.75
    assert before <= read.last_s <= time.time()
    assert set(read.batches) == {1, 5}
    assert read.batches[1] == (1, RunTimes(0.1, 0.2, 0.05))
    assert read.batches[5] == (2, RunTimes(0.2, 0.4, 0.1))
    recorder.executed(**RUN)
    assert read.batches[5][0] == 2  # a reading does not change later


def test_counters_have_tritons_names() -> None:
    metrics = Metrics()
    metrics.recorder("net", "1").executed(**RUN)
    lines = metrics.text()[0].decode().splitlines()
    assert "# TYPE jaxdelegate_inference_request_success counter" in lines
    assert 'jaxdelegate_inference_request_success{model="net",version="1"} 3.0' in lines


def test_registries_are_independent() -> None:
    Metrics().recorder("net", "1").failed("BACKEND", 0.0)
    assert samples(Metrics()) == {}
