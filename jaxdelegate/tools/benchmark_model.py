"""`jaxdelegate benchmark_model`: TFLite's tool of that name, its flags and its lines."""

from pathlib import Path
from typing import Any

from absl import flags

from jaxdelegate import providers
from jaxdelegate.benchmark import results, state, tables
from jaxdelegate.benchmark.options import BENCHMARK_FLAGS, BenchmarkOptions
from jaxdelegate.benchmark.results import BenchmarkReport
from jaxdelegate.benchmark.run import Source, benchmark, graph_source
from jaxdelegate.benchmark.session import Session
from jaxdelegate.errors import OptionError
from jaxdelegate.model.records import read_model
from jaxdelegate.providers.parsing import Flag, FlagValues
from jaxdelegate.report.json_records import write_json
from jaxdelegate.text import printable
from jaxdelegate.tools import delegate_flags

# The tool's flags, with TFLite's labels for the log.
_OUTPUTS = (
    ("result_json", "Write the result as JSON.", "JSON result file"),
    ("result_csv", "Write the figures as CSV.", "CSV"),
    (
        "result_file_path", "Write TFLite's BenchmarkResult as binary proto.",
        "File path to save the benchmark result in binary proto format",
    ),
    (
        "op_profiling_output_file", "File for operator times; empty: the console.",
        "Op profiling output file.",
    ),
    (
        "profiling_output_csv_file",
        "Deprecated in TFLite: op_profiling_output_mode=csv and op_profiling_output_file.",
        "CSV File to export profiling data to",
    ),
    (
        "model_runtime_info_output_file", "File of export_model_runtime_info.",
        "Proto File to export model runtime info to",
    ),
    ("output_filepath", "Write the outputs' raw bytes.", "File path to export outputs layer to"),
    (
        "output_proto_filepath", "Write the outputs as a tf.train.Example.",
        "File path to export outputs layer as tf example to",
    ),
)  # fmt: skip
_WIDTHS = (  # columns of the printed state
    ("tensor_name_display_length", 25, "names", "Tensor name display length"),
    ("tensor_type_display_length", 15, "types", "Tensor type display length"),
    ("alloc_type_display_length", 18, "allocation types", "Tensor allocation type display length"),
)
_NO_EFFECT = (
    (
        "max_profiling_buffer_entries", 1024, "the buffer grows.",
        "Max initial profiling buffer entries",
    ),
    (
        "allow_dynamic_profiling_buffer_increase", False, "it can always grow.",
        "Allow dynamic increase on profiling buffer entries",
    ),
    ("use_caching", False, "weights are prepared once.", "Use caching"),
    (
        "release_dynamic_tensors", False, "tensors are freed after their last use.",
        "Release dynamic tensor memory",
    ),
    (
        "optimize_memory_for_large_tensors", 0, "there is no arena.",
        "Optimize memory usage for large tensors",
    ),
    (
        "enable_builtin_cast_constant_cache", False, "constants fold.",
        "Constant CAST output cache",
    ),
)  # fmt: skip
_OWN_FLAGS = (
    Flag(
        "graph", str, "", "The .tflite file, or fd:<descriptor>:<offset>:<size>.",
        label="Graph", is_required=True,
    ),
    Flag(
        "list_signatures", bool, False, "List the model's signatures and do nothing else.",
        label="List signatures from the provided model",
    ),
    Flag("verbose", bool, False, "Log flags that were not given, too."),
    Flag(
        "allow_fp16", bool, False, "True: the same as --gpu_precision_loss_allowed.",
        label="Allow fp16",
    ),
    Flag(
        "op_profiling_output_mode", str, "stdout", "How to write the operators.",
        ("stdout", "csv", "proto"), label="Op profiling output mode.",
    ),
    Flag(
        "export_model_runtime_info", bool, False, "Write graph and partitions as proto.",
        label="Enable Model Runtime Info Export",
    ),
    *(
        Flag(
            f"print_{when}invoke_state", bool, False,
            f"Print tensors and plan {order} the runs.",
            label=f"Print {when}-invoke interpreter state",
        )
        for when, order in (("pre", "before"), ("post", "after"))
    ),
    *(
        Flag(name, int, width, f"Width of {what} in the state.", label=label)
        for name, width, what, label in _WIDTHS
    ),
    *(Flag(name, str, "", text, label=label, is_output=True) for name, text, label in _OUTPUTS),
    *(
        Flag(name, type(default), default, f"Accepted, without effect: {why}", label=label)
        for name, default, why, label in _NO_EFFECT
    ),
)  # fmt: skip
DELEGATES = True
FLAGS = (*_OWN_FLAGS, *BENCHMARK_FLAGS)


