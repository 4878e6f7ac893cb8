"""LSTM and UNIDIRECTIONAL_SEQUENCE_LSTM in integers."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import (
    LSTMKernelType,
    LSTMOptions,
    UnidirectionalSequenceLSTMOptions,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import Arg, Case
from tests.support.case_groups import CaseGroup, first_in_groups
from tests.support.quantized import integers, scaled
from tests.support.stateful import litert_twice, state, twice, under_way


@dataclasses.dataclass(frozen=True)
class Form:
    cifg: bool = False
    peephole: bool = False
    projection: int = 0  # its outputs; 0: none
    projection_bias: bool = False
    norm: bool = False
    n_cell: int = 6
    inputs: int = 24

    @property
    def n_output(self) -> int:
        return self.projection or self.n_cell


@dataclasses.dataclass(frozen=True)
class Scales:
    """The scales and zero points of one cell."""

    x: tuple[float, int] = (0.02, -3)
    weights: float = 1 / 127
    hidden: tuple[float, int] = (1 / 110, 7)  # the output before a projection
    output: tuple[float, int] = (1 / 120, -9)
    state: float = 2.0**-11
    between: float = 2.0**-12 / 1.3  # what layer norm takes
    peephole: float = 1.1 / 32768
    norm: float = 1.7 / 32768


SCALES = Scales()
BATCH, TIME, INPUT = 3, 4, 5


class CellMaker:
    """Random inputs (24) and intermediates (5) of an integer LSTM."""

    def __init__(self, form: Form, s: Scales, seed: int = 0) -> None:
        self.form, self.s, self.rng = form, s, np.random.default_rng(seed)

    def gates(self, make: Any) -> list[Arg | None]:
        """A tensor for the input, forget, cell and output gate."""
        return [None if self.form.cifg and gate == 0 else make() for gate in range(4)]

    def weights(self, *shape: int) -> Arg:
        scale = self.s.weights * self.rng.uniform(0.5, 1.5)
        return integers(self.rng, np.int8, shape, scale, extent=127)

    def inputs(self, x: Arg, n_batch: int) -> list[Arg | None]:
        f, s, rng = self.form, self.s, self.rng
        bias_scale, bias_extent = s.x[0] * s.weights, 4000
        if f.norm:
            bias_scale, bias_extent = s.norm / 1024, 1 << 24
        peepholes = self.gates(lambda: integers(rng, np.int16, [f.n_cell], s.peephole))
        norms = self.gates(lambda: integers(rng, np.int16, [f.n_cell], s.norm))
        n_output = f.n_output if f.projection else f.n_cell
        tensors = [
            x,
            *self.gates(lambda: self.weights(f.n_cell, x.value.shape[-1])),
            *self.gates(lambda: self.weights(f.n_cell, n_output)),
            *(peepholes[i] if f.peephole else None for i in (0, 1, 3)),
            *self.gates(
                lambda: integers(rng, np.int32, [f.n_cell], bias_scale, extent=bias_extent)
            ),
            self.weights(n_output, f.n_cell) if f.projection else None,
            integers(rng, np.int32, [n_output], s.weights * s.hidden[0], extent=2000)
            if f.projection_bias
            else None,
            state(np.int8, (n_batch, n_output), *s.output),
            state(np.int16, (n_batch, f.n_cell), s.state),
            *(norms if f.norm else [None] * 4),
        ]
        return tensors[: f.inputs]

    def intermediates(self) -> list[Arg]:
        empty = np.zeros([0], np.int16)
        s, factors = self.s, self.rng.uniform(0.7, 1.4, 4)
        gates = [
            Arg(empty, quantization=scaled(s.between * k) if self.form.norm else None)
            for k in factors
        ]
        hidden = s.hidden if self.form.projection else s.output
        return [*gates, Arg(empty.astype(np.int8), quantization=scaled(*hidden))]


def lstm(
    label: str,
    form: Form,
    s: Scales = SCALES,
    *,
    seed: int = 0,
    n_batch: int = BATCH,
    activation: Act = Act.TANH,
    **o: Any,
) -> Case:
    make = CellMaker(form, s, seed)
    x = integers(make.rng, np.int8, (n_batch, INPUT), *s.x, is_const=False)
    return Case(
        "LSTM",
        label,
        make.inputs(x, n_batch),
        LSTMOptions(fused_activation_function=activation, **o),
        [np.int8],
        version=2,
        output_quantization=[scaled(*s.output)],
        intermediates=make.intermediates(),
    )


def sequence(
    label: str,
    form: Form,
    s: Scales = SCALES,
    *,
    seed: int = 0,
    shape: tuple[int, int, int] = (TIME, BATCH, INPUT),
    time_major: bool = True,
    **o: Any,
) -> Case:
    make = CellMaker(form, s, seed)
    n_batch = shape[1] if time_major else shape[0]
    x = integers(make.rng, np.int8, shape, *s.x, is_const=False)
    return Case(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        label,
        make.inputs(x, n_batch),
        UnidirectionalSequenceLSTMOptions(
            fused_activation_function=Act.TANH, time_major=time_major, **o
        ),
        [np.int8],
        version=3,
        output_quantization=[scaled(*s.output)],
        intermediates=make.intermediates(),
    )


def basic(
    label: str,
    *,
    seed: int = 0,
    n_batch: int = BATCH,
    n_input: int = INPUT,
    n_cell: int = 6,
    weights: tuple[float, int] = (0.02, 131),
    variables: bool = True,
) -> Case:
    """The uint8 cell; activations have a scale of 1/128 and a zero point of 128."""
    rng, unit = np.random.default_rng(seed), (1 / 128, 128)

    def now(dtype: Any, scale: float, zero_point: int) -> Arg:
        if variables:
            return state(dtype, (n_batch, n_cell), scale)
        return integers(rng, dtype, (n_batch, n_cell), scale, zero_point, is_const=False)

    inputs = [
        integers(rng, np.uint8, (n_batch, n_input), *unit, is_const=False),
        dataclasses.replace(now(np.uint8, *unit), quantization=scaled(*unit)),
        integers(rng, np.uint8, (4 * n_cell, n_input + n_cell), *weights),
        integers(rng, np.int32, [4 * n_cell], weights[0] / 128, extent=20000),
        now(np.int16, 2.0**-11, 0),
    ]
    scales = [scaled(*unit), scaled(2.0**-11), scaled(*unit), scaled(2.0**-12)]
    return Case(
        "LSTM",
        label,
        inputs,
        LSTMOptions(kernel_type=LSTMKernelType.BASIC, fused_activation_function=Act.TANH),
        [np.uint8, np.int16, np.uint8, np.int16],
        version=2,
        output_quantization=scales,
    )


FORMS = {
    "plain": Form(),
    "20-inputs": Form(inputs=20),
    "cifg": Form(cifg=True),
    "peephole": Form(peephole=True),
    "cifg-peephole-wide": Form(cifg=True, peephole=True, n_cell=37),
    "projection": Form(projection=4),
    "projection-bias-wide": Form(projection=21, projection_bias=True, n_cell=18),
    "norm-cifg": Form(norm=True, cifg=True),
    "everything-wide": Form(
        peephole=True, projection=19, projection_bias=True, norm=True, n_cell=23
    ),
}
EXTREMES = {
    "lowest-zero-points": Scales(x=(0.02, -128), hidden=(0.01, -128), output=(0.01, -128)),
    "highest-zero-points": Scales(x=(0.02, 127), hidden=(0.01, 127), output=(0.01, 127)),
    "large-factors": Scales(x=(0.9, 5), weights=0.5, hidden=(1e-4, 3), output=(2e-4, 1)),
    "small-factors": Scales(x=(1e-4, 5), weights=1e-4, hidden=(0.5, 3), output=(0.4, 1)),
    "all-fraction-state": Scales(state=2.0**-15),
    "six-integer-bits-state": Scales(state=2.0**-9),
}
STEP = [lstm(name, form) for name, form in FORMS.items()]
STEP += [lstm(name, Form(projection=4, peephole=True), s) for name, s in EXTREMES.items()]
STEP += [
    lstm("clips", Form(projection=4), cell_clip=0.1, proj_clip=0.2),
    lstm("clips-beyond-the-range", Form(projection=4), cell_clip=1e9, proj_clip=1e9),
    lstm("other-activation", Form(), activation=Act.NONE),
]
SEQUENCE = [
    sequence(f"{name}-{order}", FORMS[name], time_major=major)
    for order, major in (("time-major", True), ("batch-major", False))
    for name in ("plain", "cifg-peephole-wide", "everything-wide")
]
SEQUENCE += [
    sequence("one-step", Form(), shape=(1, BATCH, INPUT)),
    dataclasses.replace(
        sequence("no-step", Form(), shape=(0, BATCH, INPUT)), litert="refuses empty tensors"
    ),
]
BASIC = [
    basic("basic"),
    basic("basic-wide-no-variables", n_cell=19, variables=False),
    basic("basic-zero-point-0-large-factor", weights=(0.3, 0)),
    basic("basic-zero-point-255-small-factor", weights=(1e-5, 255)),
]
CASES = STEP + SEQUENCE + BASIC


@pytest.mark.parametrize("group", first_in_groups([*CASES[::3], STEP[15]], CASES), ids=str)
def test_lowering_matches_the_reference(group: CaseGroup) -> None:
    CaseGroup([under_way(case) for case in group.cases]).check_lowerings(RULES)


@pytest.mark.litert
@pytest.mark.parametrize("case", [c for c in CASES if c.litert is None], ids=str)
def test_reference_matches_litert(case: Case) -> None:
    want = litert_twice(case)
    case.check(twice(case, Case.run_reference)[: len(want)], want)


class Draw:
    """Random forms, shapes, scales and zero points."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, np.random.default_rng(seed)

    def scale(self, low: float, high: float) -> float:
        return float(np.exp(self.rng.uniform(np.log(low), np.log(high))))

    def point(self) -> int:
        return int(self.rng.choice([-128, 127, 0, self.rng.integers(-128, 128)]))

    def several(self, high: int) -> int:
        return int(self.rng.integers(1, high))

    def is_so(self) -> bool:
        return bool(self.rng.integers(2))

    def case(self) -> Case:
        kinds = (self.basic, self.lstm, self.sequence)
        return kinds[self.rng.integers(len(kinds))]()

    def basic(self) -> Case:
        return basic(
            f"{self.seed}",
            seed=self.seed,
            n_batch=self.several(5),
            n_input=self.several(20),
            n_cell=self.several(30),
            weights=(self.scale(1e-4, 0.2), int(self.rng.integers(256))),
            variables=self.is_so(),
        )

    def form(self) -> Form:
        peephole, projection = self.is_so(), int(self.rng.integers(2) * self.several(20))
        return Form(
            cifg=self.is_so(),
            peephole=peephole,
            projection=projection,
            projection_bias=projection > 0 and self.is_so(),
            norm=self.is_so(),
            n_cell=self.several(40) + (projection if peephole else 0),
        )

    def scales(self) -> Scales:
        return Scales(
            x=(self.scale(1e-4, 1), self.point()),
            weights=self.scale(1e-4, 1),
            hidden=(self.scale(1e-3, 1), self.point()),
            output=(self.scale(1e-3, 1), self.point()),
            state=2.0 ** int(self.rng.integers(-15, -8)),
            between=self.scale(1e-6, 1e-2),
            peephole=self.scale(1e-6, 0.1),
            norm=self.scale(1e-6, 1e-3),
        )

    def clips(self) -> dict[str, float]:
        return {
            "cell_clip": float(self.rng.choice([0, self.scale(1e-3, 20)])),
            "proj_clip": float(self.rng.choice([0, self.scale(1e-3, 5)])),
        }

    def lstm(self) -> Case:
        cell = self.form(), self.scales()
        clips = self.clips()
        return lstm(f"{self.seed}", *cell, seed=self.seed, n_batch=self.several(4), **clips)

    def sequence(self) -> Case:
        cell = self.form(), self.scales()
        more: dict[str, Any] = self.clips()
        shape = self.several(6), self.several(6), self.several(6)
        more["time_major"] = self.is_so()
        return sequence(f"{self.seed}", *cell, seed=self.seed, shape=shape, **more)


