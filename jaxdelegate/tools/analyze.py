"""`jaxdelegate analyze`: what a model holds and costs, what a delegate runs of it, and advice."""

from collections.abc import Iterator
from pathlib import Path

from absl import flags

from jaxdelegate import providers
from jaxdelegate.analysis import measured, model_explorer
from jaxdelegate.analysis.analyzer import analyze_with
from jaxdelegate.analysis.page import html_page
from jaxdelegate.analysis.records import report
from jaxdelegate.bundles.bundle import open_bundle
from jaxdelegate.bundles.description import section_lines
from jaxdelegate.errors import OptionError
from jaxdelegate.model.source import begins_as_a_bundle, split_path
from jaxdelegate.providers.parsing import Flag
from jaxdelegate.simple_delegate import SimpleDelegate
from jaxdelegate.tools import command_line, delegate_flags
from jaxdelegate.waiting import waiting

DELEGATES = True
FLAGS = (
    command_line.GRAPH,
    Flag("result_json", str, "", "Write the analysis as JSON.", is_output=True),
    Flag("result_html", str, "", "Write the analysis as one HTML page.", is_output=True),
    Flag("model_explorer_dir", str, "", "Write Model Explorer's node data here."),
    Flag(
        "op_profile", str, "",
        "Measured latencies: the benchmark's JSON with an operator profile, or a JSON object of "
        "milliseconds by operator or tensor.",
    ),
    Flag(
        "layer_errors", str, "",
        "Measured errors: inference_diff's JSON with layers, or a JSON object of errors by "
        "operator or tensor.",
    ),
    Flag(
        "gpu_compatibility", bool, False,
        "Print Analyzer's lines about operators that the delegate does not support.",
    ),
)  # fmt: skip


def run(values: flags.FlagValues) -> int:
    """Analyze, print and write; returns 1 if full delegation is required and impossible."""
    delegate = _delegate(values)
    for line in _bundle_lines(values.graph):
        print(line)
    interpreter = providers.interpreter_name(values, [] if delegate is None else [delegate])
    with waiting("planning the model, and asking the delegate about each operator"):
        analysis = analyze_with(values.graph, delegate, interpreter)
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


def _bundle_lines(graph: str) -> Iterator[str]:
    path = split_path(graph)[0]
    if begins_as_a_bundle(path):
        bundle = open_bundle(path)
        if bundle.models:
            yield from (*section_lines(bundle), "")


def _delegate(values: flags.FlagValues) -> SimpleDelegate | None:
    delegates = delegate_flags.delegates(values)
    if len(delegates) > 1:
        names = ", ".join(getattr(d, "name", type(d).__name__) for d in delegates)
        raise OptionError(f"analyze accepts one delegate, got {len(delegates)}: {names}")
    for delegate in delegates:
        if not isinstance(delegate, SimpleDelegate):
            raise OptionError(
                f"analyze accepts delegates written in Python, got {type(delegate).__name__}"
            )
    return delegates[0] if delegates else None
