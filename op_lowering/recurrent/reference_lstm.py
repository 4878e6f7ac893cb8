"""The LSTMs, step by step as in the kernels."""

import dataclasses
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.records.enums import ActivationFunctionType, LSTMKernelType
from jaxdelegate.op_lowering.recurrent import reference_quantized_lstm as quantized_lstm
from jaxdelegate.op_lowering.recurrent import reference_rnn
from jaxdelegate.op_lowering.recurrent.options import (
    BidirectionalSequenceLSTMOptions,
    LSTMOptions,
    UnidirectionalSequenceLSTMOptions,
)
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.quant import eigen
from jaxdelegate.reference.kernel import Array, Folds, Kernel

_Options = LSTMOptions | UnidirectionalSequenceLSTMOptions | BidirectionalSequenceLSTMOptions


@dataclasses.dataclass(frozen=True)
class Layout:
    """The first input of each group of tensors; the gates' order is input, forget, cell, output.

    Peepholes have no cell gate. None: the operator does not have the group.
    """

    weights: int
    recurrent: int
    peephole: int
    bias: int
    projection: int  # weights, then bias
    state: int  # output state, then cell state
    norm: int | None = None
    aux: int | None = None


FULL = Layout(weights=1, recurrent=5, peephole=9, bias=12, projection=16, state=18, norm=20)
FORWARD = Layout(weights=1, recurrent=5, peephole=9, bias=12, projection=16, state=35, aux=40)
BACKWARD = Layout(weights=18, recurrent=22, peephole=26, bias=29, projection=33, state=37, aux=44)
AUX_INPUT = 39
_FULL_INPUTS = (20, 24)  # without and with the layer norm's tensors
_BIDIRECTIONAL_INPUTS = (48,)
_BASIC_INPUTS = 5


class Direction:
    """One direction's weights, and its step (LstmStepFloat of kernels/lstm_eval.cc)."""

    def __init__(self, o: _Options, at: Layout, tensors: tuple[Any, ...]) -> None:
        """Trailing tensors may be missing."""

        def group(start: int | None, size: int) -> list[Any]:
            if start is None:
                return [None] * size
            return [tensors[i] if i < len(tensors) else None for i in range(start, start + size)]

        self.o = o
        self.weights = group(at.weights, 4)
        self.recurrent = group(at.recurrent, 4)
        self.bias = group(at.bias, 4)
        self.norm = group(at.norm, 4)
        self.aux = group(at.aux, 4)
        to_input, to_forget, to_output = group(at.peephole, 3)
        self.peephole = [to_input, to_forget, None, to_output]
        self.projection, self.projection_bias = group(at.projection, 2)
        self.n_cell, self.n_output = len(self.weights[3]), self.recurrent[3].shape[-1]

    def before_activation(
        self, gate: int, x: Array, aux: Array | None, h: Array, c: Array
    ) -> Array:
        """CalculateLstmGateFloat, CalculateLstmGateHybrid."""
        norm, bias = self.norm[gate], self.bias[gate]
        total = reference_rnn.product(x, self.weights[gate])
        total = total + bias if norm is None else total
        if aux is not None:
            total += reference_rnn.product(aux, self.aux[gate])
        recurrent = self.recurrent[gate]
        total += h * recurrent if recurrent.ndim == 1 else reference_rnn.product(h, recurrent)
        if self.peephole[gate] is not None:
            total += c * self.peephole[gate]
        return total if norm is None else _normalize(total) * norm + bias

    def step(self, x: Array, aux: Array | None, h: Array, c: Array) -> tuple[Array, Array]:
        """New output and cell state, [n_batch, n_output] and [n_batch, n_cell]."""
        act = self.o.fused_activation_function
        forget = _logistic(self.before_activation(1, x, aux, h, c))
        if self.weights[0] is None:  # CIFG: coupled input and forget gate
            update = 1 - forget
        else:
            update = _logistic(self.before_activation(0, x, aux, h, c))
        proposal = reference_rnn.apply_activation(act, self.before_activation(2, x, aux, h, c))
        c = _clip(forget * c + update * proposal, self.o.cell_clip)
        shown = _logistic(self.before_activation(3, x, aux, h, c))
        # Without an activation the kernel copies nothing: its scratch still holds the proposal.
        nothing = act is ActivationFunctionType.NONE
        h = shown * (proposal if nothing else reference_rnn.apply_activation(act, c))
        if self.projection is not None:
            h = reference_rnn.product(h, self.projection)
            h = h if self.projection_bias is None else h + self.projection_bias
            h = _clip(h, self.o.proj_clip)
        return h, c


