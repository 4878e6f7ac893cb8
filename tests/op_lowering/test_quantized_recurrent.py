"""LSTM, UNIDIRECTIONAL_SEQUENCE_LSTM and SVDF in integers."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import (
    LSTMKernelType,
    LSTMOptions,
    SVDFOptions,
    UnidirectionalSequenceLSTMOptions,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import Arg, Case
from jaxdelegate.testing.stateful import litert_twice, twice

Rng = np.random.Generator


def scaled(scale: float, zero_point: int = 0) -> Quantization:
    return Quantization(np.array([scale], np.float32), np.array([zero_point], np.int64))


def integers(
    rng: Rng,
    dtype: Any,
    shape: Sequence[int],
    scale: float,
    zero_point: int = 0,
    *,
    extent: int | None = None,
    is_const: bool = True,
) -> Arg:
    """Random integers; `extent`: of this magnitude at most, instead of the dtype's range."""
    info = np.iinfo(dtype)
    low, high = (info.min, info.max) if extent is None else (-extent, extent)
    array = rng.integers(low, high, shape, dtype, endpoint=True)
    return Arg(array, is_const, quantization=scaled(scale, zero_point))


def state(dtype: Any, shape: Sequence[int], scale: float, zero_point: int = 0) -> Arg:
    """A variable tensor; an int8 one begins at its zero point."""
    first = np.full(shape, zero_point, dtype)
    return Arg(first, is_variable=True, quantization=scaled(scale, zero_point))


@dataclasses.dataclass(frozen=True)
class Form:
    """Which of a cell's tensors are there, and how large its pieces are."""

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


BATCH, TIME, INPUT = 3, 4, 5


class CellMaker:
    """The 24 inputs and 5 intermediates of an integer LSTM, at random."""

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
    label: str, form: Form, s: Scales = Scales(), *, seed: int = 0, n_batch: int = BATCH, **o: Any
) -> Case:
    make = CellMaker(form, s, seed)
    x = integers(make.rng, np.int8, (n_batch, INPUT), *s.x, is_const=False)
    return Case(
        "LSTM",
        label,
        make.inputs(x, n_batch),
        LSTMOptions(fused_activation_function=Act.TANH, **o),
        [np.int8],
        version=2,
        output_quantization=[scaled(*s.output)],
        intermediates=make.intermediates(),
    )


def sequence(
    label: str,
    form: Form,
    s: Scales = Scales(),
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


FORMS = {
    "plain": Form(),
    "20-inputs": Form(inputs=20),
    "cifg": Form(cifg=True),
    "peephole": Form(peephole=True),
    "cifg-peephole-wide": Form(cifg=True, peephole=True, n_cell=37),
    "projection": Form(projection=4),
    "projection-bias-wide": Form(projection=21, projection_bias=True, n_cell=18),
    "norm": Form(norm=True),
    "norm-cifg-wide": Form(norm=True, cifg=True, n_cell=33),
    "everything": Form(peephole=True, projection=4, projection_bias=True, norm=True),
    "everything-wide": Form(
        peephole=True, projection=19, projection_bias=True, norm=True, n_cell=23
    ),
}
STEP = [lstm(name, form) for name, form in FORMS.items()]
SEQUENCE = [
    sequence(f"{name}-{order}", FORMS[name], time_major=major)
    for order, major in (("time-major", True), ("batch-major", False))
    for name in ("plain", "cifg-peephole-wide", "everything", "everything-wide")
]


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


def svdf(
    label: str,
    rank: int,
    units: int,
    memory: int,
    *,
    seed: int = 0,
    n_batch: int = BATCH,
    n_input: int = INPUT,
    bias: bool = True,
    x: tuple[float, int] = (0.01, -12),
    feature: float = 0.008,
    time: float = 4e-5,
    kept: float = 2e-4,
    y: tuple[float, int] = (0.012, -128),
) -> Case:
    rng, n_filters = np.random.default_rng(seed), rank * units
    inputs = [
        integers(rng, np.int8, (n_batch, n_input), *x, is_const=False),
        integers(rng, np.int8, (n_filters, n_input), feature),
        integers(rng, np.int16, (n_filters, memory), time, extent=20000),
        integers(rng, np.int32, [units], kept * time, extent=1 << 24) if bias else None,
        state(np.int16, (n_batch, memory * n_filters), kept),
    ]
    return Case(
        "SVDF",
        label,
        inputs,
        SVDFOptions(rank, Act.RELU),
        [np.int8],
        version=3,
        output_quantization=[scaled(*y)],
    )
