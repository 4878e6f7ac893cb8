"""Messages of .proto files that no package provides, or none that fits our dependencies.

The declarations have upstream's names, numbers and types, so both sides read the same bytes, and
only the fields that our tools exchange. Nested messages are flat here, with the same encoding.
"""

import functools
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# Message -> its fields: name, number, type; a trailing * is a repeated one.
_Messages = dict[str, tuple[tuple[str, int, str], ...]]

# tools/benchmark/proto/benchmark_result.proto
_BENCHMARK: _Messages = {
    "LatencyMetrics": (
        ("avg_ms", 1, "float"),
        ("min_ms", 2, "float"),
        ("max_ms", 3, "float"),
        ("stddev_ms", 4, "float"),
        ("median_ms", 5, "float"),
        ("p5_ms", 6, "float"),
        ("p95_ms", 7, "float"),
        ("init_ms", 8, "float"),
        ("first_inference_ms", 9, "float"),
        ("average_warm_up_ms", 10, "float"),
    ),
    "MemoryMetrics": (
        ("init_footprint_kb", 1, "int64"),
        ("overall_footprint_kb", 2, "int64"),
        ("peak_mem_mb", 3, "float"),
    ),
    "MiscMetrics": (
        ("model_size_mb", 1, "float"),
        ("num_runs", 2, "int32"),
        ("num_warmup_runs", 3, "int32"),
        ("model_throughput_in_mb_per_sec", 4, "float"),
    ),
    "BenchmarkResult": (
        ("name", 1, "string"),
        ("latency_metrics", 2, "LatencyMetrics"),
        ("memory_metrics", 3, "MemoryMetrics"),
        ("misc_metrics", 4, "MiscMetrics"),
    ),
}

# tsl/profiler/protobuf/xplane.proto. A map is a list of entries; strings may not be UTF-8.
_XPLANE: _Messages = {
    "XStat": (
        ("metadata_id", 1, "int64"),
        ("double_value", 2, "double"),
        ("uint64_value", 3, "uint64"),
        ("int64_value", 4, "int64"),
        ("str_value", 5, "bytes"),
        ("bytes_value", 6, "bytes"),
        ("ref_value", 7, "uint64"),
    ),
    "XEvent": (
        ("metadata_id", 1, "int64"),
        ("offset_ps", 2, "int64"),
        ("duration_ps", 3, "int64"),
        ("stats", 4, "XStat*"),
    ),
    "XLine": (("name", 2, "bytes"), ("timestamp_ns", 3, "int64"), ("events", 4, "XEvent*")),
    "XMetadata": (("id", 1, "int64"), ("name", 2, "bytes")),
    "XMetadataEntry": (("key", 1, "int64"), ("value", 2, "XMetadata")),
    "XPlane": (
        ("name", 2, "bytes"),
        ("lines", 3, "XLine*"),
        ("event_metadata", 4, "XMetadataEntry*"),
        ("stat_metadata", 5, "XMetadataEntry*"),
    ),
    "XSpace": (("planes", 1, "XPlane*"),),
}

# tools/evaluation/proto/evaluation_stages.proto
_EVALUATION: _Messages = {
    "NormalizedBoundingBox": (
        ("normalized_top", 1, "float"),
        ("normalized_bottom", 2, "float"),
        ("normalized_left", 3, "float"),
        ("normalized_right", 4, "float"),
    ),
    "ObjectInstance": (
        ("class_id", 1, "int32"),
        ("bounding_box", 2, "NormalizedBoundingBox"),
        ("score", 3, "float"),
    ),
    "ObjectDetectionResult": (
        ("objects", 1, "ObjectInstance*"),
        ("image_name", 2, "string"),
        ("image_id", 3, "int64"),
    ),
    "ObjectDetectionGroundTruth": (("detection_results", 1, "ObjectDetectionResult*"),),
    "LatencyMetrics": (
        ("last_us", 1, "int64"),
        ("max_us", 2, "int64"),
        ("min_us", 3, "int64"),
        ("sum_us", 4, "int64"),
        ("avg_us", 5, "double"),
        ("std_deviation_us", 6, "int64"),
    ),
    "TfliteInferenceMetrics": (("num_inferences", 1, "int32"),),
    "TopkAccuracyEvalMetrics": (("topk_accuracies", 1, "float*"),),
    "ImageClassificationMetrics": (
        ("pre_processing_latency", 1, "LatencyMetrics"),
        ("inference_latency", 2, "LatencyMetrics"),
        ("inference_metrics", 3, "TfliteInferenceMetrics"),
        ("topk_accuracy_metrics", 4, "TopkAccuracyEvalMetrics"),
    ),
    "AccuracyMetrics": (
        ("max_value", 1, "float"),
        ("min_value", 2, "float"),
        ("avg_value", 3, "double"),
        ("std_deviation", 4, "float"),
    ),
    "InferenceProfilerMetrics": (
        ("reference_latency", 1, "LatencyMetrics"),
        ("test_latency", 2, "LatencyMetrics"),
        ("output_errors", 3, "AccuracyMetrics*"),
    ),
    "AveragePrecision": (("iou_threshold", 1, "float"), ("average_precision", 2, "float")),
    "ObjectDetectionAveragePrecisionMetrics": (
        ("individual_average_precisions", 1, "AveragePrecision*"),
        ("overall_mean_average_precision", 2, "float"),
    ),
    "ObjectDetectionMetrics": (
        ("pre_processing_latency", 1, "LatencyMetrics"),
        ("inference_latency", 2, "LatencyMetrics"),
        ("inference_metrics", 3, "TfliteInferenceMetrics"),
        ("average_precision_metrics", 4, "ObjectDetectionAveragePrecisionMetrics"),
    ),
    "ProcessMetrics": (
        ("image_classification_metrics", 4, "ImageClassificationMetrics"),
        ("inference_profiler_metrics", 5, "InferenceProfilerMetrics"),
        ("object_detection_metrics", 7, "ObjectDetectionMetrics"),
    ),
    "EvaluationStageMetrics": (
        ("num_runs", 1, "int32"),
        ("process_metrics", 2, "ProcessMetrics"),
    ),
}

