"""Triton's extensions of the protocol: a model's configuration, and its statistics.

Load generators such as perf_analyzer request both. They are the JSON forms of protocol buffers
(`model_config.proto`, `grpc_service.proto`), which gRPC parses into messages.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from jaxdelegate.serve import service
from jaxdelegate.serve.metrics import BatchCounts, Reading
from jaxdelegate.serve.records import Scheduling, ServedModel, TensorMetadata
from jaxdelegate.serve.v2.datatypes import BYTES, name_of


def configuration(model: ServedModel) -> dict[str, Any]:
    """A `ModelConfig`. With batching, dimensions are those of one item, as in Triton."""
    own = model.scheduling
    return {
        "name": model.name,
        "platform": service.PLATFORM,
        "backend": service.NAME,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": max(own.batch_sizes, default=0),
        "input": _tensors(model.inputs, own),
        "output": _tensors(model.outputs, own),
        **_scheduler(own),
    }


def _tensors(tensors: Iterable[TensorMetadata], own: Scheduling) -> list[dict[str, Any]]:
    first = 1 if own.batch_sizes else 0
    return [
        {"name": t.name, "data_type": _data_type(t), "dims": list(t.shape[first:])} for t in tensors
    ]


def _data_type(tensor: TensorMetadata) -> str:
    name = name_of(tensor.dtype)
    return "TYPE_STRING" if name == BYTES else f"TYPE_{name}"


def _scheduler(own: Scheduling) -> dict[str, Any]:
    """The batching part. Sequences, which models with states have, exclude dynamic batching."""
    if own.session_idle_s is not None:
        idle = round(own.session_idle_s * 1e6)
        return {"sequence_batching": {"max_sequence_idle_microseconds": idle, "direct": {}}}
    if not own.batch_sizes:
        return {}
    return {
        "dynamic_batching": {
            "preferred_batch_size": list(own.batch_sizes),
            "max_queue_delay_microseconds": own.max_queue_delay_us,
            "default_queue_policy": {"max_queue_size": own.max_queue_size},
        }
    }


def statistics(models: Sequence[ServedModel]) -> dict[str, Any]:
    """A `ModelStatisticsResponse`. A file's signatures share metrics, under the first's name."""
    own = {id(model.recorder): model for model in reversed(models)}
    return {"model_stats": [_statistics(m, m.recorder.read()) for m in reversed(own.values())]}


def _statistics(model: ServedModel, read: Reading) -> dict[str, Any]:
    counts = read.counts
    success = counts["inference_request_success"]

    def spent(what: str) -> dict[str, int]:
        us = counts[f"inference_{what}_duration_us"]
        return {"count": round(success), "ns": round(us * 1e3)}

    return {
        "name": model.name,
        "version": model.version,
        "last_inference": round(read.last_s * 1e3),
        "inference_count": round(counts["inference_count"]),
        "execution_count": round(counts["inference_exec_count"]),
        "inference_stats": {
            "success": spent("request"),
            "fail": {"count": sum(read.failures.values()), "ns": round(read.failed_s * 1e9)},
            "queue": spent("queue"),
            "compute_input": spent("compute_input"),
            "compute_infer": spent("compute_infer"),
            "compute_output": spent("compute_output"),
            "cache_hit": {"count": 0, "ns": 0},  # of Triton's response cache, which does not exist
            "cache_miss": {"count": 0, "ns": 0},
        },
        "batch_stats": [_batch(rows, read.batches[rows]) for rows in sorted(read.batches)],
    }


def _batch(rows: int, batch: BatchCounts) -> dict[str, Any]:
    spent = {
        "compute_input": batch.input_s,
        "compute_infer": batch.infer_s,
        "compute_output": batch.output_s,
    }
    times = {what: {"count": batch.runs, "ns": round(s * 1e9)} for what, s in spent.items()}
    return {"batch_size": rows, **times}
