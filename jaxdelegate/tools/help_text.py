"""What `jaxdelegate <tool> --help` and `--helpfull` print."""

import textwrap
from collections.abc import Sequence

from absl import flags

from jaxdelegate.tools.command_line import COMMON, DELEGATES

_MANY = 30  # flags; with fewer, `--help` shows them all

# The flags that `--help` shows of a tool with many, in this order.
_COMMON = (
    *("name", "models", "host", "port", "grpc_port"),
    *("max_batch_size", "max_queue_delay_us", "max_queue_size"),
    *("request_timeout_s", "max_request_bytes"),
    *("ground_truth_images_path", "ground_truth_labels", "ground_truth_proto", "instances_file"),
    *("model_output_labels", "num_images", "output_file_path"),
    *("jax_platform", "jax_compute_dtype", "jax_quant_mode", "jax_serialization_dir"),
    *("use_gpu", "use_xnnpack", "external_delegate_path", "interpreter", "num_threads"),
    *("perf_options_list", "jax_compute_dtypes", "threads"),
    *("num_runs", "warmup_runs", "min_secs", "batch_size", "batch_sizes"),
    *("reference", "per_layer", "tolerance", "max_lsb", "prompt", "max_output_tokens"),
    *("input_layer", "input_layer_shape", "input_layer_value_files", "input_layer_value_range"),
    *("enable_op_profiling", "measure_peaks", "check_precision"),
    *("result_html", "result_json", "result_csv"),
)


def brief(name: str, what: str, values: flags.FlagValues, actions: Sequence[str]) -> str:
    """The tool's common flags; all of them if there are not many.

    One of the words in `actions` must be given.
    """
    known = {flag.name for flags in values.flags_by_module_dict().values() for flag in flags}
    if len(known) <= _MANY:
        return full(name, what, values, actions)
    shown = [flag for flag in _COMMON if flag in known]
    names = [_spelled(values[flag]) for flag in shown]
    width = max(map(len, names)) + 4
    lines = [
        textwrap.fill(
            f"  {spelled:{width - 2}s}{_first_sentence(values[flag].help)}",
            width=100,
            subsequent_indent=" " * width,
        )
        for spelled, flag in zip(names, shown, strict=True)
    ]
    return "\n".join(
        [
            *_head(name, what, values, actions),
            *lines,
            "",
            f"{len(known) - len(shown)} more flags: jaxdelegate {name} --helpfull",
        ]
    )


def full(name: str, what: str, values: flags.FlagValues, actions: Sequence[str]) -> str:
    sections = {
        "Flags": [f"jaxdelegate.tools.{name}"],
        "Flags of the delegates and interpreters": [DELEGATES],
        "Flags of all tools": [COMMON, "absl.flags"],
    }
    declared = values.flags_by_module_dict()
    parts = ["\n".join(_head(name, what, values, actions)).rstrip()]
    for title, modules in sections.items():
        if modules[0] in declared:  # without the modules' names
            texts = [values.module_help(m).strip().partition("\n")[2] for m in modules]
            parts.append("\n".join([f"{title}:", *texts]))
    return "\n\n".join(parts)


def _head(name: str, what: str, values: flags.FlagValues, actions: Sequence[str]) -> list[str]:
    word = f" {'|'.join(actions)}" if actions else ""
    model = " MODEL" if "graph" in values else ""
    return [
        f"jaxdelegate {name}: {what}",
        "",
        f"usage: jaxdelegate {name}{word}{model} [--flags]",
        "",
    ]


def _spelled(flag: flags.Flag) -> str:
    if flag.boolean:
        return f"--[no]{flag.name}"
    default = "" if flag.default in (None, "") else flag.default_unparsed
    return f"--{flag.name}={default}"


def _first_sentence(text: str | None) -> str:
    joined = " ".join((text or "").split())
    return joined.partition(". ")[0].rstrip(".") + "."
