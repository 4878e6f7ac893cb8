"""How to draw recurrent operators with float and with dynamic range weights."""

import dataclasses
from collections.abc import Callable

import numpy as np

from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    BidirectionalSequenceLSTMOptions,
    BidirectionalSequenceRNNOptions,
    LSTMOptions,
    Options,
    RNNOptions,
    SequenceRNNOptions,
    SVDFOptions,
    UnidirectionalSequenceLSTMOptions,
)
from tests.support.graph_drawing import Drawing
from tests.support.quantized import scaled
from tests.support.random_operators.elementwise import Draw, F

_TANH = ActivationFunctionType.TANH
_ACTIVATIONS = tuple(ActivationFunctionType(i) for i in range(5))


class _Cell:
    """Draws the weights of one recurrent operator, all in float32 or all in int8."""

    def __init__(self, d: Drawing, *, dynamic_range: bool) -> None:
        self.d, self.dynamic_range = d, dynamic_range

    def matrix(self, *shape: int) -> int:
        if self.dynamic_range:
            data = self.d.rng.integers(-127, 128, shape)
            return self.d.const(data, np.int8, scaled(np.float32(self.d.rng.uniform(0.002, 0.008))))
        return self.vector(*shape)

    def vector(self, *shape: int) -> int:
        return self.d.const(self.d.rng.uniform(-0.8, 0.8, shape), np.float32)

    def state(self, *shape: int) -> int:
        return self.d.add(shape, np.float32, is_variable=True)


def _series(d: Drawing, rank: int) -> int:
    """[batch, width], or [time, batch, width] in either order."""
    return d.operand(F, rank, rank, lambda s: all(0 < n < 40 for n in s))


def _cell(d: Drawing) -> _Cell:
    return _Cell(d, dynamic_range=d.chance(0.3))


def _rnn_weights(c: _Cell, width: int, n: int, batch: int) -> list[int | None]:
    return [c.matrix(n, width), c.matrix(n, n), c.vector(n), c.state(batch, n)]


def _rnn(d: Drawing) -> None:
    x, n, c = _series(d, 2), d.between(1, 6), _cell(d)
    batch, width = d.shape_of(x)
    operands = [x, *_rnn_weights(c, width, n, batch)]
    options = RNNOptions(d.one_of(_ACTIVATIONS), c.dynamic_range and d.chance(0.5))
    d.result("RNN", operands, (batch, n), "float32", options, accumulated=width + n, version=3)


def _order(d: Drawing, x: int) -> tuple[bool, int, int, int]:
    """Whether time comes first, then batch, time and width."""
    first, second, width = d.shape_of(x)
    major = d.chance(0.5)
    return (major, second, first, width) if major else (major, first, second, width)


def _sequence_rnn(d: Drawing) -> None:
    x, n, c = _series(d, 3), d.between(1, 6), _cell(d)
    major, batch, time, width = _order(d, x)
    operands = [x, *_rnn_weights(c, width, n, batch)]
    options = SequenceRNNOptions(major, d.one_of(_ACTIVATIONS), c.dynamic_range and d.chance(0.5))
    to = (time, batch, n) if major else (batch, time, n)
    name = "UNIDIRECTIONAL_SEQUENCE_RNN"
    d.result(name, operands, to, "float32", options, accumulated=width + n, version=3)


def _bidirectional_rnn(d: Drawing) -> None:
    x, n, m, c = _series(d, 3), d.between(1, 6), d.between(1, 6), _cell(d)
    major, batch, time, width = _order(d, x)
    merge = major and d.chance(0.5)  # merged and batch major, the kernel reads beyond its states
    operands = [x, *_rnn_weights(c, width, n, batch), *_rnn_weights(c, width, m, batch)]
    options = BidirectionalSequenceRNNOptions(
        major, d.one_of(_ACTIVATIONS), merge, c.dynamic_range and d.chance(0.5)
    )
    shapes = [
        (time, batch, k) if major else (batch, time, k) for k in ([n + m] if merge else [n, m])
    ]
    outputs = [d.add(s, np.float32) for s in shapes]
    operands += [None] * 3
    name = "BIDIRECTIONAL_SEQUENCE_RNN"
    d.node(name, operands, outputs, options, accumulated=width + n, version=3)


def _svdf(d: Drawing) -> None:
    x, n, rank, memory = _series(d, 2), d.between(1, 5), d.between(1, 3), d.between(2, 6)
    c = _cell(d)
    batch, width = d.shape_of(x)
    filters = n * rank
    operands = [
        x,
        c.matrix(filters, width),
        c.matrix(filters, memory) if c.dynamic_range else c.vector(filters, memory),
        c.vector(n) if d.chance(0.6) else None,
        c.state(batch, memory * filters),
    ]
    options = SVDFOptions(rank, d.one_of(_ACTIVATIONS), c.dynamic_range and d.chance(0.5))
    accumulated = width + memory * rank
    d.result("SVDF", operands, (batch, n), "float32", options, accumulated=accumulated, version=3)


