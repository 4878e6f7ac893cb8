"""The encoded messages, byte by byte."""

import pytest

from jaxdelegate.protos import message

# In each byte string: field number << 3 | wire type (0 number, 1 and 5 floats, 2 length), content.


def test_an_evaluation() -> None:
    metrics = message("tflite.evaluation.EvaluationStageMetrics")
    metrics.num_runs = 300
    stage = metrics.process_metrics.image_classification_metrics
    stage.topk_accuracy_metrics.topk_accuracies.append(1)
    # fields 1 num_runs, 2 process_metrics, 4 image_classification_metrics, 4 topk, 1 floats
    want = "08ac02 1209 2207 2205 0d0000803f"
    assert metrics.SerializeToString() == bytes.fromhex(want)


def test_a_comparison() -> None:
    metrics = message("tflite.evaluation.EvaluationStageMetrics")
    profiler = metrics.process_metrics.inference_profiler_metrics
    latency = profiler.test_latency
    latency.last_us, latency.max_us, latency.min_us, latency.sum_us = 1, 3, 1, 4
    latency.avg_us, latency.std_deviation_us = 2.0, 1
    profiler.output_errors.add(max_value=1.0, min_value=-1.0, avg_value=0.5, std_deviation=1.0)
    profiler.output_errors.add()
    # fields 2 process_metrics, 5 profiler, 2 test_latency; 3 output_errors, twice
    times = "0801 1003 1801 2004 290000000000000040 3001"
    error = "0d0000803f 15000080bf 19000000000000e03f 250000803f"
    want = f"1233 2a31 1213 {times} 1a18 {error} 1a00"
    assert metrics.SerializeToString() == bytes.fromhex(want)


def test_a_benchmark() -> None:
    result = message("tflite.tools.benchmark.BenchmarkResult")
    result.name = "a"
    result.latency_metrics.p95_ms = 1.0
    result.misc_metrics.num_runs = 5
    assert result.SerializeToString() == bytes.fromhex("0a0161 1205 3d0000803f 2202 1005")


@pytest.mark.parametrize(
    ("kind", "values", "want"),
    [
        ("int64_list", [1, 300], "1a05 0a03 01ac02"),  # packed, as in proto3
        ("float_list", [1.0], "1206 0a04 0000803f"),
        ("bytes_list", [b"x", b""], "0a05 0a0178 0a00"),
    ],
)
def test_an_example(kind: str, values: list, want: str) -> None:
    example = message("tensorflow.Example")
    entry = example.features.feature.add(key="k")
    getattr(entry.value, kind).value.extend(values)
    feature = bytes.fromhex(want)
    entry_bytes = b"\x0a\x01k\x12" + bytes([len(feature)]) + feature
    features = b"\x0a" + bytes([len(entry_bytes)]) + entry_bytes
    assert example.SerializeToString() == b"\x0a" + bytes([len(features)]) + features


def test_equal_names_in_other_packages_are_distinct() -> None:
    benchmark = message("tflite.tools.benchmark.LatencyMetrics")
    evaluation = message("tflite.evaluation.LatencyMetrics")
    assert hasattr(benchmark, "p95_ms")
    assert not hasattr(evaluation, "p95_ms")
