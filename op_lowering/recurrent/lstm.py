"""LSTM, UNIDIRECTIONAL_SEQUENCE_LSTM and BIDIRECTIONAL_SEQUENCE_LSTM."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxdelegate.op_lowering.records.enums import LSTMKernelType
from jaxdelegate.op_lowering.recurrent import quantized_lstm, rnn
from jaxdelegate.op_lowering.recurrent.dynamic_range import operands
from jaxdelegate.op_lowering.recurrent.lstm_cell import (
    BACKWARD,
    CELL,
    FORWARD,
    read,
    sweep,
    weights_of,
    why_not_cell,
    why_not_parameters,
)
from jaxdelegate.op_lowering.recurrent.options import (
    BidirectionalSequenceLSTMOptions,
    LSTMOptions,
    UnidirectionalSequenceLSTMOptions,
)
from jaxdelegate.op_lowering.rule import (
    Function,
    LoweringContext,
    Op,
    first_reason,
    optional,
    rule,
    table,
    variable_inputs,
)
from jaxdelegate.op_lowering.spec import Specs

_FULL_INPUTS = (20, 24)  # the older one without the layer norm's tensors
_BIDIRECTIONAL_INPUTS = (48,)
_AUX_INPUT = 39
_BASIC_HIDDEN, _BASIC_STATE = 1, 4  # the basic kernel's previous output and cell state


def _why_not_full(op: Op[LSTMOptions | UnidirectionalSequenceLSTMOptions]) -> str | None:
    x, time_major = op.inputs[0], rnn.is_time_major(op.options)
    if x.is_quantized:
        return quantized_lstm.why_not(op)
    reason = first_reason(
        rnn.why_not_counts(op, _FULL_INPUTS, 1),
        rnn.why_not_operands(op, weights_of(CELL, op.inputs)),
        rnn.why_not_states(op, CELL.hidden, CELL.state),
        rnn.why_not_rank(x, 2 if time_major is None else 3),
        why_not_parameters(op.options),
    )
    if reason:
        return reason
    return why_not_cell(read(CELL, op.inputs), x.shape[1 if time_major else 0], x.shape[-1])


def _lower_full(op: Op[LSTMOptions | UnidirectionalSequenceLSTMOptions]) -> Function:
    if op.inputs[0].is_quantized:
        return quantized_lstm.lower(op)
    prepared = operands(op)

    def lstm(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        x = rnn.as_steps(arrays[0], op.options)
        y, h, c = sweep(op, read(CELL, prepared(arrays)), x)
        y = rnn.from_steps(y, op.options)
        return rnn.results(op.outputs, [y], op.inputs[CELL.hidden : CELL.state + 1], [h, c])

    return lstm


def _why_not_bidirectional(op: Op[BidirectionalSequenceLSTMOptions]) -> str | None:
    x, aux = op.inputs[0], optional(op.inputs, _AUX_INPUT)
    weights = weights_of(FORWARD, op.inputs) | weights_of(BACKWARD, op.inputs)
    reason = first_reason(
        rnn.why_not_counts(op, _BIDIRECTIONAL_INPUTS, 1 if op.options.merge_outputs else 2),
        rnn.why_not_operands(op, weights),
        rnn.why_not_states(op, *range(FORWARD.hidden, BACKWARD.state + 1)),
        rnn.why_not_rank(x, 3),
        why_not_parameters(op.options),
    )
    if reason:
        return reason
    n_batch, n_aux = x.shape[int(op.options.time_major)], rnn.row_length(aux)
    cells = [read(at, op.inputs) for at in (FORWARD, BACKWARD)]
    return first_reason(
        rnn.why_not_aux(x, aux, *(cell.forget.aux for cell in cells)),
        *(why_not_cell(cell, n_batch, x.shape[2], n_aux) for cell in cells),
    )


def _lower_bidirectional(op: Op[BidirectionalSequenceLSTMOptions]) -> Function:
    """Source: kernels/bidirectional_sequence_lstm.cc.

    An auxiliary input without weights replaces the input of the backward direction.
    """
    has_weights, prepared = op.inputs[FORWARD.forget.aux] is not None, operands(op)

    def bidirectional_sequence_lstm(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        x, aux = (rnn.as_steps(arrays[i], op.options) for i in (0, _AUX_INPUT))
        instead = aux is not None and not has_weights
        shared = aux if has_weights else None
        there, back = (read(at, prepared(arrays)) for at in (FORWARD, BACKWARD))
        forward, *states = sweep(op, there, x, shared)
        backward, *states_back = sweep(op, back, aux if instead else x, shared, reverse=True)
        ys = rnn.both_directions(forward, backward, merge=op.options.merge_outputs)
        ys = tuple(rnn.from_steps(y, op.options) for y in ys)
        specs = op.inputs[FORWARD.hidden : BACKWARD.state + 1]
        return rnn.results(op.outputs, ys, specs, (*states, *states_back))

    return bidirectional_sequence_lstm


def _why_not_basic(op: Op[LSTMOptions]) -> str | None:
    if len(op.inputs) != 5 or any(spec is None for spec in op.inputs):
        return "the basic kernel needs 5 inputs"
    if len(op.outputs) != 4:
        return f"has {len(op.outputs)} outputs, not 4"
    x, hidden, w, bias, state = op.inputs
    reason = first_reason(
        quantized_lstm.why_not_basic(op)
        if quantized_lstm.is_basic(op.inputs)
        else rnn.why_not_floats(op),
        rnn.why_not_states(op, *_basic_states(op.inputs)),
        rnn.why_not_rank(x, 2),
        rnn.why_not_rank(state, 2),
    )
    if reason:
        return reason
    n_batch, n_cell = x.shape[0], state.shape[1]
    return first_reason(
        rnn.why_not_shape(hidden, n_batch, n_cell),
        rnn.why_not_shape(state, n_batch, n_cell),
        rnn.why_not_shape(w, 4 * n_cell, x.shape[1] + n_cell),
        rnn.why_not_shape(bias, 4 * n_cell),
    )


def _basic_states(inputs: Specs) -> tuple[int, ...]:
    return tuple(i for i in (_BASIC_HIDDEN, _BASIC_STATE) if inputs[i].is_variable)


def _lower_basic(op: Op[LSTMOptions]) -> Function:
    # Source: kernels/internal/reference/lstm_cell.h. The kernel also overwrites the previous output
    # and state, which lasts in variable tensors.
    positions = _basic_states(op.inputs)
    integer = quantized_lstm.is_basic(op.inputs)
    step = quantized_lstm.basic_step(op.inputs) if integer else _basic_step(op.context)

    def lstm(
        x: jax.Array, h: jax.Array, w: jax.Array, bias: jax.Array, c: jax.Array
    ) -> tuple[jax.Array, ...]:
        joined = jnp.concatenate([x, h], 1)
        totals, h, c = step(joined, w, bias, c)
        states = {_BASIC_HIDDEN: h, _BASIC_STATE: c}
        return rnn.results(
            op.outputs,
            [h, c, joined, totals],
            [op.inputs[i] for i in positions],
            [states[i] for i in positions],
        )

    return lstm


def _basic_step(context: LoweringContext) -> Callable[..., tuple[jax.Array, ...]]:
    def step(
        joined: jax.Array, w: jax.Array, bias: jax.Array, c: jax.Array
    ) -> tuple[jax.Array, ...]:
        totals = rnn.matmul(context, joined, w)
        totals += rnn.along_rows(bias, totals)
        take, new, forget, output = jnp.split(totals, 4, 1)
        c = jax.nn.sigmoid(take) * jnp.tanh(new) + jax.nn.sigmoid(forget) * c.astype(totals.dtype)
        return totals, jax.nn.sigmoid(output) * jnp.tanh(c), c

    return step


_WHY_NOT = {LSTMKernelType.FULL: _why_not_full, LSTMKernelType.BASIC: _why_not_basic}
_LOWER = {LSTMKernelType.FULL: _lower_full, LSTMKernelType.BASIC: _lower_basic}


def _why_not_lstm(op: Op[LSTMOptions]) -> str | None:
    return _WHY_NOT[op.options.kernel_type](op)


def _lower_lstm(op: Op[LSTMOptions]) -> Function:
    return _LOWER[op.options.kernel_type](op)


RULES = table(
    rule("LSTM", 4, _why_not_lstm, _lower_lstm, variable_inputs),
    rule("UNIDIRECTIONAL_SEQUENCE_LSTM", 4, _why_not_full, _lower_full, variable_inputs),
    rule(
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        3,
        _why_not_bidirectional,
        _lower_bidirectional,
        variable_inputs,
    ),
)