def _logistic(x: Array) -> Array:
    """The full kernels' approximation for float32; exact for float64, which they do not take."""
    return eigen.logistic(x) if x.dtype == np.float32 else _sigmoid(x)


def _sigmoid(x: Array) -> Array:
    y: Array = np.exp(-np.logaddexp(x.dtype.type(0), -x))  # no overflow on either side
    return y


def _clip(x: Array, limit: float) -> Array:
    """PortableCwiseClipping: a limit of 0 does nothing, and NaN becomes the limit."""
    if limit <= 0:
        return x
    top = x.dtype.type(limit)
    y: Array = np.maximum(np.where(x < top, x, top), -top)
    return y


def _normalize(x: Array) -> Array:
    """PortableMeanStddevNormalization."""
    difference = x - x.mean(axis=1, keepdims=True)
    variance = np.square(difference).mean(axis=1, keepdims=True)
    y: Array = difference * (1 / np.sqrt(variance + x.dtype.type(1e-8)))
    return y


def _sequence(
    d: Direction, x: Array, aux: Array | None, h: Array, c: Array, *, backward: bool = False
) -> tuple[Array, Array, Array]:
    """The input is [time, batch, n_input]; outputs have the order of the inputs."""
    n_time, n_batch = x.shape[:2]
    h, c = h.reshape(n_batch, d.n_output), c.reshape(n_batch, d.n_cell)
    y = np.empty((n_time, n_batch, d.n_output), x.dtype)
    for t in reversed(range(n_time)) if backward else range(n_time):
        h, c = d.step(x[t], None if aux is None else aux[t], h, c)
        y[t] = h
    return y, h, c


def _require_inputs(inputs: Specs, counts: tuple[int, ...]) -> None:
    if len(inputs) not in counts:
        expected = " or ".join(map(str, counts))
        raise ValueError(f"expected {expected} inputs, got {len(inputs)}")


def _require_states(inputs: Specs, n_batch: int, at: Layout) -> None:
    """States hold the batch. Recurrent weights are [n_cell, n_output] or a diagonal [n_output]."""
    n_cell, n_output = inputs[at.weights + 3].shape[0], inputs[at.recurrent + 3].shape[-1]
    reference_rnn.require_states(inputs, n_batch, {at.state: n_output, at.state + 1: n_cell})


# --- LSTM ---


