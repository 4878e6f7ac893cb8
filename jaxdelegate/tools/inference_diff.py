"""`jaxdelegate inference_diff`: a delegate's outputs and latency against a reference."""

from pathlib import Path
from typing import Any

from absl import flags

from jaxdelegate.comparison.diff import InferenceDiff, inference_diff
from jaxdelegate.comparison.files import file_diff
from jaxdelegate.comparison.language_models import has_language_model
from jaxdelegate.comparison.page import page
from jaxdelegate.comparison.serialized import record, stage_metrics
from jaxdelegate.comparison.text import summary
from jaxdelegate.errors import OptionError
from jaxdelegate.providers.parsing import Flag
from jaxdelegate.report.json_records import write_json
from jaxdelegate.text import wrapped
from jaxdelegate.tools import comparison_flags, language_model_diff

DELEGATES = True
FLAGS = (
    Flag("num_runs", int, 50, "Number of input sets.", lower=1),
    language_model_diff.REFERENCE,
    *comparison_flags.FLAGS,
    Flag(
        "against", str, "",
        "Another file of the same network, which the reference runs instead of the model.",
    ),
    Flag("invocations_per_run", int, 1, "Timed invocations per set of inputs.", lower=1),
    Flag("per_layer", bool, False, "Also compare every intermediate tensor."),
    Flag("layer_runs", int, 1, "Number of input sets that --per_layer compares.", lower=1),
    Flag("top", int, 10, "How many layers to print.", lower=1),
    Flag(
        "output_file_path", str, "",
        "Write the metrics here as a serialized tflite.evaluation.EvaluationStageMetrics.",
        is_output=True,
    ),
    Flag("result_html", str, "", "Write the result here as a web page.", is_output=True),
    *language_model_diff.FLAGS,
)  # fmt: skip
_DIFFERS = 2


def run(values: flags.FlagValues) -> int:
    """Compare and print; returns 0 if everything agrees within rounding, 2 if not."""
    if has_language_model(values.graph):
        return 0 if language_model_diff.is_healthy(values) else _DIFFERS
    language_model_diff.refuse(values)
    result = _compared(values)
    print(wrapped(summary(result, values.top)))
    if values.result_json:
        write_json(values.result_json, record(result))
    if values.output_file_path:
        Path(values.output_file_path).write_bytes(stage_metrics(result))
    if values.result_html:
        Path(values.result_html).write_text(page(result))
    return 0 if result.is_healthy else _DIFFERS


def _compared(values: flags.FlagValues) -> InferenceDiff:
    test = comparison_flags.test(values)
    common: dict[str, Any] = {
        "reference": values.reference,
        "num_runs": values.num_runs,
        "invocations_per_run": values.invocations_per_run,
        "inputs": comparison_flags.inputs(values),
        "bounds": comparison_flags.bounds(values),
    }
    if not values.against:
        per_layer = values.layer_runs if values.per_layer else 0
        return inference_diff(values.graph, test, **common, per_layer=per_layer)
    if values.per_layer:
        raise OptionError(
            "against: the layers of two files are not compared: leave out --per_layer"
        )
    return file_diff(values.graph, values.against, test, **common)
