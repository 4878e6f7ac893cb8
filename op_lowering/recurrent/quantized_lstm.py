"""The LSTMs in integers: 8-bit activations and weights, 16-bit gates and cell state (8x8_16).

Sources: kernels/lstm_eval.cc (LstmStepInteger8x8_16), kernels/lstm.cc
(PopulateQuantizedLstmParams8x8_16), kernels/internal/reference/portable_tensor_utils.cc.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.integer_products import Piece, matrix_product, moved, to_int8
from jaxdelegate.op_lowering.common.quantization import why_not_raised, zero_point_of
from jaxdelegate.op_lowering.recurrent import rnn
from jaxdelegate.op_lowering.recurrent.lstm_cell import CELL, Cell, Gate, read, why_not_cell
from jaxdelegate.op_lowering.recurrent.options import LSTMOptions, UnidirectionalSequenceLSTMOptions
from jaxdelegate.op_lowering.recurrent.quantized import (
    INT8,
    INT16,
    INT32,
    Scaling,
    integer_dot,
    scale_of,
    side_by_side,
    why_not_integers,
    why_not_scaled,
    why_not_scaled_symmetric,
)
from jaxdelegate.op_lowering.rule import Function, Op, first_reason
from jaxdelegate.op_lowering.spec import Specs, TensorSpec
from jaxdelegate.quant import fixed_math, jax_fixed_point
from jaxdelegate.quant import jax_fixed_point as fixed
from jaxdelegate.quant.multiplier import checked_log2

_Options = LSTMOptions | UnidirectionalSequenceLSTMOptions
_N_INTERMEDIATES, _HIDDEN = 5, 4  # four gates' sums, then the output before a projection
_GATE_BITS = 3  # integer bits of a gate's sum
_SUM_BITS = 12  # fractional bits of a gate's sum
_GATE_SCALE = np.float32(2.0**-_SUM_BITS)
_EXPONENTS = range(-15, -8)  # the cell state's scale: tanh takes 0 to 6 integer bits


# ---- Support


def why_not(op: Op[_Options]) -> str | None:
    x, o, time_major = op.inputs[0], op.options, rnn.is_time_major(op.options)
    reason = first_reason(
        rnn.why_not_counts(op, (20, 24), 1),
        rnn.why_not_states(op, CELL.hidden, CELL.state),
        rnn.why_not_rank(x, 2 if time_major is None else 3),
        None if min(o.cell_clip, o.proj_clip) >= 0 else "a clip is negative",
    )
    if reason:
        return reason
    cell = read(CELL, op.inputs)
    return (
        why_not_cell(cell, x.shape[1 if time_major else 0], x.shape[-1])
        or _why_not_tensors(cell, x, op.outputs[0])
        or _why_not_scales(cell, op.context.intermediates)
        or why_not_raised(lambda: _numbers(op))
    )


def _why_not_tensors(cell: Cell[Any], x: TensorSpec, y: TensorSpec) -> str | None:
    return first_reason(
        why_not_scaled(x, INT8),
        *(_why_not_gate(gate) for gate in cell.gates),
        why_not_scaled_symmetric(cell.projection, INT8),
        why_not_integers(cell.projection_bias, INT32),
        why_not_scaled(cell.hidden, INT8),
        why_not_scaled_symmetric(cell.state, INT16),
        why_not_scaled(y, INT8),
    )


def _why_not_gate(gate: Gate[Any]) -> str | None:
    return first_reason(
        why_not_scaled_symmetric(gate.weights, INT8),
        rnn.why_not_rank(gate.recurrent, 2),
        why_not_scaled_symmetric(gate.recurrent, INT8),
        why_not_scaled_symmetric(gate.peephole, INT16),
        why_not_scaled_symmetric(gate.norm, INT16),
        why_not_integers(gate.bias, INT32),
    )


def _why_not_scales(cell: Cell[Any], between: Specs) -> str | None:
    """A reason from the scales of states and intermediates, or the kernel's out-of-bounds reads."""
    exponent, is_power = checked_log2(float(scale_of(cell.state)))
    if not is_power or exponent not in _EXPONENTS:
        return f"the scale of {cell.state.name!r} is not a power of two from 2**-15 to 2**-9"
    if len(between) != _N_INTERMEDIATES:
        return (
            f"has {len(between)} intermediate tensors, not {_N_INTERMEDIATES}; with 12, LiteRT's "
            "kernel reads beyond its parameters"
        )
    n_cell, n_output = cell.output.recurrent.shape
    if cell.output.peephole is not None and n_output > n_cell:
        return "with peepholes, the kernel reads beyond a projection to more outputs than cells"
    normed = [i for i, g in enumerate(_four(cell)) if g.norm is not None]
    used = [*(between[i] for i in normed), between[_HIDDEN]]
    return first_reason(*(why_not_scaled(spec, spec.dtype) for spec in used))


