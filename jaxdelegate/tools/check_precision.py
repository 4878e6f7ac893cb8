"""`jaxdelegate check_precision`: which operators float16 or bfloat16 would make wrong."""

from pathlib import Path

import numpy as np
from absl import flags

from jaxdelegate.comparison.precision_check import check_precision
from jaxdelegate.errors import OptionError
from jaxdelegate.lowering.error_probe import ERROR_BOUND

_UNSAFE = 2


def define(values: flags.FlagValues) -> None:
    """Declare the tool's flags."""
    flags.DEFINE_string("graph", None, "The .tflite file.", required=True, flag_values=values)
    flags.DEFINE_enum(
        "compute_dtype",
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
    flags.DEFINE_list(
        "inputs",
        [],
        "Files of numpy (.npy), one for each input of the model; none: seeded random values.",
        flag_values=values,
    )


def run(values: flags.FlagValues) -> int:
    """Print the report; 2 if an operator goes wrong or outputs are beyond the bound."""
    report = check_precision(
        values.graph,
        [_loaded(path) for path in values.inputs] or None,
        values.compute_dtype,
        error_bound=values.error_bound,
    )
    print(report)
    return 0 if report.is_safe else _UNSAFE


def _loaded(path: str) -> np.ndarray:
    try:
        return np.asarray(np.load(Path(path), allow_pickle=False))
    except (ValueError, EOFError) as error:
        raise OptionError(f"inputs: {path} is not a .npy file: {error}") from error
