"""`jaxdelegate inference_diff`: a delegate's outputs and latency against a reference."""

from pathlib import Path

from absl import flags

from jaxdelegate.comparison.diff import inference_diff
from jaxdelegate.comparison.page import page
from jaxdelegate.comparison.serialized import diff_record, stage_metrics
from jaxdelegate.comparison.text import summary
from jaxdelegate.report.json_records import write_json
from jaxdelegate.tools import comparison_flags, delegate_names, output_files

_DIFFERS = 2


def define(values: flags.FlagValues) -> None:
    """Declare the tool's flags."""
    comparison_flags.define(values, num_runs=50)
    flags.DEFINE_integer(
        "invocations_per_run", 1, "Timed invocations per set of inputs.", 1, flag_values=values
    )
    flags.DEFINE_bool(
        "per_layer", False, "Compare every intermediate tensor, too.", flag_values=values
    )
    flags.DEFINE_integer(
        "layer_runs", 1, "On how many sets of inputs --per_layer compares.", 1, flag_values=values
    )
    flags.DEFINE_integer("top", 10, "How many layers to print.", 1, flag_values=values)
    flags.DEFINE_string("result_json", "", "Write the result here as JSON.", flag_values=values)
    flags.DEFINE_string(
        "output_file_path",
        "",
        "Write the metrics here as a serialized tflite.evaluation.EvaluationStageMetrics.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "result_html", "", "Write the result here as a web page.", flag_values=values
    )


def run(values: flags.FlagValues) -> int:
    """Compare and print; 0 if everything agrees but for rounding, 2 if not."""
    delegate_names.settle(values)
    output_files.check(values, ["result_json", "output_file_path", "result_html"])
    result = inference_diff(
        comparison_flags.model(values),
        comparison_flags.test(values),
        reference=values.reference,
        num_runs=values.num_runs,
        invocations_per_run=values.invocations_per_run,
        inputs=comparison_flags.inputs(values),
        bounds=comparison_flags.bounds(values),
        per_layer=values.per_layer,
        layer_runs=values.layer_runs,
    )
    print(summary(result, values.top))
    if values.result_json:
        write_json(values.result_json, diff_record(result))
    if values.output_file_path:
        Path(values.output_file_path).write_bytes(stage_metrics(result))
    if values.result_html:
        Path(values.result_html).write_text(page(result))
    return 0 if result.is_healthy else _DIFFERS