def _four(cell: Cell[Any]) -> tuple[Gate[Any], ...]:
    return cell.input, cell.forget, cell.cell, cell.output


# ---- Constants of an operator


@dataclasses.dataclass(frozen=True)
class _GateNumbers:
    x: Scaling
    hidden: Scaling
    peephole: Scaling | None
    norm: Scaling | None
    least_variance: int  # replaces 0

    @classmethod
    def of(cls, gate: Gate[Any], cell: Cell[Any], x: TensorSpec, y_scale: np.float32) -> Self:
        """`y_scale` is that of the gate's sum."""
        peephole = norm = None
        variance = 1
        if gate.peephole is not None:
            exponent, _ = checked_log2(float(scale_of(cell.state)))
            real = 2.0**exponent * float(scale_of(gate.peephole)) / float(y_scale)
            peephole = Scaling.of(np.float32(real))
        if gate.norm is not None:
            scale = scale_of(gate.norm)
            norm = Scaling.of(scale, _SUM_BITS)
            variance = max(1, int(np.float32(10000) * scale))
        return cls(
            x=Scaling.of(scale_of(gate.weights) * scale_of(x) / y_scale),
            hidden=Scaling.of(scale_of(gate.recurrent) * scale_of(cell.hidden) / y_scale),
            peephole=peephole,
            norm=norm,
            least_variance=variance,
        )


@dataclasses.dataclass(frozen=True)
class _Numbers:
    gates: tuple[_GateNumbers, ...]  # in the order of Cell.gates
    x_zero_point: int
    h_zero_point: int
    exponent: int  # the cell state's scale is 2**exponent
    hidden: Scaling  # scales the output before a projection
    hidden_zero_point: int
    projection: Scaling | None
    state_clip: int  # 0: no clip
    output_clip: int


@np.errstate(over="ignore")  # Scaling.of refuses infinite factors
def _numbers(op: Op[_Options]) -> _Numbers:
    """Source: PopulateQuantizedLstmParams8x8_16, which rounds every factor to float32."""
    cell, between = read(CELL, op.inputs), op.context.intermediates
    scales = [
        _GATE_SCALE if g.norm is None else scale_of(between[i]) for i, g in enumerate(_four(cell))
    ]
    scales = scales[-len(cell.gates) :]
    hidden, projection = between[_HIDDEN], None
    if cell.projection is not None:
        real = scale_of(cell.projection) * scale_of(hidden) / scale_of(cell.hidden)
        projection = Scaling.of(real)
    return _Numbers(
        gates=tuple(
            _GateNumbers.of(gate, cell, op.inputs[0], scale)
            for gate, scale in zip(cell.gates, scales, strict=True)
        ),
        x_zero_point=zero_point_of(op.inputs[0]),
        h_zero_point=zero_point_of(cell.hidden),
        exponent=checked_log2(float(scale_of(cell.state)))[0],
        hidden=Scaling.of(np.float32(2.0**-15 / float(scale_of(hidden)) * 2.0**-15)),
        hidden_zero_point=zero_point_of(hidden),
        projection=projection,
        state_clip=_steps(op.options.cell_clip, scale_of(cell.state), INT16),
        output_clip=_steps(op.options.proj_clip, scale_of(op.outputs[0]), INT8),
    )


def _steps(limit: float, scale: np.float32, dtype: np.dtype) -> int:
    """A clip in steps of `scale`, truncated and saturated."""
    return int(np.minimum(np.float32(limit) / scale, np.iinfo(dtype).max)) if limit > 0 else 0


