"""Constants that the float view leaves as integers, since rules read them in the stored width."""

from collections.abc import Iterable, Mapping

from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.layout.quantized import why_not_dequantized
from jaxdelegate.op_lowering.matmul import stored_width
from jaxdelegate.op_lowering.spec import TensorSpec


def of(operators: Iterable[Operator], specs: Mapping[int, TensorSpec]) -> frozenset[int]:
    """The filters and tables that every operator which reads them reads as stored."""
    found, others = set[int](), set[int]()
    for operator in operators:
        for position, index in enumerate(operator.inputs):
            is_read = index in specs and _is_read(operator, position, specs)
            (found if is_read else others).add(index)
    return frozenset(found - others)


def _is_read(operator: Operator, position: int, specs: Mapping[int, TensorSpec]) -> bool:
    """Whether it is a filter of FULLY_CONNECTED, or a table of EMBEDDING_LOOKUP with float rows."""
    spec = specs[operator.inputs[position]]
    if position != 1 or spec.const is None or not spec.is_quantized:
        return False
    if operator.name == "EMBEDDING_LOOKUP":
        return why_not_dequantized(spec, specs[operator.outputs[0]]) is None
    return operator.name == "FULLY_CONNECTED" and stored_width.supports(spec)
