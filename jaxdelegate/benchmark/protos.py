"""Protocol buffers that no package brings compiled, built from their fields at run time."""

import functools
import importlib
from typing import Any

# Message -> its fields in the order of their numbers; "kind*" is a repeated one.
_SCHEMAS: dict[str, dict[str, tuple[tuple[str, str], ...]]] = {
    # tools/benchmark/proto/benchmark_result.proto
    "tflite.tools.benchmark": {
        "LatencyMetrics": (
            ("avg_ms", "float"),
            ("min_ms", "float"),
            ("max_ms", "float"),
            ("stddev_ms", "float"),
            ("median_ms", "float"),
            ("p5_ms", "float"),
            ("p95_ms", "float"),
            ("init_ms", "float"),
            ("first_inference_ms", "float"),
            ("average_warm_up_ms", "float"),
        ),
        "MemoryMetrics": (
            ("init_footprint_kb", "int64"),
            ("overall_footprint_kb", "int64"),
            ("peak_mem_mb", "float"),
        ),
        "MiscMetrics": (
            ("model_size_mb", "float"),
            ("num_runs", "int32"),
            ("num_warmup_runs", "int32"),
            ("model_throughput_in_mb_per_sec", "float"),
        ),
        "BenchmarkResult": (
            ("name", "string"),
            ("latency_metrics", "LatencyMetrics"),
            ("memory_metrics", "MemoryMetrics"),
            ("misc_metrics", "MiscMetrics"),
        ),
    },
    # tensorflow/core/example/{feature,example}.proto; a map is its entries on the wire
    "tensorflow": {
        "BytesList": (("value", "bytes*"),),
        "FloatList": (("value", "float*"),),
        "Int64List": (("value", "int64*"),),
        "Feature": (
            ("bytes_list", "BytesList"),
            ("float_list", "FloatList"),
            ("int64_list", "Int64List"),
        ),
        "FeatureEntry": (("key", "string"), ("value", "Feature")),
        "Features": (("feature", "FeatureEntry*"),),
        "Example": (("features", "Features"),),
    },
}


@functools.cache
def message_class(package: str, name: str) -> Any:
    """A message's class."""
    descriptors = importlib.import_module("google.protobuf.descriptor_pb2")
    pool = importlib.import_module("google.protobuf.descriptor_pool").DescriptorPool()
    factory = importlib.import_module("google.protobuf.message_factory")
    file = descriptors.FileDescriptorProto(name=package, package=package, syntax="proto2")
    for message, fields in _SCHEMAS[package].items():
        added = file.message_type.add(name=message)
        for number, (field, kind) in enumerate(fields, 1):
            _add_field(added, descriptors.FieldDescriptorProto, package, (field, number, kind))
    pool.Add(file)
    return factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))


def _add_field(message: Any, kinds: Any, package: str, row: tuple[str, int, str]) -> None:
    name, number, kind = row
    label = kinds.LABEL_REPEATED if kind.endswith("*") else kinds.LABEL_OPTIONAL
    kind = kind.removesuffix("*")
    field = message.field.add(name=name, number=number, label=label)
    if kind in _SCHEMAS[package]:
        field.type, field.type_name = kinds.TYPE_MESSAGE, f".{package}.{kind}"
        return
    field.type = getattr(kinds, f"TYPE_{kind.upper()}")
    if label == kinds.LABEL_REPEATED and kind in ("float", "int64"):
        field.options.packed = True  # as proto3, which the originals are written in
