"""Recurrent operators with float activations and 8-bit weights."""

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest

from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import (
    BidirectionalSequenceLSTMOptions,
    BidirectionalSequenceRNNOptions,
    LSTMOptions,
    RNNOptions,
    SequenceRNNOptions,
    UnidirectionalSequenceLSTMOptions,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext, Op
from jaxdelegate.op_lowering.spec import Sparsity
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import Arg, Case, Tolerance, const, f32
from tests.support.case_groups import CaseGroup, first_in_groups
from tests.support.quantized import scaled
from tests.support.recurrent import (
    BATCH,
    INPUT,
    ORDERS,
    TIME,
    LstmForm,
    both_rnn,
    floats,
    rnn_cell,
    series,
    svdf,
)
from tests.support.stateful import litert_twice, twice

CELL = 8
ALGORITHMS = {"symmetric": False, "asymmetric": True}
EXACT: dict[str, Any] = {
    "tolerance": Tolerance(),
    "because": "every step is rounded as the kernels round it",
}
# Sums of floats (layer norms, SVDF's memory), and gates that are not whole vectors of four.
SUMS: dict[str, Any] = {"accumulated": 32}


def closeness(label: str) -> dict[str, Any]:
    """The tolerance for an LSTM of this form."""
    return SUMS if any(form in label for form in ("norm", "everything", "wide")) else EXACT


def weights(*shape: int, seed: int = 0, dtype: Any = np.int8) -> Arg:
    """Symmetric 8-bit weights; as uint8 they are the same bytes."""
    array = f32(*shape, low=-0.8, high=0.8, seed=seed).value
    scale = np.abs(array).max() / np.float32(127)
    steps = np.rint(array / scale).astype(np.int8).view(dtype)
    return Arg(steps, is_const=True, quantization=scaled(scale))


Form = functools.partial(LstmForm, n_cell=CELL, matrix=weights)
UINT8 = functools.partial(weights, dtype=np.uint8)


def lstm(label: str, inputs: list[Arg | None], **o: Any) -> Case:
    options = LSTMOptions(fused_activation_function=Act.TANH, **o)
    return Case("LSTM", label, inputs, options, version=4, **closeness(label))


def sequence(label: str, inputs: list[Arg | None], *, litert: str | None = None, **o: Any) -> Case:
    options = UnidirectionalSequenceLSTMOptions(fused_activation_function=Act.TANH, **o)
    name = "UNIDIRECTIONAL_SEQUENCE_LSTM"
    return Case(name, label, inputs, options, version=3, **closeness(label), litert=litert)


def bidirectional(
    label: str, inputs: list[Arg | None], *, litert: str | None = None, **o: Any
) -> Case:
    options = BidirectionalSequenceLSTMOptions(fused_activation_function=Act.TANH, **o)
    outputs = [np.float32] * (1 if options.merge_outputs else 2)
    name = "BIDIRECTIONAL_SEQUENCE_LSTM"
    return Case(name, label, inputs, options, outputs, 3, **closeness(label), litert=litert)


FORMS = {
    "plain": Form(),
    "cifg": Form(cifg=True),
    "peephole": Form(peephole=True),
    "projection": Form(projection=4),
    "projection-bias": Form(projection=9, projection_bias=True),
    "norm": Form(norm=True),
    "norm-cifg": Form(norm=True, cifg=True),
    "everything": Form(peephole=True, projection=4, projection_bias=True, norm=True),
    "wide": Form(peephole=True, n_cell=37),
    "uint8": Form(peephole=True, projection=4, matrix=UINT8),
}
STEP = [
    lstm(
        f"{name}-{algorithm}", form.inputs(f32(BATCH, INPUT)), asymmetric_quantize_inputs=asymmetric
    )
    for name, form in FORMS.items()
    for algorithm, asymmetric in ALGORITHMS.items()
]
STEP += [
    lstm("clips", FORMS["projection"].inputs(f32(BATCH, INPUT)), cell_clip=0.3, proj_clip=0.2),
    lstm("zeros", Form().inputs(const(np.zeros((BATCH, INPUT), np.float32)))),
    lstm(
        "zeros-asymmetric",
        Form().inputs(const(np.zeros((BATCH, INPUT), np.float32))),
        asymmetric_quantize_inputs=True,
    ),
]
SEQUENCE = [
    sequence(
        f"{name}-{order}-{algorithm}",
        FORMS[name].inputs(series(time_major=major)),
        time_major=major,
        asymmetric_quantize_inputs=asymmetric,
    )
    for name in ("plain", "everything")
    for order, major in ORDERS.items()
    for algorithm, asymmetric in ALGORITHMS.items()
]
SEQUENCE += [
    sequence("diagonal", Form(diagonal=True).inputs(series(time_major=True)), time_major=True),
    sequence(
        "diagonal-cifg-batch-major",
        Form(diagonal=True, cifg=True).inputs(series(time_major=False)),
        time_major=False,
        asymmetric_quantize_inputs=True,
    ),
    sequence(
        "no-step",
        Form().inputs(series(time_major=True, n_time=0)),
        time_major=True,
        litert="refuses empty tensors",
    ),
]
BOTH = [
    bidirectional(
        f"{order}-{'merged' if merge else 'apart'}-{algorithm}",
        Form(cifg=merge, peephole=not merge).both(series(time_major=major)),
        time_major=major,
        merge_outputs=merge,
        asymmetric_quantize_inputs=asymmetric,
        litert="batch major merged reads beyond its states" if merge and not major else None,
    )
    for order, major in ORDERS.items()
    for merge in (False, True)
    for algorithm, asymmetric in ALGORITHMS.items()
]
AUX = f32(TIME, BATCH, 7, seed=9)
BOTH += [
    bidirectional("aux", Form(aux=7).both(series(time_major=True), AUX), time_major=True),
    bidirectional(
        "aux-cifg-asymmetric",
        Form(aux=7, cifg=True).both(series(time_major=True), AUX),
        time_major=True,
        asymmetric_quantize_inputs=True,
    ),
    bidirectional(
        "aux-instead",
        Form().both(series(time_major=True), f32(TIME, BATCH, INPUT, seed=9)),
        time_major=True,
    ),
]


RNN = [
    Case(
        "RNN",
        f"{act.name}-{algorithm}-{dtype}",
        [f32(BATCH, INPUT), *rnn_cell(CELL, matrix)],
        RNNOptions(act, asymmetric_quantize_inputs=asymmetric),
        version=3,
        **EXACT,
    )
    for act, dtype, matrix in (
        (Act.TANH, "int8", weights),
        (Act.RELU, "int8", weights),
        (Act.NONE, "uint8", UINT8),
    )
    for algorithm, asymmetric in ALGORITHMS.items()
]
RNN += [
    Case(
        "UNIDIRECTIONAL_SEQUENCE_RNN",
        f"{order}-{algorithm}",
        [series(time_major=major), *rnn_cell(CELL, weights)],
        SequenceRNNOptions(
            time_major=major,
            fused_activation_function=Act.TANH,
            asymmetric_quantize_inputs=asymmetric,
        ),
        version=3,
        **EXACT,
    )
    for order, major in ORDERS.items()
    for algorithm, asymmetric in ALGORITHMS.items()
]


def bidirectional_rnn(
    label: str, *, time_major: bool, merge: bool = False, asymmetric: bool = False, **kind: Any
) -> Case:
    options = BidirectionalSequenceRNNOptions(
        time_major=time_major,
        fused_activation_function=Act.TANH,
        merge_outputs=merge,
        asymmetric_quantize_inputs=asymmetric,
    )
    return both_rnn(label, CELL, options, matrix=weights, version=3, **EXACT, **kind)


BOTH_RNN = [
    bidirectional_rnn(
        f"{order}-{'merged' if merge else 'apart'}-{algorithm}-{kind}",
        time_major=major,
        merge=merge,
        asymmetric=asymmetric,
        litert="crashes: it counts rows from a null pointer"
        if merge and major and not asymmetric
        else None,
        **aux,
    )
    for order, major in ORDERS.items()
    for merge in (False, True)
    for algorithm, asymmetric in ALGORITHMS.items()
    for kind, aux in {"alone": {}, "aux": {"aux": INPUT}, "instead": {"instead": True}}.items()
]
BOTH_RNN += [
    bidirectional_rnn("no-step", time_major=True, n_time=0, litert="refuses empty tensors")
]
svdf_8_bit = functools.partial(svdf, matrix=weights, version=4, **SUMS)
SVDF = [
    svdf_8_bit("rank-1", 1, 4, 10),
    svdf_8_bit("rank-2-relu", 2, 3, 8, act=Act.RELU, asymmetric=True),
    svdf_8_bit("no-bias", 2, 4, 5, bias=False),
    svdf_8_bit("memory-of-one-uint8", 3, 2, 1, act=Act.TANH, matrix=UINT8, asymmetric=True),
]
CASES = STEP + SEQUENCE + BOTH + BOTH_RNN + RNN + SVDF
# Compiling takes long: one of several cases that differ in options only, and each form of a step
# with one of the two algorithms.
STEPS = [STEP[2 * i + i % 2] for i in range(len(FORMS))] + STEP[2 * len(FORMS) :]
BEGUN = (
    STEPS
    + STEP[1:2]
    + SEQUENCE[::3]
    + BOTH[1::3]
    + BOTH_RNN[:24:5]
    + BOTH_RNN[24:]
    + RNN[::2]
    + SVDF
)
FIRST = [*BEGUN[::5], *(BEGUN[i] for i in (7, 10, 16))]  # with everything, clips, a sequence


def under_way(case: Case) -> Case:
    """The case with nonzero states."""
    inputs = [
        dataclasses.replace(a, value=f32(*a.value.shape, low=-0.9, high=0.9).value)
        if a is not None and a.is_variable
        else a
        for a in case.inputs
    ]
    return dataclasses.replace(case, inputs=inputs)


@pytest.mark.parametrize("group", first_in_groups(FIRST, BEGUN), ids=str)
def test_lowering_matches_the_reference(group: CaseGroup) -> None:
    CaseGroup([under_way(case) for case in group.cases]).check_lowerings(RULES)


@pytest.mark.litert
@pytest.mark.parametrize("case", [c for c in CASES if c.litert is None], ids=str)
def test_reference_matches_litert(case: Case) -> None:
    want = litert_twice(case)
    case.check(twice(case, Case.run_reference)[: len(want)], want)


def test_uint8_weights_are_read_as_the_same_bytes_of_int8() -> None:
    signed, unsigned = (
        Case("RNN", "", [f32(BATCH, INPUT), *rnn_cell(CELL, matrix)], RNNOptions(Act.TANH))
        for matrix in (weights, UINT8)
    )
    np.testing.assert_array_equal(signed.run_reference()[0], unsigned.run_reference()[0])


def rescaled(a: Arg | None, quantization: Quantization | None) -> Arg:
    assert a is not None
    return dataclasses.replace(a, quantization=quantization)


PLAIN = STEP[0]
HALVES = f32(BATCH, INPUT).value.astype(np.float16)
REFUSED = {
    "is float32, and other weights are quantized int8": PLAIN.with_inputs({3: floats(CELL, INPUT)}),
    "is uint8, and other weights are quantized int8": PLAIN.with_inputs(
        {3: weights(CELL, INPUT, dtype=np.uint8)}
    ),
    "the kernel takes one scale": PLAIN.with_inputs(
        {4: rescaled(PLAIN.inputs[4], Quantization(np.ones(6, np.float32), np.zeros(6, int)))}
    ),
    "and the int8 kernel expects 0": PLAIN.with_inputs(
        {5: rescaled(PLAIN.inputs[5], scaled(0.1, 3))}
    ),
    "is float16; next to 8-bit weights": PLAIN.with_inputs({0: Arg(HALVES)}),
    "is int32; next to 8-bit weights": PLAIN.with_inputs(
        {13: Arg(np.zeros(CELL, np.int32), is_const=True)}
    ),
    "'in6' is int8": PLAIN.with_inputs({6: rescaled(PLAIN.inputs[6], None)}),
    "is int8; next to 8-bit weights": SEQUENCE[8].with_inputs({7: weights(CELL, dtype=np.int8)}),
}


def test_refuses_sparse_weights() -> None:
    inputs, outputs = PLAIN.specs()
    sparse = dataclasses.replace(inputs[2], sparsity=Sparsity((0, 1), (), ()))
    why = RULES["LSTM"].reason(
        Op(
            LoweringContext(quant_mode="integer"),
            PLAIN.op_options,
            (*inputs[:2], sparse, *inputs[3:]),
            outputs,
        )
    )
    assert "stored sparse" in (why or "")


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (rescaled(PLAIN.inputs[2], scaled(0.1, 3)), "zero point"),
        (
            rescaled(PLAIN.inputs[2], Quantization(np.ones(6, np.float32), np.zeros(6, np.int64))),
            "8-bit weights with one scale",
        ),
        (rescaled(PLAIN.inputs[2], None), "8-bit weights with one scale"),
    ],
)
def test_reference_refuses_other_weights(weight: Arg, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        PLAIN.with_inputs({2: weight}).run_reference()
