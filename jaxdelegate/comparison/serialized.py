"""Comparisons as JSON, and as the message that TFLite's inference_diff writes."""

from typing import Any

from jaxdelegate import protos
from jaxdelegate.comparison.answers import AnswerDiff, LanguageModelDiff, Step
from jaxdelegate.comparison.bisect import Bisection
from jaxdelegate.comparison.diff import InferenceDiff
from jaxdelegate.comparison.layers import LayerReport
from jaxdelegate.comparison.metrics import TensorComparison
from jaxdelegate.report.json_records import Derived, plain
from jaxdelegate.version import __version__

# Properties that are written like fields.
_DERIVED: Derived = {
    TensorComparison: ("agrees",),
    InferenceDiff: ("agrees", "is_healthy"),
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


def record(result: InferenceDiff | Bisection | LanguageModelDiff) -> dict[str, Any]:
    """The dataclasses' fields as JSON types, the verdicts, the first divergence of layers."""
    tool = "bisect" if isinstance(result, Bisection) else "inference_diff"
    fields = plain(result, derived=_DERIVED)
    if isinstance(result, InferenceDiff):
        fields["first_divergence"] = result.layers and _divergence(result.layers)
    return {"tool": tool, "version": __version__, **fields}


def _divergence(layers: LayerReport) -> dict[str, Any] | None:
    divergence = layers.first_divergence()
    if divergence is None:
        return None
    layer = divergence.layer
    return {
        "kind": divergence.kind,
        "node": layer.node,
        "operator": layer.operator,
        "tensor": layer.tensor.name,
        "message": str(divergence),
    }


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
