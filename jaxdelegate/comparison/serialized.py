"""Comparisons as files: JSON, and the message that TFLite's inference_diff writes."""

import dataclasses
import json
import math
import struct
from pathlib import Path
from typing import Any

from jaxdelegate.comparison.bisect import Bisection
from jaxdelegate.comparison.diff import InferenceDiff
from jaxdelegate.comparison.metrics import TensorComparison
from jaxdelegate.evaluation.latency import Latency
from jaxdelegate.version import __version__


def diff_record(result: InferenceDiff) -> dict[str, Any]:
    """The whole comparison as JSON types; the keys are the dataclasses' fields.

    Beside them stand `agrees` of the whole and of every comparison, and `first_divergence`.
    """
    record = {"tool": "inference_diff", "version": __version__, **_plain(result)}
    record["agrees"] = result.agrees
    divergence = result.layers.first_divergence() if result.layers else None
    record["first_divergence"] = None
    if divergence is not None:
        layer = divergence.layer
        record["first_divergence"] = {
            "kind": divergence.kind,
            "node": layer.node,
            "operator": layer.operator,
            "tensor": layer.tensor.name,
            "message": str(divergence),
        }
    return record


def bisect_record(result: Bisection) -> dict[str, Any]:
    """A search as JSON types; the keys are the dataclasses' fields."""
    return {"tool": "bisect", "version": __version__, **_plain(result)}


def write_json(path: str, record: dict[str, Any]) -> None:
    """Write a record; numbers that JSON does not know are null.

    Raises:
        OSError: the file cannot be written.
    """
    Path(path).write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        if isinstance(value, TensorComparison):
            fields["agrees"] = value.agrees
        return fields
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def stage_metrics(result: InferenceDiff) -> bytes:
    """The comparison as a serialized tflite.evaluation.EvaluationStageMetrics.

    Field numbers: tools/evaluation/proto/evaluation_stages.proto. As there, an output that has no
    numbers (strings) has an empty entry.
    """
    profiler = (
        _message(1, _latency(result.reference_latency))
        + _message(2, _latency(result.test_latency))
        + b"".join(_message(3, _accuracy(output)) for output in result.outputs)
    )
    return _integer(1, result.num_runs) + _message(2, _message(5, profiler))


def _latency(latency: Latency) -> bytes:
    whole = (latency.last_us, latency.max_us, latency.min_us, latency.sum_us)
    return (
        b"".join(_integer(number, int(us)) for number, us in enumerate(whole, 1))
        + _tag(5, 1)
        + struct.pack("<d", latency.avg_us)
        + _integer(6, int(latency.std_deviation_us))
    )


def _accuracy(output: TensorComparison) -> bytes:
    if output.mean_abs is None:
        return b""
    return (
        _float(1, output.max_mean_abs or 0.0)
        + _float(2, output.min_mean_abs or 0.0)
        + _tag(3, 1)
        + struct.pack("<d", output.mean_abs)
        + _float(4, output.std_dev or 0.0)
    )


def _tag(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _integer(number: int, value: int) -> bytes:
    return _tag(number, 0) + _varint(value)


def _float(number: int, value: float) -> bytes:
    return _tag(number, 5) + struct.pack("<f", value)


def _message(number: int, content: bytes) -> bytes:
    return _tag(number, 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the high bit says that more follow."""
    more = []
    while value > 0x7F:
        more.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*more, value])