@pytest.mark.litert
def test_reference_equals_litert_on_random_cases() -> None:
    for seed in range(40):
        case = Draw(seed).case()
        want = litert_twice(case)
        case.check(twice(case, Case.run_reference)[: len(want)], want)


def test_lowering_equals_the_reference_on_random_cases() -> None:
    cases = [under_way(Draw(seed).case()) for seed in range(100, 104)]
    CaseGroup(cases).check_lowerings(RULES)


def changed(case: Case, position: int, **changes: Any) -> Case:

    now: Any = case.inputs[position]
    return case.with_inputs({position: dataclasses.replace(now, **changes)})


def as_dtype(case: Case, position: int, dtype: Any) -> Case:
    now: Any = case.inputs[position]
    return changed(case, position, value=now.value.astype(dtype))


EVERYTHING = STEP[8]
NOT_8_BIT = as_dtype(STEP[0], 0, np.int16)
REFUSED = {
    "is int16, not int8": NOT_8_BIT,
    "is uint8, not int8": as_dtype(STEP[0], 2, np.uint8),
    "is float32, not int8": as_dtype(STEP[0], 4, np.float32),
    "is int8, not int16": as_dtype(EVERYTHING, 10, np.int8),
    "is int64, not int32": as_dtype(STEP[0], 13, np.int64),
    "the kernel takes one scale": changed(
        STEP[0], 3, quantization=Quantization(np.full(6, 0.1, np.float32), np.zeros(6, np.int64))
    ),
    "'in6' is int8": changed(STEP[0], 6, quantization=None),
    "is 4, and the int8 kernel expects 0": changed(STEP[0], 7, quantization=scaled(0.1, 4)),
    "is not a power of two": changed(STEP[0], 19, quantization=scaled(0.001)),
    "from 2**-15 to 2**-9": changed(STEP[0], 19, quantization=scaled(2.0**-8)),
    "has 12 intermediate tensors": dataclasses.replace(
        STEP[0], intermediates=[STEP[0].intermediates[4]] * 12
    ),
    "'between2' is int16": dataclasses.replace(
        EVERYTHING,
        intermediates=[
            dataclasses.replace(a, quantization=None) if i == 2 else a
            for i, a in enumerate(EVERYTHING.intermediates)
        ],
    ),
    "reads beyond a projection": lstm("", Form(peephole=True, projection=9)),
    "would be multiplied by": lstm("", Form(), Scales(x=(1e20, 0), weights=1e10)),
    "a clip is negative": lstm("", Form(), cell_clip=-1.0),
    "lacks its weights": STEP[0].with_inputs({7: None}),
    "input 18 holds state, but": changed(STEP[0], 18, is_variable=False),
    "has rank 3, not 2": changed(STEP[0], 0, value=np.zeros((BATCH, INPUT, 1), np.int8)),
    "is not 2**-11": dataclasses.replace(BASIC[0], output_quantization=[scaled(2.0**-10)] * 4),
    "is int8, not uint8": dataclasses.replace(BASIC[0], outputs=[np.int8, *BASIC[0].outputs[1:]]),
}


@pytest.mark.parametrize("case", [NOT_8_BIT, REFUSED["has 12 intermediate tensors"]], ids=str)
def test_reference_refuses_other_kernels(case: Case) -> None:
    with pytest.raises(TypeError, match=r"the integer kernel takes|intermediate tensors"):
        case.run_reference()
