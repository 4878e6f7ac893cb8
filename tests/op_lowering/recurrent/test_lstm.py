import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import (
    BidirectionalSequenceLSTMOptions,
    LSTMKernelType,
    LSTMOptions,
    UnidirectionalSequenceLSTMOptions,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.testing import Arg, Case, const, f32, of, variable
from tests.support.case_groups import CaseGroup, first_in_groups
from tests.support.quantized import scaled
from tests.support.recurrent import BATCH, INPUT, ORDERS, TIME, LstmForm, floats, series
from tests.support.stateful import litert_twice, lowered_twice, twice

CELL = 6
NO_FLOAT16 = "the kernel takes float32 only"

FORMS = {
    "plain": LstmForm(),
    "cifg": LstmForm(cifg=True),
    "peephole": LstmForm(peephole=True),
    "cifg-peephole": LstmForm(cifg=True, peephole=True),
    "projection": LstmForm(projection=4),
    "projection-bias": LstmForm(projection=4, projection_bias=True),
    "norm": LstmForm(norm=True),
    "norm-cifg": LstmForm(norm=True, cifg=True),
    "everything": LstmForm(peephole=True, projection=4, projection_bias=True, norm=True),
}
CLIPS = {"cell": (0.3, 0.0), "projection": (0.0, 0.2), "both": (0.3, 0.2)}


def lstm(label: str, inputs: list[Arg | None], options: LSTMOptions, **details: Any) -> Case:
    return Case("LSTM", label, inputs, options, accumulated=16, **details)


def tanh(**details: Any) -> LSTMOptions:
    return LSTMOptions(fused_activation_function=Act.TANH, **details)


STEP = [lstm(name, form.inputs(f32(BATCH, INPUT)), tanh()) for name, form in FORMS.items()]
STEP += [
    lstm(
        f"clip-{name}",
        LstmForm(projection=4).inputs(f32(BATCH, INPUT)),
        tanh(cell_clip=clip, proj_clip=proj_clip),
    )
    for name, (clip, proj_clip) in CLIPS.items()
]
STEP += [
    lstm(
        act.name.lower(),
        LstmForm().inputs(f32(BATCH, INPUT)),
        LSTMOptions(fused_activation_function=act),
    )
    for act in (Act.RELU, Act.RELU_N1_TO_1, Act.RELU6, Act.SIGN_BIT)
]
STEP += [
    lstm("flat-states", LstmForm().inputs(f32(BATCH, INPUT), flat=True), tanh()),
    lstm("24-inputs-no-norm", [*LstmForm().inputs(f32(BATCH, INPUT)), *[None] * 4], tanh()),
]
NO_ACTIVATION = lstm("none", LstmForm().inputs(f32(BATCH, INPUT)), LSTMOptions())


def basic(label: str, x: Arg, h: Arg, c: Arg) -> Case:
    n_cell, n_input = c.value.shape[1], x.value.shape[1]
    inputs = [x, h, floats(4 * n_cell, n_input + n_cell), floats(4 * n_cell), c]
    options = LSTMOptions(kernel_type=LSTMKernelType.BASIC, fused_activation_function=Act.TANH)
    return lstm(label, inputs, options, outputs=[np.float32] * 4, version=2)


BASIC = [
    basic("basic", f32(3, 5), f32(3, 4, seed=1), f32(3, 4, seed=2)),
    basic("basic-variables", f32(2, 3), variable(2, 5), variable(2, 5)),
    basic("basic-one-variable", f32(1, 3), f32(1, 2), variable(1, 2)),
]


def sequence(
    label: str, inputs: list[Arg | None], *, time_major: bool = True, **details: Any
) -> Case:
    litert = details.pop("litert", None)
    options = UnidirectionalSequenceLSTMOptions(
        fused_activation_function=Act.TANH, time_major=time_major, **details
    )
    name = "UNIDIRECTIONAL_SEQUENCE_LSTM"
    return Case(name, label, inputs, options, accumulated=32, litert=litert)


SERIES = series(time_major=True)
SEQUENCE = [
    sequence(f"{name}-{order}", FORMS[name].inputs(series(time_major=major)), time_major=major)
    for order, major in ORDERS.items()
    for name in ("plain", "cifg-peephole", "everything")
]
SEQUENCE += [
    sequence("clips", FORMS["projection"].inputs(SERIES), cell_clip=0.3, proj_clip=0.2),
    sequence("diagonal", LstmForm(diagonal=True).inputs(SERIES), diagonal_recurrent_tensors=True),
    sequence(
        "diagonal-cifg-batch-major",
        LstmForm(diagonal=True, cifg=True).inputs(series(time_major=False)),
        time_major=False,
    ),
    sequence("one-step", LstmForm().inputs(series(time_major=True, n_time=1))),
    sequence(
        "no-step",
        LstmForm().inputs(series(time_major=True, n_time=0)),
        litert="refuses empty tensors",
    ),
    sequence(
        "run-time-weights",
        [
            a if a is None else dataclasses.replace(a, is_const=False)
            for a in LstmForm().inputs(SERIES)
        ],
    ),
]


def bidirectional(label: str, inputs: list[Arg | None], **details: Any) -> Case:
    litert = details.pop("litert", None)
    options = BidirectionalSequenceLSTMOptions(fused_activation_function=Act.TANH, **details)
    outputs = [np.float32] * (1 if options.merge_outputs else 2)
    name = "BIDIRECTIONAL_SEQUENCE_LSTM"
    return Case(name, label, inputs, options, outputs, accumulated=32, litert=litert)


BOTH = [
    bidirectional(
        f"{name}-{order}-{'merged' if merge else 'apart'}",
        FORMS[name].both(series(time_major=major)),
        time_major=major,
        merge_outputs=merge,
        litert="batch major merged reads beyond its states" if merge and not major else None,
    )
    for order, major in ORDERS.items()
    for merge in (False, True)
    for name in ("plain", "cifg-peephole")
]
AUX = f32(TIME, BATCH, 7, seed=9)
BOTH += [
    bidirectional(
        "projection-clips", FORMS["projection-bias"].both(SERIES), cell_clip=0.3, proj_clip=0.2
    ),
    bidirectional("aux", LstmForm(aux=7).both(SERIES, AUX)),
    bidirectional(
        "aux-cifg-merged", LstmForm(aux=7, cifg=True).both(SERIES, AUX), merge_outputs=True
    ),
    bidirectional("aux-instead", LstmForm().both(SERIES, f32(TIME, BATCH, INPUT, seed=9))),
    bidirectional(
        "aux-instead-batch-major",
        LstmForm().both(series(time_major=False), f32(BATCH, TIME, INPUT, seed=9)),
        time_major=False,
    ),
    bidirectional(
        "one-row-merged-batch-major",
        LstmForm().both(series(time_major=False, batch=1), batch=1),
        time_major=False,
        merge_outputs=True,
    ),
]


def downcast(dtype: Any) -> Case:
    case = SEQUENCE[2]
    inputs = [
        None if a is None else dataclasses.replace(a, value=a.value.astype(dtype))
        for a in case.inputs
    ]
    label = f"{np.dtype(dtype)}"
    return dataclasses.replace(case, label=label, inputs=inputs, litert=NO_FLOAT16)


NARROW = [downcast(np.float16), downcast(ml_dtypes.bfloat16)]
CASES = STEP + BASIC + SEQUENCE + BOTH + NARROW


@pytest.mark.parametrize("group", first_in_groups(CASES[::2], CASES), ids=str)
def test_lowering_matches_the_reference(group: CaseGroup) -> None:
    group.check(lowered_twice(group.cases, RULES), lambda case: twice(case, Case.run_reference))


@pytest.mark.litert
@pytest.mark.parametrize("case", [c for c in [*CASES, NO_ACTIVATION] if c.litert is None], ids=str)
def test_reference_matches_litert(case: Case) -> None:
    want = litert_twice(case)
    case.check(twice(case, Case.run_reference)[: len(want)], want)


PLAIN, STEP_WITH_ALL = STEP[0], STEP[8]
INT8 = dataclasses.replace(
    const(of(np.int8, CELL, INPUT, low=-127, high=127)), quantization=scaled(0.01)
)
REFUSED = {
    "other weights are quantized int8": PLAIN.with_inputs({2: INT8}),
    "is float16, not one of float32": PLAIN.with_inputs(
        {13: const(f32(CELL).value.astype(np.float16))}
    ),
    "lacks its weights": PLAIN.with_inputs({14: None}),
    "the input gate has tensors": PLAIN.with_inputs({1: None}),
    "projection bias without": STEP_WITH_ALL.with_inputs({16: None}),
    "need projection weights": STEP_WITH_ALL.with_inputs({16: None, 17: None}),
    "peephole tensors are incomplete": STEP_WITH_ALL.with_inputs({10: None}),
    "layer norm tensors are incomplete": STEP_WITH_ALL.with_inputs({22: None}),
    "has shape [6, 4], not [6, 5]": PLAIN.with_inputs({3: floats(CELL, INPUT - 1)}),
    "input 18 holds state": PLAIN.with_inputs({18: f32(BATCH, CELL)}),
    "is a variable tensor, but holds no state": PLAIN.with_inputs({15: variable(CELL)}),
    "has rank 3": PLAIN.with_inputs({0: f32(BATCH, INPUT, 1)}),
    "scratch memory": NO_ACTIVATION,
    "clip is negative": dataclasses.replace(PLAIN, options=tanh(cell_clip=-1.0)),
    "needs 5 inputs": dataclasses.replace(
        PLAIN, options=BASIC[0].options, outputs=BASIC[0].outputs
    ),
    "has shape [16], not [20]": BASIC[1].with_inputs({3: floats(16)}),
    "has weights for an auxiliary input": bidirectional("", LstmForm(aux=7).both(SERIES)),
    "one direction has weights": BOTH[9].with_inputs(dict.fromkeys(range(44, 48))),
    "auxiliary weight tensors are incomplete": BOTH[9].with_inputs({40: None}),
    "not [4, 3, 5]": bidirectional("", LstmForm().both(SERIES, AUX)),
}

STOPPED = {
    "state 'in19' is [3, 5], expected [3, 6]": PLAIN.with_inputs({19: variable(BATCH, CELL - 1)})
}


def test_another_number_of_inputs_is_refused_when_it_is_prepared() -> None:
    """LiteRT does so too, and it must come first: a file may have a million steps."""
    case = dataclasses.replace(PLAIN, inputs=[*PLAIN.inputs, None])
    with pytest.raises(ValueError, match="expected 20 or 24 inputs, got 21"):
        case.reason(RULES["LSTM"])


def test_reference_refuses_16_bit_weights() -> None:
    weight = dataclasses.replace(INT8, value=INT8.value.astype(np.int16))
    with pytest.raises(TypeError, match="8-bit weights"):
        PLAIN.with_inputs({2: weight}).run_reference()


def test_reference_refuses_quantized_weights_of_a_basic_cell() -> None:
    with pytest.raises(TypeError, match="floats only"):
        BASIC[0].with_inputs({2: INT8}).run_reference()
