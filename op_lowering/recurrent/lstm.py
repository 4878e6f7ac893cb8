"""LSTM, UNIDIRECTIONAL_SEQUENCE_LSTM and BIDIRECTIONAL_SEQUENCE_LSTM."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxdelegate.op_lowering.records.enums import LSTMKernelType
from jaxdelegate.op_lowering.recurrent import quantized_lstm
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
from jaxdelegate.op_lowering.recurrent.rnn import (
    along_rows,
    both_algorithms,
    matmul,
    results,
    row_length,
    steps,
    why_not_aux,
    why_not_counts,
    why_not_floats,
    why_not_operands,
    why_not_rank,
    why_not_shape,
    why_not_states,
)
from jaxdelegate.op_lowering.rule import (
    Function,
    LoweringContext,
    OpRule,
    first_reason,
    optional,
    table,
    variable_inputs,
)
from jaxdelegate.op_lowering.spec import Specs

_FULL_INPUTS = (20, 24)  # the older form ends before the layer norm's tensors
_BIDIRECTIONAL_INPUTS = (48,)
_AUX_INPUT = 39
_BASIC_HIDDEN, _BASIC_STATE = 1, 4  # the basic kernel's previous output and cell state


def _why_not_full(
    context: LoweringContext,
    o: LSTMOptions | UnidirectionalSequenceLSTMOptions,
    inputs: Specs,
    outputs: Specs,
) -> str | None:
    if inputs[0].is_quantized:
        return quantized_lstm.why_not(context, o, inputs, outputs)
    x, sequence = inputs[0], isinstance(o, UnidirectionalSequenceLSTMOptions)
    reason = first_reason(
        why_not_counts(inputs, _FULL_INPUTS, outputs, 1),
        why_not_operands(inputs, outputs, weights_of(CELL, inputs)),
        why_not_states(o, inputs, CELL.hidden, CELL.state),
        why_not_rank(x, 3 if sequence else 2),
        why_not_parameters(o),
    )
    if reason:
        return reason
    n_batch = x.shape[int(isinstance(o, UnidirectionalSequenceLSTMOptions) and o.time_major)]
    return why_not_cell(read(CELL, inputs), n_batch, x.shape[-1])


def _lower_full(
    context: LoweringContext, o: LSTMOptions, inputs: Specs, outputs: Specs
) -> Function:
    if inputs[0].is_quantized:
        return quantized_lstm.lower(context, o, inputs, outputs)
    prepared = operands(o, inputs)

    def lstm(*arrays: jax.Array) -> tuple[jax.Array, ...]:  # [N, n_input] -> [N, n_output]
        y, h, c = sweep(context, o, read(CELL, prepared(arrays)), arrays[0][None])
        return results(outputs, [y[0]], inputs[CELL.hidden : CELL.state + 1], [h, c])

    return lstm


def _lower_unidirectional(
    context: LoweringContext, o: UnidirectionalSequenceLSTMOptions, inputs: Specs, outputs: Specs
) -> Function:
    if inputs[0].is_quantized:
        return quantized_lstm.lower(context, o, inputs, outputs)
    prepared = operands(o, inputs)

    def unidirectional_sequence_lstm(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        x = steps(arrays[0], time_major=o.time_major)
        y, h, c = sweep(context, o, read(CELL, prepared(arrays)), x)
        y = steps(y, time_major=o.time_major)
        return results(outputs, [y], inputs[CELL.hidden : CELL.state + 1], [h, c])

    return unidirectional_sequence_lstm


def _why_not_bidirectional(
    _context: LoweringContext, o: BidirectionalSequenceLSTMOptions, inputs: Specs, outputs: Specs
) -> str | None:
    x, aux = inputs[0], optional(inputs, _AUX_INPUT)
    at = range(FORWARD.hidden, BACKWARD.state + 1)
    weights = weights_of(FORWARD, inputs) | weights_of(BACKWARD, inputs)
    reason = first_reason(
        why_not_counts(inputs, _BIDIRECTIONAL_INPUTS, outputs, 1 if o.merge_outputs else 2),
        why_not_operands(inputs, outputs, weights),
        why_not_states(o, inputs, *at),
        why_not_rank(x, 3),
        why_not_parameters(o),
    )
    if reason:
        return reason
    n_batch, n_aux = x.shape[int(o.time_major)], row_length(aux)
    cells = [read(at, inputs) for at in (FORWARD, BACKWARD)]
    return first_reason(
        why_not_aux(x, aux, *(cell.forget.aux for cell in cells)),
        *(why_not_cell(cell, n_batch, x.shape[2], n_aux) for cell in cells),
    )


def _lower_bidirectional(
    context: LoweringContext, o: BidirectionalSequenceLSTMOptions, inputs: Specs, outputs: Specs
) -> Function:
    """As kernels/bidirectional_sequence_lstm.cc.

    An auxiliary input without weights replaces the input of the backward direction.
    """
    has_weights, prepared = inputs[FORWARD.forget.aux] is not None, operands(o, inputs)

    def bidirectional_sequence_lstm(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        x, aux = (steps(arrays[i], time_major=o.time_major) for i in (0, _AUX_INPUT))
        instead = aux is not None and not has_weights
        shared = aux if has_weights else None
        there, back = (read(at, prepared(arrays)) for at in (FORWARD, BACKWARD))
        forward, *states = sweep(context, o, there, x, shared)
        backward, *states_back = sweep(
            context, o, back, aux if instead else x, shared, reverse=True
        )
        ys = both_algorithms(forward, backward, merge=o.merge_outputs)
        ys = tuple(steps(y, time_major=o.time_major) for y in ys)
        kept = inputs[FORWARD.hidden : BACKWARD.state + 1]
        return results(outputs, ys, kept, (*states, *states_back))

    return bidirectional_sequence_lstm


def _why_not_basic(
    _context: LoweringContext, o: LSTMOptions, inputs: Specs, outputs: Specs
) -> str | None:
    if len(inputs) != 5 or any(spec is None for spec in inputs):
        return "the basic kernel needs 5 inputs"
    if len(outputs) != 4:
        return f"has {len(outputs)} outputs, not 4"
    x, hidden, w, bias, state = inputs
    reason = first_reason(
        quantized_lstm.why_not_basic(inputs, outputs)
        if quantized_lstm.is_basic(inputs)
        else why_not_floats(inputs, outputs),
        why_not_states(o, inputs, *_basic_states(inputs)),
        why_not_rank(x, 2),
        why_not_rank(state, 2),
    )
    if reason:
        return reason
    n_batch, n_cell = x.shape[0], state.shape[1]
    return first_reason(
        why_not_shape(hidden, n_batch, n_cell),
        why_not_shape(state, n_batch, n_cell),
        why_not_shape(w, 4 * n_cell, x.shape[1] + n_cell),
        why_not_shape(bias, 4 * n_cell),
    )


def _basic_states(inputs: Specs) -> tuple[int, ...]:
    return tuple(i for i in (_BASIC_HIDDEN, _BASIC_STATE) if inputs[i].is_variable)


def _lower_basic(
    context: LoweringContext, _o: LSTMOptions, inputs: Specs, outputs: Specs
) -> Function:
    """As kernels/internal/reference/lstm_cell.h: the previous output and state are ordinary inputs.

    The kernel also writes the new ones over them; that lasts where they are variable tensors.
    """
    kept = _basic_states(inputs)
    integer = quantized_lstm.is_basic(inputs)
    step = quantized_lstm.basic_step(inputs) if integer else _basic_step(context)

    def lstm(
        x: jax.Array, h: jax.Array, w: jax.Array, bias: jax.Array, c: jax.Array
    ) -> tuple[jax.Array, ...]:
        joined = jnp.concatenate([x, h], 1)
        totals, h, c = step(joined, w, bias, c)
        states = {_BASIC_HIDDEN: h, _BASIC_STATE: c}
        return results(
            outputs, [h, c, joined, totals], [inputs[i] for i in kept], [states[i] for i in kept]
        )

    return lstm


def _basic_step(context: LoweringContext) -> Callable[..., tuple[jax.Array, ...]]:
    def step(
        joined: jax.Array, w: jax.Array, bias: jax.Array, c: jax.Array
    ) -> tuple[jax.Array, ...]:
        totals = matmul(context, joined, w)
        totals += along_rows(bias, totals)
        take, new, forget, output = jnp.split(totals, 4, 1)
        c = jax.nn.sigmoid(take) * jnp.tanh(new) + jax.nn.sigmoid(forget) * c.astype(totals.dtype)
        return totals, jax.nn.sigmoid(output) * jnp.tanh(c), c

    return step


_WHY_NOT = {LSTMKernelType.FULL: _why_not_full, LSTMKernelType.BASIC: _why_not_basic}
_LOWER = {LSTMKernelType.FULL: _lower_full, LSTMKernelType.BASIC: _lower_basic}


def _why_not_lstm(
    context: LoweringContext, o: LSTMOptions, inputs: Specs, outputs: Specs
) -> str | None:
    return _WHY_NOT[o.kernel_type](context, o, inputs, outputs)


def _lower_lstm(
    context: LoweringContext, o: LSTMOptions, inputs: Specs, outputs: Specs
) -> Function:
    return _LOWER[o.kernel_type](context, o, inputs, outputs)


LSTM = OpRule("LSTM", LSTMOptions, 4, _why_not_lstm, _lower_lstm, variable_inputs)
UNIDIRECTIONAL_SEQUENCE_LSTM = OpRule(
    "UNIDIRECTIONAL_SEQUENCE_LSTM",
    UnidirectionalSequenceLSTMOptions,
    4,
    _why_not_full,
    _lower_unidirectional,
    variable_inputs,
)
BIDIRECTIONAL_SEQUENCE_LSTM = OpRule(
    "BIDIRECTIONAL_SEQUENCE_LSTM",
    BidirectionalSequenceLSTMOptions,
    3,
    _why_not_bidirectional,
    _lower_bidirectional,
    variable_inputs,
)

RULES = table(LSTM, UNIDIRECTIONAL_SEQUENCE_LSTM, BIDIRECTIONAL_SEQUENCE_LSTM)
