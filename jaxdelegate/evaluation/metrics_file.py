"""TFLite's EvaluationStageMetrics of a run, and its file."""

from pathlib import Path
from typing import Any

from google.protobuf import json_format

from jaxdelegate import protos
from jaxdelegate.evaluation.run import ImageRun


def new_metrics(stage: str, run: ImageRun) -> tuple[Any, Any]:
    """EvaluationStageMetrics of a run, and the part for `stage`, a field of ProcessMetrics."""
    metrics = protos.message("tflite.evaluation.EvaluationStageMetrics")
    metrics.num_runs = len(run.good)
    target = getattr(metrics.process_metrics, stage)
    run.preprocessing.fill(target.pre_processing_latency)
    run.inference.fill(target.inference_latency)
    target.inference_metrics.num_inferences = len(run.good)
    return metrics, target


def write_metrics(path: Path, metrics: Any) -> None:
    """Write a message as JSON if the path ends in .json, otherwise in TFLite's binary form."""
    if path.suffix == ".json":
        text = json_format.MessageToJson(metrics, preserving_proto_field_name=True)
        path.write_text(f"{text}\n")
    else:
        path.write_bytes(metrics.SerializeToString())
