"""What clients may ask about the server and its models: metadata, configurations, statistics.

These are the JSON forms of the protocol's buffers (`grpc_service.proto`) and Triton's
(`model_config.proto`), which gRPC parses into messages. Load generators such as perf_analyzer
request configurations and statistics.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from jaxdelegate.serve.metrics import Reading, RunTimes
from jaxdelegate.serve.service import Service
from jaxdelegate.serve.v2.model import ServedModel
from jaxdelegate.serve.v2.requests import TensorMetadata
from jaxdelegate.serve.v2.tensors import BYTES, name_of
from jaxdelegate.version import __version__

_NAME = "jaxdelegate"
_PLATFORM = "jaxdelegate_tflite"
_EXTENSIONS = ("binary_tensor_data", "model_configuration", "sequence", "statistics")


def server() -> dict[str, Any]:
    """A `ServerMetadataResponse`."""
    return {"name": _NAME, "version": __version__, "extensions": list(_EXTENSIONS)}


def index(served: Service, *, only_ready: bool) -> list[dict[str, Any]]:
    """The models of a `RepositoryIndexResponse`."""
    rows = [
        {
            "name": model.name,
            "version": model.version,
            "state": "READY" if served.is_model_ready(model) else "LOADING",
            "reason": "",
        }
        for model in served.all.values()
    ]
    return [row for row in rows if row["state"] == "READY" or not only_ready]


def metadata(model: ServedModel) -> dict[str, Any]:
    """A `ModelMetadataResponse`; its tensors have `parameters` if the file describes them."""
    return {
        "name": model.name,
        "versions": [model.version],
        "platform": _PLATFORM,
        "inputs": [_tensor(t) for t in model.inputs],
        "outputs": [_tensor(t) for t in model.outputs],
    }


def _tensor(tensor: TensorMetadata) -> dict[str, Any]:
    row = {"name": tensor.name, "datatype": name_of(tensor.dtype), "shape": list(tensor.shape)}
    return {**row, "parameters": dict(tensor.parameters)} if tensor.parameters else row


def configuration(model: ServedModel) -> dict[str, Any]:
    """A `ModelConfig`. With batching, dimensions are those of one item, as in Triton."""
    first = 1 if model.batch_sizes else 0
    return {
        "name": model.name,
        "platform": _PLATFORM,
        "backend": _NAME,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": max(model.batch_sizes, default=0),
        "input": _tensors(model.inputs, first),
        "output": _tensors(model.outputs, first),
        **_scheduler(model),
    }


def _tensors(tensors: Iterable[TensorMetadata], first: int) -> list[dict[str, Any]]:
    return [
        {"name": t.name, "data_type": _data_type(t), "dims": list(t.shape[first:])} for t in tensors
    ]


def _data_type(tensor: TensorMetadata) -> str:
    name = name_of(tensor.dtype)
    return "TYPE_STRING" if name == BYTES else f"TYPE_{name}"


def _scheduler(model: ServedModel) -> dict[str, Any]:
    """The batching part. Sequences, which models with states have, exclude dynamic batching."""
    settings = model.settings
    if model.is_stateful:
        idle = round(settings.session_idle_s * 1e6)
        return {"sequence_batching": {"max_sequence_idle_microseconds": idle, "direct": {}}}
    if not model.batch_sizes:
        return {}
    return {
        "dynamic_batching": {
            "preferred_batch_size": list(model.batch_sizes),
            "max_queue_delay_microseconds": settings.max_queue_delay_us,
            "default_queue_policy": {"max_queue_size": settings.max_queue_size},
        }
    }


def statistics(models: Sequence[ServedModel]) -> dict[str, Any]:
    """A `ModelStatisticsResponse`. A file's signatures share metrics, under the first's name."""
    by_recorder = {id(model.recorder): model for model in reversed(models)}
    return {
        "model_stats": [_statistics(m, m.recorder.read()) for m in reversed(by_recorder.values())]
    }


def _statistics(model: ServedModel, read: Reading) -> dict[str, Any]:
    values = read.values
    success = round(values["inference_request_success"])

    def spent(what: str) -> dict[str, int]:
        return {"count": success, "ns": round(values[f"inference_{what}_duration_us"] * 1e3)}

    return {
        "name": model.name,
        "version": model.version,
        "last_inference": round(read.last_s * 1e3),
        "inference_count": round(values["inference_count"]),
        "execution_count": round(values["inference_exec_count"]),
        "inference_stats": {
            "success": spent("request"),
            "fail": {"count": sum(read.reasons.values()), "ns": round(read.failed_s * 1e9)},
            "queue": spent("queue"),
            "compute_input": spent("compute_input"),
            "compute_infer": spent("compute_infer"),
            "compute_output": spent("compute_output"),
            "cache_hit": {"count": 0, "ns": 0},  # there is no response cache as in Triton
            "cache_miss": {"count": 0, "ns": 0},
        },
        "batch_stats": [_batch(rows, *read.batches[rows]) for rows in sorted(read.batches)],
    }


def _batch(rows: int, runs: int, times: RunTimes) -> dict[str, Any]:
    parts = zip(("compute_input", "compute_infer", "compute_output"), times, strict=True)
    return {
        "batch_size": rows,
        **{what: {"count": runs, "ns": round(s * 1e9)} for what, s in parts},
    }
