"""`jaxdelegate sensitivity`: which operators quantization hurts, and a recipe that spares them."""

from absl import flags

from jaxdelegate.errors import OptionError
from jaxdelegate.providers.parsing import Flag
from jaxdelegate.report.json_records import plain, write_json
from jaxdelegate.sensitivity.ranking import quantization_sensitivity
from jaxdelegate.sensitivity.records import OutputError, SensitivityReport
from jaxdelegate.sensitivity.schemes import SCHEMES
from jaxdelegate.text import printable
from jaxdelegate.tools import command_line

_MAX_ERROR = 0.1
FLAGS = (
    command_line.GRAPH,
    Flag(
        "inputs", str, "",
        "Calibration inputs: comma-separated .npy or .npz files or folders of them. A .npy file "
        "holds one sample or several of the model's only input, a .npz file one sample: arrays by "
        "input names. Unset: seeded random inputs.",
    ),
    Flag("num_samples", int, 8, "Random samples.", lower=1),
    Flag("seed", int, 0, "Seed of the random samples.", lower=0),
    Flag(
        "schemes", str, ",".join(SCHEMES),
        "How operators are quantized; the first scheme determines the ranking. int8: weights per "
        "channel, calibrated activations; int16x8: the same with int16 activations; dynamic: int8 "
        "weights, activations rounded at each invoke; int4: weights in blocks of 32, float "
        "activations.",
    ),
    Flag("max_rows", int, 30, "Operators in the table; 0: all.", lower=0),
    Flag(
        "recipe", str, "",
        "Write a recipe for litert-quantizer here, in the first scheme: all operators except "
        "those that --max_error and --max_total keep in float.",
        is_output=True,
    ),
    Flag(
        "max_error", float, None,
        "The allowed error of the output from one quantized operator. Unset, without "
        f"--max_total: {_MAX_ERROR}.",
        lower=0.0,
    ),
    Flag(
        "max_total", float, None,
        "The allowed error of the output from all quantized operators: the root of the sum of the "
        "squares of their errors.",
        lower=0.0,
    ),
    command_line.RESULT_JSON,
)  # fmt: skip


def run(values: flags.FlagValues) -> int:
    if not values.recipe and (values.max_error is not None or values.max_total is not None):
        raise OptionError("--max_error and --max_total need --recipe")
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
