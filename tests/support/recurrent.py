"""Inputs of recurrent operators with float activations, and float or 8-bit weights."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    BidirectionalSequenceRNNOptions,
    SVDFOptions,
)
from jaxdelegate.testing import Arg, Case, ModelBuilder, const, f32, variable

BATCH, TIME, INPUT = 3, 4, 5
ORDERS = {"time-major": True, "batch-major": False}


def floats(*shape: int, seed: int = 0) -> Arg:
    return const(f32(*shape, low=-0.8, high=0.8, seed=seed))


def series(
    *, time_major: bool, n_time: int = TIME, batch: int = BATCH, width: int = INPUT, seed: int = 0
) -> Arg:
    return f32(*((n_time, batch) if time_major else (batch, n_time)), width, seed=seed)


@dataclasses.dataclass(frozen=True)
class LstmForm:
    """An LSTM cell's optional tensors and its size."""

    cifg: bool = False
    peephole: bool = False
    projection: int = 0  # its outputs; 0: no projection
    projection_bias: bool = False
    norm: bool = False
    diagonal: bool = False
    aux: int = 0  # width of the auxiliary input that has weights
    n_cell: int = 6
    matrix: Callable[..., Arg] = floats

    @property
    def n_output(self) -> int:
        return self.projection or self.n_cell

    def gates(self, make: Callable[..., Arg], *shape: int, seed: int = 0) -> list[Arg | None]:
        """One tensor for the input, forget, cell and output gate."""
        tensors: list[Arg | None] = [make(*shape, seed=seed + i) for i in range(4)]
        return [None, *tensors[1:]] if self.cifg else tensors

    def cell(self, n_input: int, seed: int = 0) -> list[Arg | None]:
        """Weights, recurrent weights, peepholes, biases, projection: 17 tensors."""
        n = self.n_cell
        recurrent = self.gates(self.matrix, n, self.n_output, seed=seed + 10)
        if self.diagonal:
            recurrent = self.gates(floats, n, seed=seed + 10)
        peepholes = self.gates(self.matrix, n, seed=seed + 20) if self.peephole else [None] * 4
        return [
            *self.gates(self.matrix, n, n_input, seed=seed),
            *recurrent,
            *(peepholes[i] for i in (0, 1, 3)),
            *self.gates(floats, n, seed=seed + 30),
            self.matrix(self.n_output, n, seed=seed) if self.projection else None,
            floats(self.n_output, seed=seed) if self.projection_bias else None,
        ]

    def inputs(self, x: Arg, *, flat: bool = False) -> list[Arg | None]:
        """The 24 inputs of LSTM and UNIDIRECTIONAL_SEQUENCE_LSTM; 20 without layer norm."""
        sizes = (BATCH, self.n_output), (BATCH, self.n_cell)
        states = [variable(*((n * m,) if flat else (n, m))) for n, m in sizes]
        norms = self.gates(floats, self.n_cell, seed=40) if self.norm else []
        return [x, *self.cell(x.value.shape[-1]), *states, *norms]

    def both(self, x: Arg, aux: Arg | None = None, batch: int = BATCH) -> list[Arg | None]:
        """The 48 inputs of BIDIRECTIONAL_SEQUENCE_LSTM."""
        states = [variable(batch, self.n_output), variable(batch, self.n_cell)] * 2
        aux_weights: list[Arg | None] = [None] * 8
        if self.aux:
            aux_weights = [
                weights
                for seed in (50, 60)
                for weights in self.gates(self.matrix, self.n_cell, self.aux, seed=seed)
            ]
        cells = [*self.cell(INPUT), *self.cell(INPUT, seed=100)]
        return [x, *cells, *states, aux, *aux_weights]


def both_rnn(
    label: str,
    n_units: int,
    o: BidirectionalSequenceRNNOptions,
    *,
    aux: int = 0,
    instead: bool = False,
    n_time: int = TIME,
    matrix: Callable[..., Arg] = floats,
    **details: Any,
) -> Case:
    """`aux`: width of an auxiliary input with weights; `instead`: one without weights."""
    x = series(time_major=o.time_major, n_time=n_time)
    second = None
    if aux or instead:
        second = series(time_major=o.time_major, width=aux or INPUT, seed=9)
    aux_weights = [matrix(n, aux, seed=n) if aux else None for n in (n_units, n_units - 2)]
    cells = [*rnn_cell(n_units, matrix), *rnn_cell(n_units - 2, matrix, seed=40)]
    inputs = [x, *cells, second, *aux_weights]
    outputs = [np.float32] * (1 if o.merge_outputs else 2)
    return Case("BIDIRECTIONAL_SEQUENCE_RNN", label, inputs, o, outputs, **details)


def svdf(
    label: str,
    rank: int,
    output_channels: int,
    memory: int,
    *,
    bias: bool = True,
    act: ActivationFunctionType = ActivationFunctionType.NONE,
    asymmetric: bool = False,
    matrix: Callable[..., Arg] = floats,
    **details: Any,
) -> Case:
    n_filters = rank * output_channels
    inputs = [
        f32(BATCH, INPUT),
        matrix(n_filters, INPUT),
        matrix(n_filters, memory),
        floats(output_channels) if bias else None,
        variable(BATCH, memory * n_filters),
    ]
    return Case("SVDF", label, inputs, SVDFOptions(rank, act, asymmetric), **details)


def rnn_cell(n_units: int, matrix: Callable[..., Arg] = floats, seed: int = 0) -> list[Arg]:
    """Weights, recurrent weights, bias, state."""
    return [
        matrix(n_units, INPUT, seed=seed),
        matrix(n_units, n_units, seed=seed + 1),
        floats(n_units, seed=seed + 2),
        variable(BATCH, n_units),
    ]


def remembering() -> bytes:
    """A model of SVDF: [1, 2] -> [1, 2], and tensor 3, a variable that holds three values each."""
    builder = ModelBuilder()
    x = builder.input((1, 2), np.float32, "x")
    features = builder.constant(np.array([[1, 2], [3, 4]], np.float32))
    times = builder.constant(np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    state = builder.tensor((1, 6), name="memory", is_variable=True)
    y = builder.tensor((1, 2), name="y")
    builder.operator("SVDF", [x, features, times, None, state], [y], SVDFOptions(rank=1))
    builder.outputs(y)
    return builder.build()
