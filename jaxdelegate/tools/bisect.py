"""`jaxdelegate bisect`: which operators make an output wrong when they are delegated."""

from absl import flags

from jaxdelegate.comparison import text
from jaxdelegate.comparison.bisect import bisect
from jaxdelegate.comparison.serialized import record
from jaxdelegate.comparison.sides import Test
from jaxdelegate.errors import OptionError
from jaxdelegate.providers.parsing import Flag
from jaxdelegate.report.json_records import write_json
from jaxdelegate.text import wrapped
from jaxdelegate.tools import comparison_flags, delegate_flags

DELEGATES = True
FLAGS = (
    Flag("num_runs", int, 1, "Number of input sets.", lower=1),
    comparison_flags.REFERENCE,
    *comparison_flags.FLAGS,
)
_FIRST, _LAST = "first_delegate_node_index", "last_delegate_node_index"
_FOUND = 2


def run(values: flags.FlagValues) -> int:
    """Search and print; returns 0 if nothing is wrong, 2 if something is."""
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
        values.graph,
        open_range,
        reference=values.reference,
        num_runs=values.num_runs,
        inputs=comparison_flags.inputs(values),
        bounds=comparison_flags.bounds(values),
        first=limits.first_delegate_node_index,
        last=limits.last_delegate_node_index,
    )
    print(wrapped(text.bisection(result, values.reference)))
    if values.result_json:
        write_json(values.result_json, record(result))
    return 0 if result.verdict in ("agrees", "rounding") else _FOUND
