import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import (
    BidirectionalSequenceRNNOptions,
    RNNOptions,
    SequenceRNNOptions,
    SVDFOptions,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext, Op
from jaxdelegate.op_lowering.spec import Sparsity
from jaxdelegate.testing import Arg, Case, const, f32, of, value, variable
from tests.support.case_groups import CaseGroup, in_groups
from tests.support.quantized import scaled
from tests.support.recurrent import (
    BATCH,
    INPUT,
    ORDERS,
    TIME,
    both_rnn,
    floats,
    rnn_cell,
    series,
    svdf,
)
from tests.support.stateful import litert_twice, lowered_twice, twice

UNITS = 6

RNN = [
    Case("RNN", act.name, [f32(BATCH, INPUT), *rnn_cell(UNITS)], RNNOptions(act), accumulated=16)
    for act in Act
]
SEQUENCE = [
    Case(
        "UNIDIRECTIONAL_SEQUENCE_RNN",
        f"{act.name}-{order}-{n_time}",
        [series(time_major=major, n_time=n_time), *rnn_cell(UNITS)],
        SequenceRNNOptions(time_major=major, fused_activation_function=act),
        accumulated=32,
        litert=None if n_time else "refuses empty tensors",
    )
    for order, major in ORDERS.items()
    for act, n_time in ((Act.TANH, TIME), (Act.RELU6, 1), (Act.NONE, 0))
]


def bidirectional(label: str, *, time_major: bool, merge: bool = False, **kind: Any) -> Case:
    options = BidirectionalSequenceRNNOptions(
        time_major=time_major, merge_outputs=merge, fused_activation_function=Act.TANH
    )
    return both_rnn(label, UNITS, options, accumulated=32, **kind)


BOTH = [
    bidirectional(
        f"{order}-{'merged' if merge else 'apart'}-{kind}", time_major=major, merge=merge, **aux
    )
    for order, major in ORDERS.items()
    for merge in (False, True)
    for kind, aux in {"alone": {}, "aux": {"aux": INPUT}, "instead": {"instead": True}}.items()
]
# Time major, the kernel steps through an auxiliary input by the width of the input.
WIDE = [
    bidirectional("wide-aux-batch-major", time_major=False, aux=7),
    bidirectional("wide-aux-time-major", time_major=True, aux=7, litert="reads at wrong places"),
]
SVDF = [
    svdf("rank-1", 1, 4, 10, accumulated=32),
    svdf("rank-2-relu", 2, 3, 8, act=Act.RELU, accumulated=32),
    svdf("no-bias", 2, 4, 5, bias=False, accumulated=32),
    svdf("memory-of-one", 3, 2, 1, act=Act.TANH, accumulated=32),
]


def downcast(case: Case, dtype: Any) -> Case:
    def cast(a: Arg | None) -> Arg | None:
        return None if a is None else dataclasses.replace(a, value=a.value.astype(dtype))

    return dataclasses.replace(
        case,
        label=f"{case.label}-{np.dtype(dtype)}",
        inputs=[cast(a) for a in case.inputs],
        litert="the kernel takes float32 only",
    )


NARROW = [
    downcast(case, dtype)
    for case in (SEQUENCE[0], SVDF[1])
    for dtype in (np.float16, ml_dtypes.bfloat16)
]
CASES = RNN + SEQUENCE + BOTH + WIDE + SVDF + NARROW


@pytest.mark.parametrize("group", in_groups(CASES), ids=str)
def test_lowering_matches_the_reference(group: CaseGroup) -> None:
    group.check(lowered_twice(group.cases, RULES), lambda case: twice(case, Case.run_reference))


@pytest.mark.litert
@pytest.mark.parametrize("case", [c for c in CASES if c.litert is None], ids=str)
def test_reference_matches_litert(case: Case) -> None:
    want = litert_twice(case)
    case.check(twice(case, Case.run_reference)[: len(want)], want)


@pytest.mark.parametrize("act", [Act.RELU, Act.RELU_N1_TO_1, Act.RELU6])
def test_bounded_activations_turn_nan_into_their_lower_bound(act: Act) -> None:
    nan = value(np.full((BATCH, INPUT), np.nan, np.float32))
    case = Case("RNN", act.name, [nan, *rnn_cell(UNITS)], RNNOptions(act))
    want = case.run_litert()
    assert not np.isnan(want[0]).any()
    case.check(case.run_reference()[:1], want)
    case.check(case.run_lowered(RULES["RNN"])[:1], want)


INT8 = dataclasses.replace(
    const(of(np.int8, UNITS, INPUT, low=-127, high=127)), quantization=scaled(0.01)
)
REFUSED = {
    "other weights are quantized int8": RNN[0].with_inputs({1: INT8}),
    "is int32, not one of float32": RNN[0].with_inputs({3: const(of(np.int32, UNITS))}),
    "input 4 holds state, but": RNN[0].with_inputs({4: f32(BATCH, UNITS)}),
    "has shape [6, 5], not [6, 6]": RNN[0].with_inputs({2: floats(UNITS, INPUT)}),
    "needs 5 inputs": RNN[0].with_inputs({3: None}),
    "has 6 inputs, not 5": dataclasses.replace(RNN[0], inputs=[*RNN[0].inputs, None]),
    "has rank 4, not 3": SEQUENCE[0].with_inputs({0: f32(TIME, BATCH, INPUT, 1)}),
    "one direction has weights": BOTH[1].with_inputs({11: None}),
    "not that input": BOTH[1].with_inputs({9: None}),
    "has shape [4, 2, 5], not [4, 3, 5]": BOTH[1].with_inputs({9: f32(TIME, 2, INPUT)}),
    "has shape [3, 4, 7], not [3, 4, 5]": BOTH[8].with_inputs({9: f32(BATCH, TIME, 7)}),
    "do not divide into rank 4": dataclasses.replace(SVDF[1], options=SVDFOptions(4)),
}

STOPPED = {
    "state 'in4' is [2, 6], expected [3, 6]": RNN[0].with_inputs({4: variable(2, UNITS)}),
    "is [3, 47], expected [3, 48]": SVDF[1].with_inputs({4: variable(BATCH, 47)}),
}


def test_refuses_a_missing_output() -> None:
    inputs, outputs = BOTH[0].specs()
    rule = RULES[BOTH[0].name]
    why = rule.reason(Op(LoweringContext(), BOTH[0].op_options, inputs, outputs[:1]))
    assert why == "has 1 outputs, not 2"


def test_refuses_sparse_weights() -> None:
    inputs, outputs = RNN[0].specs()
    sparse = dataclasses.replace(inputs[1], sparsity=Sparsity((0, 1), (), ()))
    why = RULES["RNN"].reason(
        Op(LoweringContext(), RNN[0].op_options, (inputs[0], sparse, *inputs[2:]), outputs)
    )
    assert "stored sparse" in (why or "")


@pytest.mark.parametrize("case", [RNN[0], SVDF[0]], ids=str)
def test_reference_refuses_16_bit_weights(case: Case) -> None:
    quantized = dataclasses.replace(
        const(case.inputs[1].value.astype(np.int16)), quantization=INT8.quantization
    )
    with pytest.raises(TypeError, match="8-bit weights"):
        case.with_inputs({1: quantized}).run_reference()