@functools.cache
def _table(function: Callable[[np.ndarray, int], np.ndarray], bits: int) -> np.ndarray:
    """The function of every int16, in ascending order."""
    return function(np.arange(-(1 << 15), 1 << 15).astype(INT16), bits)


def _look_up(table: np.ndarray, x: jax.Array) -> jax.Array:
    return jnp.asarray(table).at[x.astype(INT32) + (1 << 15)].get(mode="promise_in_bounds")


# ---- The cell


def lower(op: Op[_Options]) -> Function:
    """One product covers the inputs of all time steps."""
    numbers = _numbers(op)

    def lstm(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        x = rnn.as_steps(arrays[0], op.options)
        rows_at_once = 1 if rnn.is_time_major(op.options) is False else x.shape[1]
        y, h, c = _sweep(numbers, read(CELL, arrays), x, rows_at_once)
        y = rnn.from_steps(y, op.options)
        return rnn.results(op.outputs, [y], op.inputs[CELL.hidden : CELL.state + 1], [h, c])

    return lstm


def _sweep(
    numbers: _Numbers, cell: Cell[Any], x: jax.Array, rows_at_once: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """[time, n_batch, n_input] -> [time, n_batch, n_output], the last output and cell state."""
    n_cell, n_output = cell.output.recurrent.shape
    driven = [
        _driven(gate, k, x, numbers.x_zero_point)
        for gate, k in zip(cell.gates, numbers.gates, strict=True)
    ]
    peepholes = [_peephole(gate, n_cell, n_output, rows_at_once) for gate in cell.gates]
    recurrence = _recurrence(numbers, cell)
    finish = [
        functools.partial(_finished, gate, k, peephole)
        for gate, k, peephole in zip(cell.gates, numbers.gates, peepholes, strict=True)
    ]
    output = _output(numbers, cell)

    def step(
        carry: tuple[jax.Array, jax.Array], driven_now: list[jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        h, c = carry
        totals = [
            fixed.saturate(fixed.wide(d) + r, INT16)
            for d, r in zip(driven_now, recurrence(h), strict=True)
        ]
        c, shown = _new_state(numbers, finish, totals, c)
        h = output(c, shown)
        return (h, c), h

    h, c = cell.hidden.reshape(-1, n_output), cell.state.reshape(-1, n_cell)
    (h, c), y = lax.scan(step, (h, c), driven)
    return y, h, c


def _driven(gate: Gate[Any], k: _GateNumbers, x: jax.Array, zero_point: int) -> jax.Array:
    """The input's term in a gate, int16 [..., n_cell], with the bias if there is no layer norm."""
    share = -zero_point * jnp.sum(gate.weights, 1, dtype=INT32)
    share = share if gate.norm is not None else share + gate.bias
    return fixed.saturate(k.x(integer_dot(x, gate.weights) + share[None, None]), INT16)


def _recurrence(numbers: _Numbers, cell: Cell[Any]) -> Callable[[jax.Array], list[jax.Array]]:
    """The last output's term in each gate, int64: one product for all of them."""
    together = jnp.concatenate([gate.recurrent for gate in cell.gates])
    share = -numbers.h_zero_point * jnp.sum(together, 1, dtype=INT32)[None]
    n_gates, n_cell = len(cell.gates), cell.output.recurrent.shape[0]
    scaling = side_by_side([k.hidden for k in numbers.gates], [n_cell] * n_gates)
    return lambda h: jnp.split(scaling(integer_dot(h, together) + share), n_gates, 1)


def _peephole(gate: Gate[Any], n_cell: int, n_output: int, n_rows: int) -> jax.Array | None:
    """The weight of each cell, int32 [n_rows, n_cell].

    The kernel steps through rows of n_output values although a row has n_cell: with a projection,
    it multiplies weights by cells of other columns and rows, and skips the last ones.
    """
    if gate.peephole is None:
        return None
    walked = jnp.tile(gate.peephole[:n_output].astype(INT32), n_rows)
    walked = jnp.pad(walked, (0, n_rows * (n_cell - n_output)))
    return walked.reshape(n_rows, n_cell)


def _finished(
    gate: Gate[Any], k: _GateNumbers, peephole: jax.Array | None, total: jax.Array, c: jax.Array
) -> jax.Array:
    if peephole is not None and k.peephole is not None:
        total = fixed.saturate(fixed.wide(total) + k.peephole(c.astype(INT32) * peephole), INT16)
    if k.norm is None:
        return total
    return _normalized(total, gate, k.norm, k.least_variance)


def _normalized(x: jax.Array, gate: Gate[Any], scaling: Scaling, least: int) -> jax.Array:
    """PortableApplyLayerNorm on int16 rows."""
    n = max(x.shape[1], 1)
    x = fixed.wide(x)
    mean = _quotient(jnp.sum(x, 1, keepdims=True) * 1024, n)
    squares = jnp.sum(x * x, 1, keepdims=True)
    variance = _quotient(squares * ((1 << 20) // n) - mean * mean, 1 << 20)
    variance = jnp.where(variance < 1, least, variance)
    inverse, shift = fixed_math.inverse_sqrt(fixed.wrap(variance, INT32), fixed=jax_fixed_point)
    y = fixed.multiply_by_quantized_multiplier(fixed.wrap(1024 * x - mean, INT32), inverse, shift)
    y = fixed.wide(
        y * gate.norm[None].astype(INT32) + gate.bias[None]
    )  # int32 wraps as in the kernel
    y = _quotient(jnp.where(y > 0, y + 512, y - 512), 1024)
    return fixed.saturate(scaling(fixed.wrap(y, INT32)), INT16)


def _quotient(x: jax.Array, y: int) -> jax.Array:
    """Truncated as in C++."""
    return lax.div(x, jnp.full_like(x, y))


def _new_state(
    numbers: _Numbers,
    finish: Sequence[Callable[[jax.Array, jax.Array], jax.Array]],
    totals: Sequence[jax.Array],
    c: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """The new cell state and the activated output gate, both int16 [n_batch, n_cell]."""
    sigmoid, tanh = (_table(f, _GATE_BITS) for f in (fixed_math.logistic, fixed_math.tanh))
    *update, forget, new, output = zip(finish, totals, strict=True)
    keep = _activated(sigmoid, *forget, c)
    take = _activated(sigmoid, *update[0], c) if update else 32767 - keep
    kept = _times(keep, c, 15)
    c_new = fixed.saturating_add(
        kept, _times(take, _activated(tanh, *new, c), 30 + numbers.exponent)
    )
    if numbers.state_clip:
        c_new = jnp.clip(c_new, -numbers.state_clip, numbers.state_clip)
    return c_new, _activated(sigmoid, *output, c_new)


def _activated(
    table: np.ndarray,
    finish: Callable[[jax.Array, jax.Array], jax.Array],
    total: jax.Array,
    c: jax.Array,
) -> jax.Array:
    return _look_up(table, finish(total, c))


def _times(a: jax.Array, b: jax.Array, shift: int) -> jax.Array:
    """The product of int16 values by 2**-shift, ties away from zero (PortableCwiseMul).

    This is rounding_divide_by_pot, with the rounding before the shift: LLVM (as of jaxlib 0.10.2,
    on x86) replaces a product of int16 values that is shifted by more than 16 and truncated to
    int16 by the high half of the product, shifted without its sign.
    """
    product = a.astype(INT32) * b.astype(INT32)
    half = (1 << (shift - 1)) - (product < 0).astype(INT32)
    return ((product + half) >> shift).astype(INT16)


def _output(numbers: _Numbers, cell: Cell[Any]) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """The output, int8 [n_batch, n_output], as a function of cell state and output gate."""
    table = _table(fixed_math.tanh, 15 + numbers.exponent)
    zero_point, share = numbers.hidden_zero_point, None
    if cell.projection is not None:
        share = zero_point * jnp.sum(cell.projection, 1, dtype=INT32)
        share = share if cell.projection_bias is None else share + cell.projection_bias

    def output(c: jax.Array, shown: jax.Array) -> jax.Array:
        product = shown.astype(INT32) * _look_up(table, c).astype(INT32)
        if share is None or numbers.projection is None:
            return fixed.saturate(numbers.hidden(product) + zero_point, INT8)
        h = fixed.saturate(numbers.hidden(product) - zero_point, INT8)  # the kernel's sign
        total = integer_dot(h, cell.projection) + share[None]
        h = fixed.saturate(numbers.projection(total) + numbers.h_zero_point, INT8)
        return jnp.clip(h, -numbers.output_clip, numbers.output_clip) if numbers.output_clip else h

    return output


# ---- The basic kernel, in uint8

_UINT8 = np.dtype(np.uint8)
_STATE_BITS = 4  # integer bits of the cell state
_ACTIVATION_ZERO_POINT = 128


def is_basic(inputs: Specs) -> bool:
    """Whether these five inputs are the uint8 kernel's."""
    return inputs[0].dtype == _UINT8


def why_not_basic(op: Op[LSTMOptions]) -> str | None:
    x, hidden, w, bias, state = op.inputs
    y, state_out, joined, totals = op.outputs
    reason = first_reason(
        *(why_not_integers(spec, _UINT8) for spec in (x, hidden, y, joined)),
        *(why_not_integers(spec, INT16) for spec in (state, state_out, totals)),
        why_not_scaled(w, _UINT8),
        why_not_scaled(bias, INT32),
        why_not_scaled(state_out, INT16),
    )
    if reason:
        return reason
    exponent, is_power = checked_log2(float(scale_of(state_out)))
    if not is_power or 15 + exponent != _STATE_BITS:
        return f"the scale of {state_out.name!r} is not 2**-11"
    return why_not_raised(lambda: _basic_scaling(bias))


def basic_step(inputs: Specs) -> Callable[..., tuple[jax.Array, ...]]:
    """The function from joined activations, weights, bias, cell state to sums, output, new state.

    Source: LstmCell of kernels/internal/reference/lstm_cell.h: gates in Q3.12, the state in Q4.11.
    It assumes activations in [-1, 1) and reads only the bias's scale.
    """
    zero_point = moved(zero_point_of(inputs[2]), _UINT8)
    scaling = _basic_scaling(inputs[3])
    sigmoid, tanh = (_table(f, _GATE_BITS) for f in (fixed_math.logistic, fixed_math.tanh))
    times = fixed.saturating_rounding_doubling_high_mul

    def step(
        joined: jax.Array, w: jax.Array, bias: jax.Array, c: jax.Array
    ) -> tuple[jax.Array, ...]:
        weights = Piece(to_int8(w), zero_point)
        total = matrix_product((Piece(to_int8(joined), 0),), (weights,)) + bias[None]
        totals = fixed.saturate(_rescaled_upwards(total, scaling), INT16)
        take, new, forget, output = jnp.split(totals, 4, 1)
        added = times(_look_up(sigmoid, take), _look_up(tanh, new))
        kept = times(_look_up(sigmoid, forget), c)
        c = fixed.saturating_add(fixed.rescale(added, 0, _STATE_BITS), kept)
        shown = _look_up(tanh, fixed.rescale(c, _STATE_BITS, _GATE_BITS))
        y = fixed.rounding_divide_by_pot(times(_look_up(sigmoid, output), shown), 8)
        return totals, jnp.clip(y, -128, 127) + _ACTIVATION_ZERO_POINT, c

    return step


def _basic_scaling(bias: TensorSpec) -> Scaling:
    return Scaling.of(2**_SUM_BITS * float(scale_of(bias)))


def _rescaled_upwards(x: jax.Array, scaling: Scaling) -> jax.Array:
    """int64: multiply_by_quantized_multiplier, but ties of its second rounding go upwards.

    LiteRT runs LstmCell on ruy's kernels with both of its resolvers, and they round this way.
    """
    left, right = max(scaling.shift, 0), max(-scaling.shift, 0)
    shifted = fixed.wrap(fixed.wide(x) << left, INT32)
    y = fixed.wide(fixed.saturating_rounding_doubling_high_mul(shifted, scaling.multiplier))
    rounded: jax.Array = (y + ((1 << right) >> 1)) >> right
    return rounded
