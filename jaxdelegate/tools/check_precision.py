"""`jaxdelegate check_precision`: which operators float16 or bfloat16 would make wrong."""

from absl import flags

from jaxdelegate.comparison.precision_check import check_precision
from jaxdelegate.lowering.error_probe import ERROR_BOUND
from jaxdelegate.measuring.inputs import load_array, parse_input_flags
from jaxdelegate.tools import delegate_flags

_UNSAFE = 2


def define(values: flags.FlagValues) -> None:
    """Declare the tool's flags."""
    flags.DEFINE_string("graph", None, "The .tflite file.", required=True, flag_values=values)
    flags.DEFINE_enum(
        "jax_compute_dtype",
        "float16",
        ["float16", "bfloat16", "auto"],
        "The dtype to check, held and multiplied as on a GPU.",
        flag_values=values,
    )
    flags.DEFINE_float(
        "error_bound",
        ERROR_BOUND,
        "How far a value may be off, relative to the largest of its tensor.",
        0,
        flag_values=values,
    )
    flags.DEFINE_string(
        "input_layer_value_files",
        "",
        "A .npy file for each input of the model: a:path,b:path; a colon within is '::'. None: "
        "seeded random values.",
        flag_values=values,
    )
    delegate_flags.define_options(values, "native_kernels")


def run(values: flags.FlagValues) -> int:
    """Print the report; 2 if an operator goes wrong or outputs are beyond the bound."""
    files = parse_input_flags(files=values.input_layer_value_files).files
    report = check_precision(
        values.graph,
        {name: load_array(path) for name, path in files.items()} or None,
        values.jax_compute_dtype,
        error_bound=values.error_bound,
    )
    print(report)
    return 0 if report.is_safe else _UNSAFE