@dataclasses.dataclass(frozen=True)
class _Form:
    """Which tensors an LSTM has; `projection`: its output size, 0 without projection."""

    cifg: bool
    peephole: bool
    projection: int
    norm: bool


def _lstm_weights(d: Drawing, c: _Cell, width: int, n: int, form: _Form) -> list[int | None]:
    """17 tensors: weights, recurrent weights, peepholes, biases, projection."""
    projected = form.projection > 0
    n_out = form.projection or n

    def gates(make: Callable[[], int]) -> list[int | None]:
        made = [make() for _ in range(4)]
        return [None, *made[1:]] if form.cifg else [*made]

    peepholes = gates(lambda: c.matrix(n)) if form.peephole else [None] * 4
    return [
        *gates(lambda: c.matrix(n, width)),
        *gates(lambda: c.matrix(n, n_out)),
        *(peepholes[i] for i in (0, 1, 3)),
        *gates(lambda: c.vector(n)),
        c.matrix(n_out, n) if projected else None,
        c.vector(n_out) if projected and d.chance(0.5) else None,
    ]


def _form(d: Drawing) -> _Form:
    cifg, peephole, projected = d.chance(0.3), d.chance(0.3), d.chance(0.4)
    n_out = d.between(1, 5)
    return _Form(cifg, peephole, n_out * projected, d.chance(0.3))


def _lstm(name: str, rank: int) -> Draw:
    def draw(d: Drawing) -> None:
        x, n, c, form = _series(d, rank), d.between(1, 6), _cell(d), _form(d)
        if rank == 3:
            major, batch, time, width = _order(d, x)
        else:
            (batch, width), major, time = d.shape_of(x), False, 0
        n_out = form.projection or n
        norms: list[int | None] = []
        if form.norm:
            norms = [c.vector(n) for _ in range(4)]
            norms = [None, *norms[1:]] if form.cifg else norms
        states = [c.state(batch, n_out), c.state(batch, n)]
        operands = [x, *_lstm_weights(d, c, width, n, form), *states, *norms]
        clips = d.one_of(((0.0, 0.0), (0.5, 0.0), (0.0, 0.3)))
        cell_clip, projection_clip = (float(np.float32(v)) for v in clips)
        asymmetric = c.dynamic_range and d.chance(0.5)
        to: tuple[int, ...] = (batch, n_out)
        options: Options = LSTMOptions(
            _TANH, cell_clip, projection_clip, asymmetric_quantize_inputs=asymmetric
        )
        if rank == 3:
            options = UnidirectionalSequenceLSTMOptions(
                _TANH, cell_clip, projection_clip, major, asymmetric
            )
            to = (time, batch, n_out) if major else (batch, time, n_out)
        d.result(name, operands, to, "float32", options, accumulated=width + n, version=3)

    return draw


def _bidirectional_lstm(d: Drawing) -> None:
    x, n, c = _series(d, 3), d.between(1, 5), _cell(d)
    form = dataclasses.replace(_form(d), projection=0, norm=False)
    major, batch, time, width = _order(d, x)
    operands = [x, *_lstm_weights(d, c, width, n, form), *_lstm_weights(d, c, width, n, form)]
    operands += [c.state(batch, n) for _ in range(4)] + [None] * 9
    merge = d.chance(0.4)
    options = BidirectionalSequenceLSTMOptions(
        _TANH, 0.0, 0.0, merge, major, c.dynamic_range and d.chance(0.5)
    )
    shapes = [
        (time, batch, k) if major else (batch, time, k) for k in ([2 * n] if merge else [n, n])
    ]
    outputs = [d.add(s, np.float32) for s in shapes]
    name = "BIDIRECTIONAL_SEQUENCE_LSTM"
    d.node(name, operands, outputs, options, accumulated=width + n, version=3)


OPERATORS: dict[str, Draw] = {
    "RNN": _rnn,
    "UNIDIRECTIONAL_SEQUENCE_RNN": _sequence_rnn,
    "BIDIRECTIONAL_SEQUENCE_RNN": _bidirectional_rnn,
    "SVDF": _svdf,
    "LSTM": _lstm("LSTM", 2),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _lstm("UNIDIRECTIONAL_SEQUENCE_LSTM", 3),
    "BIDIRECTIONAL_SEQUENCE_LSTM": _bidirectional_lstm,
}
