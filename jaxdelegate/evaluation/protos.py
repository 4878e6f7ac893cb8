"""TFLite's evaluation messages, as its own tools write and read them.

Message and field names and numbers: tools/evaluation/proto/evaluation_{config,stages}.proto. Only
what these tools exchange is declared.
"""

import functools
from pathlib import Path
from typing import Any

from jaxdelegate.errors import OptionError
from jaxdelegate.evaluation.errors import optional_module
from jaxdelegate.evaluation.latency import Latency

_PACKAGE = "tflite.evaluation"

# Message -> fields: name, number, type; a trailing * is a repeated one.
_MESSAGES: dict[str, tuple[tuple[str, int, str], ...]] = {
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
        ("object_detection_metrics", 7, "ObjectDetectionMetrics"),
    ),
    "EvaluationStageMetrics": (
        ("num_runs", 1, "int32"),
        ("process_metrics", 2, "ProcessMetrics"),
    ),
}


def message(name: str) -> Any:
    """A new, empty message.

    Raises:
        OptionError: protobuf is not installed.
    """
    return _classes()[name]()


@functools.cache
def _classes() -> dict[str, Any]:
    descriptor_pb2 = optional_module("google.protobuf.descriptor_pb2")
    pool = optional_module("google.protobuf.descriptor_pool").DescriptorPool()
    factory = optional_module("google.protobuf.message_factory")
    file = descriptor_pb2.FileDescriptorProto(
        name="evaluation.proto", package=_PACKAGE, syntax="proto2"
    )
    for name, fields in _MESSAGES.items():
        declared = file.message_type.add(name=name)
        for field in fields:
            _declare(declared.field.add(), *field)
    pool.Add(file)
    return {
        name: factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }


def _declare(field: Any, name: str, number: int, kind: str) -> None:
    field.name, field.number = name, number
    field.label = field.LABEL_REPEATED if kind.endswith("*") else field.LABEL_OPTIONAL
    kind = kind.removesuffix("*")
    if kind in _MESSAGES:
        field.type, field.type_name = field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    else:
        field.type = getattr(field, f"TYPE_{kind.upper()}")


def set_latency(target: Any, latency: Latency) -> None:
    """Fill a LatencyMetrics message."""
    target.last_us, target.max_us = int(latency.last_us), int(latency.max_us)
    target.min_us, target.sum_us = int(latency.min_us), int(latency.sum_us)
    target.avg_us, target.std_deviation_us = latency.avg_us, int(latency.std_deviation_us)


def check_metrics_path(path: Path) -> None:
    """Whether metrics can be written there.

    Raises:
        OptionError: no such folder, or protobuf is not installed.
    """
    if not path.parent.is_dir():
        raise OptionError(f"metrics file {str(path)!r}: no folder {str(path.parent)!r}")
    optional_module("google.protobuf")


def write_metrics(path: Path, metrics: Any) -> None:
    """Write a message: as JSON to a path that ends in .json, else in TFLite's binary form."""
    if path.suffix == ".json":
        json_format = optional_module("google.protobuf.json_format")
        text = json_format.MessageToJson(metrics, preserving_proto_field_name=True)
        path.write_text(f"{text}\n")
    else:
        path.write_bytes(metrics.SerializeToString())