# tensorflow/core/example/{feature,example}.proto. A map is encoded as a list of entries.
_EXAMPLE: _Messages = {
    "BytesList": (("value", 1, "bytes*"),),
    "FloatList": (("value", 1, "float*"),),
    "Int64List": (("value", 1, "int64*"),),
    "Feature": (
        ("bytes_list", 1, "BytesList"),
        ("float_list", 2, "FloatList"),
        ("int64_list", 3, "Int64List"),
    ),
    "FeatureEntry": (("key", 1, "string"), ("value", 2, "Feature")),
    "Features": (("feature", 1, "FeatureEntry*"),),
    "Example": (("features", 1, "Features"),),
}

# mediapipe/tasks/cc/genai/inference/proto/{llm_params,prompt_template}.proto
_LLM_PARAMETERS: _Messages = {
    "PromptTemplate": (
        ("session_prefix", 1, "string"),
        ("prompt_prefix", 2, "string"),
        ("prompt_suffix", 3, "string"),
    ),
    "LlmParameters": (  # all fields: what has others is another message
        ("transformer_parameters", 1, "bytes"),
        ("vocab_size", 2, "int32"),
        ("start_token_id", 4, "int32"),
        ("stop_tokens", 5, "string*"),
        ("start_token", 6, "string"),
        ("input_output_normalizations", 7, "int32*"),
        ("prompt_template", 8, "PromptTemplate"),
        ("num_draft_tokens", 9, "int32"),
        ("user_role_token", 11, "string"),
        ("system_role_token", 12, "string"),
        ("model_role_token", 13, "string"),
        ("end_role_token", 14, "string"),
        ("submodel_transformer_parameters", 16, "bytes"),
        ("prompt_templates", 17, "bytes"),
    ),
}

# grpc/health/v1/health.proto: grpcio-health-checking, which provides it, pins protobuf's version
_HEALTH: _Messages = {
    "HealthCheckRequest": (("service", 1, "string"),),
    "HealthCheckResponse": (("status", 1, "int32"),),  # an enumeration, with the same encoding
}

# Package -> its syntax, which determines whether repeated numbers are packed, and its messages.
_PACKAGES: dict[str, tuple[str, _Messages]] = {
    "tflite.tools.benchmark": ("proto2", _BENCHMARK),
    "tflite.evaluation": ("proto2", _EVALUATION),
    "tensorflow": ("proto3", _EXAMPLE),
    "odml.infra.proto": ("proto2", _LLM_PARAMETERS),
    "tensorflow.profiler": ("proto2", _XPLANE),
    "grpc.health.v1": ("proto3", _HEALTH),
}


def message(name: str) -> Any:
    """A new, empty message by its full name, for example "tensorflow.Example"."""
    package, _, short = name.rpartition(".")
    return _classes(package)[short]()


@functools.cache
def _classes(package: str) -> dict[str, Any]:
    syntax, messages = _PACKAGES[package]
    file = descriptor_pb2.FileDescriptorProto(name=package, package=package, syntax=syntax)
    for name, fields in messages.items():
        declared = file.message_type.add(name=name)
        for field in fields:
            _declare(declared.field.add(), package, *field)
    pool = descriptor_pool.DescriptorPool()  # other packages may add these files to the default one
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }


def _declare(field: Any, package: str, name: str, number: int, kind: str) -> None:
    field.name, field.number = name, number
    field.label = field.LABEL_REPEATED if kind.endswith("*") else field.LABEL_OPTIONAL
    kind = kind.removesuffix("*")
    if kind in _PACKAGES[package][1]:
        field.type, field.type_name = field.TYPE_MESSAGE, f".{package}.{kind}"
    else:
        field.type = getattr(field, f"TYPE_{kind.upper()}")
