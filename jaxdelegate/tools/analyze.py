"""`jaxdelegate analyze`: what a model holds and costs, what a delegate takes of it, and advice."""

from pathlib import Path

from absl import flags

from jaxdelegate.analysis import measured, model_explorer
from jaxdelegate.analysis.analyzer import analyze_with
from jaxdelegate.analysis.page import html_page
from jaxdelegate.analysis.records import report
from jaxdelegate.errors import OptionError
from jaxdelegate.simple_delegate import SimpleDelegate
from jaxdelegate.tools import delegate_flags, output_files


def define(values: flags.FlagValues) -> None:
    """Declare the tool's flags."""
    flags.DEFINE_string("graph", "", "The .tflite file.", flag_values=values)
    flags.DEFINE_string("result_json", "", "Write the analysis as JSON.", flag_values=values)
    flags.DEFINE_string(
        "result_html", "", "Write the analysis as one HTML page.", flag_values=values
    )
    flags.DEFINE_string(
        "model_explorer_dir", "", "Write Model Explorer's node data here.", flag_values=values
    )
    flags.DEFINE_string(
        "op_profile",
        "",
        "Measured latencies: the benchmark's JSON with an operator profile, or a JSON object of "
        "milliseconds by operator or tensor.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "layer_errors",
        "",
        "Measured errors: inference_diff's JSON with layers, or a JSON object of errors by "
        "operator or tensor.",
        flag_values=values,
    )
    flags.DEFINE_bool(
        "gpu_compatibility",
        False,
        "Print Analyzer's lines of which operators the delegate does not take.",
        flag_values=values,
    )
    delegate_flags.define(values)


def run(values: flags.FlagValues) -> int:
    """Analyze, print, and write what was asked for; 1 if full delegation was required in vain."""
    if not values.graph:
        raise OptionError("--graph: want a .tflite file, got nothing")
    output_files.check(values, ["result_json", "result_html"])
    delegate = _delegate(values)
    analysis = analyze_with(values.graph, delegate)
    if values.op_profile:
        analysis = measured.with_latency(analysis, values.op_profile)
    if values.layer_errors:
        analysis = measured.with_error(analysis, values.layer_errors)
    print(report(analysis, gpu_compatibility=values.gpu_compatibility))
    if values.result_json:
        Path(values.result_json).write_text(analysis.to_json(indent=1) + "\n", "utf-8")
        print(f"Wrote {values.result_json}")
    if values.result_html:
        Path(values.result_html).write_text(html_page(analysis), "utf-8")
        print(f"Wrote {values.result_html}")
    if values.model_explorer_dir:
        for path in model_explorer.write(analysis, values.model_explorer_dir):
            print(f"Wrote {path}")
    required = getattr(getattr(delegate, "options", None), "require_full_delegation", False)
    return 1 if required and not analysis.is_compatible else 0


def _delegate(values: flags.FlagValues) -> SimpleDelegate | None:
    """The delegate that the flags ask for; None: they ask for none.

    Raises:
        OptionError: several, or one that cannot be asked about operators.
    """
    delegates = delegate_flags.delegates(values)
    if len(delegates) > 1:
        names = ", ".join(getattr(d, "name", type(d).__name__) for d in delegates)
        raise OptionError(f"analyze takes one delegate, got {len(delegates)}: {names}")
    for delegate in delegates:
        if not isinstance(delegate, SimpleDelegate):
            raise OptionError(
                f"analyze takes delegates written in Python, got {type(delegate).__name__}"
            )
    return delegates[0] if delegates else None
