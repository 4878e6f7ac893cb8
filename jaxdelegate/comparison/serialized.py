"""Comparisons as JSON, and as the message that TFLite's inference_diff writes."""

from typing import Any

from jaxdelegate import protos
from jaxdelegate.comparison.answers import AnswerDiff, LanguageModelDiff, Step
from jaxdelegate.comparison.bisect import Bisection
from jaxdelegate.comparison.diff import InferenceDiff
from jaxdelegate.comparison.metrics import TensorComparison
from jaxdelegate.report.json_records import Derived, plain
from jaxdelegate.version import __version__

# Properties that are written like fields.
_DERIVED: Derived = {
    TensorComparison: ("agrees",),
    LanguageModelDiff: (
        "agrees",
        "is_healthy",
        "has_right_probabilities",
        "top_1",
        "difference",
        "rounding",
        "limit",
    ),
    AnswerDiff: ("divergence",),
    Step: ("agrees", "margin", "expected_margin"),
}


def _record(tool: str, result: Any) -> dict[str, Any]:
    return {"tool": tool, "version": __version__, **plain(result, derived=_DERIVED)}


def diff_record(result: InferenceDiff) -> dict[str, Any]:
    """The dataclasses' fields as JSON types, the verdicts, the first divergence."""
    record = _record("inference_diff", result)
    record["agrees"], record["is_healthy"] = result.agrees, result.is_healthy
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
    """The result of a search as JSON types; the keys are the dataclasses' fields."""
    return _record("bisect", result)


def language_model_record(result: LanguageModelDiff) -> dict[str, Any]:
    """The dataclasses' fields as JSON types, and the verdicts."""
    return _record("inference_diff", result)


def stage_metrics(result: InferenceDiff) -> bytes:
    """A serialized tflite.evaluation.EvaluationStageMetrics.

    As in TFLite, an output without numbers (strings) has an empty entry.
    """
    metrics = protos.message("tflite.evaluation.EvaluationStageMetrics")
    metrics.num_runs = result.num_runs
    profiler = metrics.process_metrics.inference_profiler_metrics
    result.reference_latency.fill(profiler.reference_latency)
    result.test_latency.fill(profiler.test_latency)
    for output in result.outputs:
        error = profiler.output_errors.add()
        if output.mean_abs is not None:
            error.max_value = output.max_mean_abs or 0.0
            error.min_value = output.min_mean_abs or 0.0
            error.avg_value = output.mean_abs
            error.std_deviation = output.std_dev or 0.0
    content: bytes = metrics.SerializeToString()
    return content