def run(values: flags.FlagValues) -> int:
    _log("STARTING!")
    if values.export_model_runtime_info and not values.model_runtime_info_output_file:
        raise OptionError("export_model_runtime_info needs model_runtime_info_output_file")
    options = options_of(values)
    _log_flags(values)
    chosen = _with_allow_fp16(values)
    source = graph_source(values.graph)
    if values.list_signatures:
        return _list_signatures(source)
    report = benchmark(
        source,
        options,
        values=chosen,
        log=_log,
        before=lambda session: _before(values, session),
        after=lambda session: _after(values, session),
    )
    _write_profile(values, report)
    if report.precision is not None:
        print(report.precision)
    _write_results(values, report)
    return 0


def _with_allow_fp16(values: flags.FlagValues) -> FlagValues:
    chosen = delegate_flags.read(values)
    if not values.allow_fp16:
        return chosen
    for name in ("gpu_precision_loss_allowed", "jax_is_precision_loss_allowed"):
        if chosen.is_set(name) and not chosen[name]:
            raise OptionError(f"--allow_fp16 and --no{name} contradict each other; give one")
    return chosen.replaced(gpu_precision_loss_allowed=True)


def options_of(values: flags.FlagValues) -> BenchmarkOptions:
    return BenchmarkOptions(**{flag.name: values[flag.name].value for flag in BENCHMARK_FLAGS})


def _log(line: str) -> None:
    # TFLite's lines, such as "Inference timings in us", have no line breaks: scripts look for them.
    print(f"INFO: {line}", flush=True)


def _log_flags(values: flags.FlagValues) -> None:
    """Log flags and their values as TFLite does: those that were given, with --verbose all."""
    _log(f"Log parameter values verbosely: [{int(values.verbose)}]")
    labels = {flag.name: flag.label for flag in (*BENCHMARK_FLAGS, *_OWN_FLAGS)}
    labels |= {flag.name: getattr(flag, "label", "") or flag.name for flag in providers.all_flags()}
    for name, label in labels.items():
        always = name in ("graph", "signature_to_run_for")
        if label and (always or values.verbose or values[name].present):
            _log(f"{label}: [{printable(_as_in_cpp(values[name].value))}]")


def _as_in_cpp(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _list_signatures(source: Source) -> int:
    keys = [signature.key for signature in read_model(source).signatures]
    _log(f"The Model contains {len(keys)} signature key(s).")
    if keys:
        _log("They are listed below: ")
    for key in keys:
        _log(f"-> Signature Key: {printable(key)}")
    return 0


def _before(values: flags.FlagValues, session: Session) -> None:
    if values.export_model_runtime_info:
        content = state.runtime_info(session, values.graph)
        Path(values.model_runtime_info_output_file).write_bytes(content)
    if values.print_preinvoke_state:
        _print_state(values, session, "pre-invoke")


def _after(values: flags.FlagValues, session: Session) -> None:
    if values.print_postinvoke_state:
        _print_state(values, session, "post-invoke")
    if values.output_filepath:
        Path(values.output_filepath).write_bytes(state.outputs_bytes(session))
    if values.output_proto_filepath:
        Path(values.output_proto_filepath).write_bytes(state.outputs_example(session))


def _print_state(values: flags.FlagValues, session: Session, when: str) -> None:
    _log(f"\n====Printing out TfLite interpreter {when} state begins====")
    print(state.state_text(session, [values[name].value for name, *_ in _WIDTHS]))
    _log(f"====Printing out TfLite interpreter {when} state ends====\n")


def _write_profile(values: flags.FlagValues, report: BenchmarkReport) -> None:
    if report.profile is None:
        return
    mode, path = values.op_profiling_output_mode, values.op_profiling_output_file
    if values.profiling_output_csv_file:
        mode, path = "csv", values.profiling_output_csv_file
    if mode == "proto":
        content = tables.profile_proto(report.profile, report.model)
        if not path:
            raise OptionError("op_profiling_output_mode: proto needs op_profiling_output_file")
        Path(path).write_bytes(content)
        return
    text = tables.profile_text(report.profile, as_csv=mode == "csv")
    if path:
        Path(path).write_text(text)
    else:
        print(text)


def _write_results(values: flags.FlagValues, report: BenchmarkReport) -> None:
    if values.result_json:
        write_json(values.result_json, report.as_dict())
    if values.result_csv:
        Path(values.result_csv).write_text(results.to_csv([results.row_of(report.as_dict())]))
    if values.result_file_path:
        _log(f"Saving benchmark result to: {values.result_file_path}")
        Path(values.result_file_path).write_bytes(results.to_proto(report))
        _log(f"Saved benchmark result to: {values.result_file_path}")