def lstm_shapes(o: LSTMOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """[n_batch, n_output]; basic: output, cell state, joined inputs, gates before activation."""
    if o.kernel_type is LSTMKernelType.FULL:
        return full_shapes(o, inputs)
    (n_batch, n_input), n_cell = inputs[0].shape, inputs[1].shape[1]
    if len(inputs) == _BASIC_INPUTS:
        reference_rnn.require_states(inputs, n_batch, {1: n_cell, 4: n_cell})
    rows = n_cell, n_cell, n_input + n_cell, 4 * n_cell
    return tuple((n_batch, n) for n in rows)


def lstm(
    o: LSTMOptions, inputs: Specs, outputs: Specs, *arrays: Array | None, intermediates: Specs = ()
) -> tuple[Array, ...]:
    """One step of kernels/lstm.cc."""
    if o.kernel_type is LSTMKernelType.BASIC:
        return _basic(inputs, outputs, arrays)
    return full_lstm(o, inputs, outputs, *arrays, intermediates=intermediates)


def _basic(inputs: Specs, outputs: Specs, arrays: tuple[Any, ...]) -> tuple[Array, ...]:
    """kernels/internal/reference/lstm_cell.h; lstm.cc then copies the results over h and c."""
    if inputs[0].dtype == np.uint8:
        return quantized_lstm.basic(inputs, outputs, *arrays)
    x, h, w, b, c = reference_rnn.as_floats(inputs, arrays)
    joined = np.concatenate([x, h], axis=1)
    gates = joined @ w.T + b
    update, proposal, forget, shown = np.split(gates, 4, axis=1)
    c = _sigmoid(update) * np.tanh(proposal) + _sigmoid(forget) * c
    h = _sigmoid(shown) * np.tanh(c)
    return reference_rnn.with_states(inputs, outputs, [h, c, joined, gates], {1: h, 4: c})


# --- UNIDIRECTIONAL_SEQUENCE_LSTM, and LSTM without its basic kernel ---


def full_shapes(
    o: LSTMOptions | UnidirectionalSequenceLSTMOptions, inputs: Specs
) -> tuple[Shape | None, ...]:
    _require_inputs(inputs, _FULL_INPUTS)
    _require_states(inputs, reference_rnn.batch_of(o, inputs[0]), FULL)
    return ((*inputs[0].shape[:-1], inputs[FULL.recurrent + 3].shape[-1]),)


def full_lstm(
    o: LSTMOptions | UnidirectionalSequenceLSTMOptions,
    inputs: Specs,
    outputs: Specs,
    *arrays: Array | None,
    intermediates: Specs = (),
) -> tuple[Array, ...]:
    """kernels/lstm.cc, kernels/unidirectional_sequence_lstm.cc."""
    if inputs[0].is_quantized:
        return quantized_lstm.lstm(o, inputs, outputs, *arrays, intermediates=intermediates)
    tensors = reference_rnn.as_operands(o, inputs, arrays)
    x, states = reference_rnn.as_steps(o, tensors[0]), tensors[FULL.state : FULL.state + 2]
    y, h, c = _sequence(Direction(o, FULL, tensors), x, None, *states)
    return reference_rnn.with_states(
        inputs, outputs, [reference_rnn.from_steps(o, y)], {FULL.state: h, FULL.state + 1: c}
    )


# --- BIDIRECTIONAL_SEQUENCE_LSTM ---


def bidirectional_shapes(
    o: BidirectionalSequenceLSTMOptions, inputs: Specs
) -> tuple[Shape | None, ...]:
    _require_inputs(inputs, _BIDIRECTIONAL_INPUTS)
    for direction in (FORWARD, BACKWARD):
        _require_states(inputs, reference_rnn.batch_of(o, inputs[0]), direction)
    forward, backward = (inputs[at.recurrent + 3].shape[1] for at in (FORWARD, BACKWARD))
    return reference_rnn.merged_shapes(inputs, forward, backward, merge=o.merge_outputs)


def bidirectional_sequence_lstm(
    o: BidirectionalSequenceLSTMOptions, inputs: Specs, outputs: Specs, *arrays: Array | None
) -> tuple[Array, ...]:
    """kernels/bidirectional_sequence_lstm.cc.

    The auxiliary input has weights in both directions, or it is the backward direction's input.
    """
    tensors = reference_rnn.as_operands(o, inputs, arrays)
    x, aux = reference_rnn.as_steps(o, tensors[0]), tensors[AUX_INPUT]
    aux = None if aux is None else reference_rnn.as_steps(o, aux)
    x_backward = x
    forward, backward = Direction(o, FORWARD, tensors), Direction(o, BACKWARD, tensors)
    if aux is not None and forward.aux[1] is None:
        x_backward, aux = aux, None
    h, c, h_backward, c_backward = tensors[FORWARD.state : FORWARD.state + 4]
    y, h, c = _sequence(forward, x, aux, h, c)
    y_backward, h_backward, c_backward = _sequence(
        backward, x_backward, aux, h_backward, c_backward, backward=True
    )
    ys = [reference_rnn.from_steps(o, a) for a in (y, y_backward)]
    ys = [np.concatenate(ys, axis=2)] if o.merge_outputs else ys
    states = dict(enumerate((h, c, h_backward, c_backward), FORWARD.state))
    return reference_rnn.with_states(inputs, outputs, ys, states)


KERNELS = {
    "LSTM": Kernel(lstm, lstm_shapes, Folds.NEVER, takes_intermediates=True),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": Kernel(
        full_lstm, full_shapes, Folds.NEVER, takes_intermediates=True
    ),
    "BIDIRECTIONAL_SEQUENCE_LSTM": Kernel(
        bidirectional_sequence_lstm, bidirectional_shapes, Folds.NEVER
    ),
}
