"""`jaxdelegate bisect`: which operators make an output wrong when they are delegated."""

from absl import flags

from jaxdelegate.comparison import text
from jaxdelegate.comparison.bisect import bisect
from jaxdelegate.comparison.serialized import bisect_record
from jaxdelegate.comparison.sides import Test
from jaxdelegate.errors import OptionError
from jaxdelegate.report.json_records import write_json
from jaxdelegate.tools import comparison_flags, delegate_flags, delegate_names, output_files

_FIRST, _LAST = "first_delegate_node_index", "last_delegate_node_index"
_FOUND = 2


def define(values: flags.FlagValues) -> None:
    """Declare the tool's flags."""
    comparison_flags.define(values, num_runs=1)
    flags.DEFINE_string("result_json", "", "Write the result here as JSON.", flag_values=values)


def run(values: flags.FlagValues) -> int:
    """Search and print; 0 if nothing is wrong, 2 if something is."""
    delegate_names.settle(values)
    output_files.check(values, ["result_json"])
    limits = delegate_flags.options(values)
    if not comparison_flags.test(values).delegates:
        raise OptionError(
            "--use_jax, --use_gpu, --external_delegate_path: no delegate to search with"
        )

    def open_range(low: int, high: int) -> Test:
        for prefix in ("", "jax_"):  # either name may have been given
            values[prefix + _FIRST].value, values[prefix + _LAST].value = low, high
        return comparison_flags.test(values).restricted()

    result = bisect(
        comparison_flags.model(values),
        open_range,
        reference=values.reference,
        num_runs=values.num_runs,
        inputs=comparison_flags.inputs(values),
        bounds=comparison_flags.bounds(values),
        first=limits.first_delegate_node_index,
        last=limits.last_delegate_node_index,
    )
    print(text.bisection(result, values.reference))
    if values.result_json:
        write_json(values.result_json, bisect_record(result))
    return 0 if result.verdict in ("agrees", "rounding") else _FOUND
