"""`jaxdelegate sensitivity`: which operators quantization hurts, and a recipe that spares them."""

from absl import flags

from jaxdelegate.errors import OptionError
from jaxdelegate.report.json_records import plain, write_json
from jaxdelegate.sensitivity.ranking import quantization_sensitivity
from jaxdelegate.sensitivity.records import OutputError, SensitivityReport
from jaxdelegate.sensitivity.schemes import SCHEMES
from jaxdelegate.text import printable
from jaxdelegate.tools import output_files

_MAX_ERROR = 0.1


def define(values: flags.FlagValues) -> None:
    """Declare the tool's flags."""
    flags.DEFINE_string("graph", None, "The .tflite file.", required=True, flag_values=values)
    flags.DEFINE_string(
        "inputs",
        "",
        "Calibration inputs: .npy or .npz files or folders of them, with commas between. A .npy "
        "file holds one sample or several of the model's only input, a .npz file one sample: "
        "arrays by input names. None: seeded random inputs.",
        flag_values=values,
    )
    flags.DEFINE_integer("num_samples", 8, "Random samples.", 1, flag_values=values)
    flags.DEFINE_integer("seed", 0, "Of the random samples.", 0, flag_values=values)
    flags.DEFINE_string(
        "schemes",
        ",".join(SCHEMES),
        "How operators are quantized; the first one ranks. int8: weights per channel, calibrated "
        "activations; int16x8: the same with int16 activations; dynamic: int8 weights, activations "
        "rounded at each invoke; int4: weights in blocks of 32, float activations.",
        flag_values=values,
    )
    flags.DEFINE_integer("max_rows", 30, "Operators in the table; 0: all.", 0, flag_values=values)
    flags.DEFINE_string(
        "recipe",
        "",
        "Write a recipe for ai-edge-quantizer here, in the first scheme: all operators but those "
        "that --max_error and --max_total spare.",
        flag_values=values,
    )
    flags.DEFINE_float(
        "max_error",
        None,
        "What one operator that the recipe quantizes may do to the output. Unset, without "
        f"--max_total: {_MAX_ERROR}.",
        0.0,
        flag_values=values,
    )
    flags.DEFINE_float(
        "max_total",
        None,
        "What all operators that the recipe quantizes may do together: the root of the sum of the "
        "squares of their errors.",
        0.0,
        flag_values=values,
    )
    flags.DEFINE_string("result_json", "", "Write the result here as JSON.", flag_values=values)


def run(values: flags.FlagValues) -> int:
    """Print the table; write the recipe and the result."""
    output_files.check(values, ["recipe", "result_json"])
    if not values.recipe and (values.max_error is not None or values.max_total is not None):
        raise OptionError("--max_error, --max_total: these are for --recipe, which is not given")
    report = quantization_sensitivity(
        values.graph,
        values.inputs or None,
        values.schemes,
        num_samples=values.num_samples,
        seed=values.seed,
    )
    print(report.table(values.max_rows))
    if values.recipe:
        _write_recipe(report, values)
    if values.result_json:
        write_json(values.result_json, plain(report, derived={OutputError: ("sqnr",)}))
        print(f"Wrote {values.result_json}")
    return 0


def _write_recipe(report: SensitivityReport, values: flags.FlagValues) -> None:
    max_error, max_total = values.max_error, values.max_total
    if max_error is None and max_total is None:
        max_error = _MAX_ERROR
    scheme = report.schemes[0]
    kept = report.float_operators(scheme, max_error=max_error, max_total=max_total)
    write_json(values.recipe, report.recipe(scheme, kept))
    names = ", ".join(
        f"#{o.index} {printable(o.op)}" for o in report.ranked(scheme) if o.index in kept
    )
    print(
        f"Wrote {values.recipe}: {scheme}; in float: {names or 'none'}; errors of the others, as "
        f"independent noise: {report.total(scheme, kept):.2g}"
    )
