"""A rule refuses or yields the dtype that a file declares for a result."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

from jaxdelegate.op_lowering.dtypes import DTYPES
from jaxdelegate.op_lowering.options import TensorType
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext, Op
from jaxdelegate.testing import Case
from tests.support.case_tables import cases_in

DECLARED = (np.float32, np.float16, np.int8, np.int32, np.int64, np.bool_, np.complex64)
HANDLE = DTYPES[TensorType.RESOURCE]


def test_a_rule_refuses_the_dtype_of_a_result_or_yields_it() -> None:
    cases = cases_in(Path(__file__).parent)
    firsts = [cases[name][0] for name in sorted(RULES) if name in cases]
    assert len(firsts) > 150
    wrong = [message for case in firsts for message in wrong_dtypes(case)]
    assert not wrong, "\n".join(wrong)


def wrong_dtypes(case: Case) -> Iterator[str]:
    rule, (inputs, outputs) = RULES[case.name], case.read_specs()
    context = LoweringContext(
        quant_mode="integer", op_version=case.version, intermediates=case.intermediate_specs()
    )
    for dtype in (*map(np.dtype, DECLARED), HANDLE):
        declared = (dataclasses.replace(outputs[0], dtype=dtype), *outputs[1:])
        if rule.reason(Op(context, case.op_options, inputs, declared)) is None:
            found = HANDLE if dtype == HANDLE else result_dtype(case, context, declared)
            if found != dtype or dtype == HANDLE:
                yield f"{case}: {dtype} is accepted, the result is {found}"


def result_dtype(case: Case, context: LoweringContext, declared: tuple) -> np.dtype:
    lowered = RULES[case.name].lower(Op(context, case.op_options, case.read_specs()[0], declared))
    live = [a.value for a in case.inputs if a is not None and not a.is_const]

    def call(*arrays: jax.Array) -> jax.Array:
        given = iter(arrays)
        inputs = (a and (a.value if a.is_const else next(given)) for a in case.inputs)
        return lowered(*inputs)[0]

    with jax.enable_x64(True):
        return np.dtype(jax.eval_shape(call, *live).dtype)
