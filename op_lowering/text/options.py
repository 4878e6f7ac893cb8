"""Options and records of SKIP_GRAM and the tf.Example parsers."""

from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.custom import CustomOptions
from jaxdelegate.op_lowering.records.operator import OperatorRecord, table
from jaxdelegate.op_lowering.records.record import Record


class SkipGramOptions(Record):
    ngram_size: int = 0
    max_skip_size: int = 0
    include_all_ngrams: bool = False


RECORDS = table(
    OperatorRecord("ParseExample", CustomOptions, cost=costs.host_work),
    OperatorRecord("ParseExampleV2", CustomOptions, cost=costs.host_work),
    OperatorRecord("SKIP_GRAM", SkipGramOptions, cost=costs.host_work),
)
