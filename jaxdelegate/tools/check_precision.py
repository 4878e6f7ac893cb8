"""`jaxdelegate check_precision`: which operators float16 or bfloat16 would make wrong."""

from absl import flags

from jaxdelegate.comparison.precision_check import check_precision
from jaxdelegate.lowering.error_probe import ERROR_BOUND
from jaxdelegate.measuring.inputs import load_array, parse_input_flags
from jaxdelegate.providers.parsing import Flag
from jaxdelegate.tools import command_line

OPTIONS = ("native_kernels",)
FLAGS = (
    command_line.GRAPH,
    Flag(
        "jax_compute_dtype", str, "float16",
        "The dtype to check, stored and multiplied as on a GPU.",
        ("float16", "bfloat16", "auto"),
    ),
    Flag(
        "error_bound", float, ERROR_BOUND,
        "The allowed error of a value, relative to the largest value of its tensor.", lower=0,
    ),
    Flag(
        "input_layer_value_files", str, "",
        "A .npy file for each input of the model: a:path,b:path; '::' is a colon in a path. "
        "Unset: seeded random values.",
    ),
)  # fmt: skip
_UNSAFE = 2


def run(values: flags.FlagValues) -> int:
    """Print the report; returns 2 if an operator or an output is beyond the error bound."""
    files = parse_input_flags(files=values.input_layer_value_files).files
    report = check_precision(
        values.graph,
        {name: load_array(path) for name, path in files.items()} or None,
        values.jax_compute_dtype,
        error_bound=values.error_bound,
    )
    print(report)
    return 0 if report.is_safe else _UNSAFE
