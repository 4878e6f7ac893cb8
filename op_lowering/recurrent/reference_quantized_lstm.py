"""The LSTMs in integers, step by step as in the kernels."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.recurrent.options import LSTMOptions, UnidirectionalSequenceLSTMOptions
from jaxdelegate.op_lowering.recurrent.reference_rnn import (
    as_steps,
    check_dtypes,
    from_steps,
    with_states,
)
from jaxdelegate.op_lowering.spec import Specs, TensorSpec
from jaxdelegate.quant import fixed_math
from jaxdelegate.quant.fixed_point import (
    multiply_by_quantized_multiplier,
    rescale,
    rounding_divide_by_pot,
    saturate,
    saturating_add,
    saturating_rounding_doubling_high_mul,
    wide,
    wrap,
)
from jaxdelegate.quant.multiplier import checked_log2, quantize_multiplier
from jaxdelegate.reference.kernel import Array
from jaxdelegate.reference.quantization import scale_of, steps_of, zero_point_of

_Options = LSTMOptions | UnidirectionalSequenceLSTMOptions
_INT8, _INT16, _INT32 = np.dtype(np.int8), np.dtype(np.int16), np.dtype(np.int32)
_INPUT, _FORGET, _CELL, _OUTPUT = range(4)
_N_INTERMEDIATES = 5  # the sums of the four gates, then the output before a projection

# The inputs, in order: activations, weights and recurrent weights of four gates, three peepholes,
# four biases, projection weights and bias, output state, cell state, four layer norms.
_DTYPES = (
    *(np.int8,) * 9,
    *(np.int16,) * 3,
    *(np.int32,) * 4,
    np.int8,
    np.int32,
    np.int8,
    np.int16,
    *(np.int16,) * 4,
)
_WEIGHTS, _RECURRENT, _BIAS, _PROJECTION, _HIDDEN, _STATE, _NORM = 1, 5, 12, 16, 18, 19, 20
_PEEPHOLE_OF = {_INPUT: 9, _FORGET: 10, _OUTPUT: 11}


@dataclasses.dataclass(frozen=True, eq=False)
class _Product:
    w: Array  # int8 [n_out, n_in]
    b: Array  # int32 [n_out]; includes the term of the vectors' zero point
    multiplier: int
    shift: int

    @classmethod
    def of(cls, w: Array, b: Array | None, offset: int, real: np.floating) -> "_Product":
        """`offset` is added to the vectors."""
        share = w.sum(axis=1, dtype=np.int64) * offset + (0 if b is None else b)
        return cls(w, wrap(share, _INT32), *quantize_multiplier(float(real)))

    def __call__(self, x: Array) -> Array:
        total = x.astype(np.int32) @ self.w.astype(np.int32).T + self.b
        return wide(multiply_by_quantized_multiplier(total, self.multiplier, self.shift))


@dataclasses.dataclass(frozen=True, eq=False)
class _Norm:
    """PortableApplyLayerNorm on int16 rows."""

    w: Array  # int16 [n_cell]
    b: Array  # int32 [n_cell]
    multiplier: int
    shift: int
    least_variance: int

    def __call__(self, x: Array) -> Array:
        n = x.shape[1]
        x = wide(x)
        mean = _quotient(x.sum(axis=1, keepdims=True) * 1024, n)
        squares = np.square(x).sum(axis=1, keepdims=True)
        variance = _quotient(squares * ((1 << 20) // n) - mean * mean, 1 << 20)
        variance = np.where(variance < 1, self.least_variance, variance)
        inverse, shift = fixed_math.inverse_sqrt(wrap(variance, _INT32))
        y = multiply_by_quantized_multiplier(wrap(1024 * x - mean, _INT32), inverse, shift)
        y = wide(wrap(wide(y) * self.w + self.b, _INT32))
        y = _quotient(np.where(y > 0, y + 512, y - 512), 1024)
        y = multiply_by_quantized_multiplier(wrap(y, _INT32), self.multiplier, self.shift)
        return saturate(y, _INT16)


def _quotient(x: Array, y: int) -> Array:
    """Truncated as in C++."""
    z: Array = np.sign(x) * (np.abs(x) // y)
    return z


class Cell:
    """LstmStepInteger8x8_16 of kernels/lstm_eval.cc."""

    def __init__(
        self,
        o: _Options,
        inputs: Specs,
        outputs: Specs,
        arrays: tuple[Any, ...],
        between: Specs,
        rows_at_once: int,
    ) -> None:
        """PopulateQuantizedLstmParams8x8_16 of kernels/lstm.cc.

        `between` has the specs of the intermediate tensors; the kernel processes
        `rows_at_once` rows of the batch together.
        """
        check_dtypes(inputs, _DTYPES)
        if len(between) != _N_INTERMEDIATES or between[4] is None:
            raise TypeError(
                f"{len(between)} intermediate tensors: the kernel for 16-bit gates has "
                f"{_N_INTERMEDIATES}"
            )
        missing = 24 - len(inputs)
        self._specs: tuple[Any, ...] = (*inputs, *[None] * missing)
        self._arrays = (*arrays, *[None] * missing)
        self.n_cell, self.n_output = self._arrays[_RECURRENT + _OUTPUT].shape
        self._state_exponent = _state_exponent(inputs[_STATE])
        self._rows_at_once = rows_at_once
        self._is_coupled = self._arrays[_WEIGHTS] is None  # CIFG
        self._gates = {
            gate: self._gate(gate, self._gate_scale(gate, between))
            for gate in range(int(self._is_coupled), 4)
        }
        self._state_clip = _steps(o.cell_clip, scale_of(inputs[_STATE]), _INT16)
        self._output_clip = _steps(o.proj_clip, scale_of(outputs[0]), _INT8)
        self._set_output(between[4])

    def _gate_scale(self, gate: int, between: Specs) -> np.float32:
        has_norm = self._arrays[_NORM + _FORGET] is not None
        return scale_of(between[gate]) if has_norm else np.float32(2**-12)

    def _gate(self, gate: int, y_scale: np.float32) -> Callable[[Array, Array, Array], Array]:
        """A gate as a function of input, last output and cell state; int16 Q3.12 -> Q0.15."""
        norm, bias = self._norm(gate), self._arrays[_BIAS + gate]
        products = [
            self._product(_WEIGHTS + gate, 0, None if norm else bias, y_scale),
            self._product(_RECURRENT + gate, _HIDDEN, None, y_scale),
        ]
        peephole = self._peephole(gate, y_scale)
        activate = fixed_math.tanh if gate == _CELL else fixed_math.logistic

        def run(x: Array, h: Array, c: Array) -> Array:
            total = saturate(products[0](x), _INT16)
            total = saturate(total + products[1](h), _INT16)
            total = saturate(total + peephole(c), _INT16)
            y: Array = activate(norm(total) if norm else total, 3)
            return y

        return run

    def _product(self, w: int, x: int, bias: Array | None, y_scale: np.float32) -> _Product:
        real = scale_of(self._specs[w]) * scale_of(self._specs[x]) / y_scale
        return _Product.of(self._arrays[w], bias, -zero_point_of(self._specs[x]), real)

    def _peephole(self, gate: int, y_scale: np.float32) -> Callable[[Array], Array]:
        """The cell state's term in a gate (VectorBatchVectorCwiseProductAccumulate).

        The kernel steps through rows of n_output values although a row has n_cell: with a
        projection, it multiplies weights by cells of other columns and rows and skips the last.
        """
        at = _PEEPHOLE_OF.get(gate)
        if at is None or self._arrays[at] is None:
            return np.zeros_like
        if self.n_output > self.n_cell:
            raise TypeError("with peepholes, the kernel reads beyond a projection to more outputs")
        real = 2.0**self._state_exponent * float(scale_of(self._specs[at])) / float(y_scale)
        scaling = quantize_multiplier(float(np.float32(real)))
        n_rows = self._rows_at_once
        walked = np.zeros(n_rows * self.n_cell, np.int32)
        walked[: n_rows * self.n_output] = np.tile(self._arrays[at][: self.n_output], n_rows)
        w = walked.reshape(n_rows, self.n_cell)
        return lambda c: wide(multiply_by_quantized_multiplier(c.astype(np.int32) * w, *scaling))

    def _norm(self, gate: int) -> _Norm | None:
        w = self._arrays[_NORM + gate]
        if w is None:
            return None
        scale = scale_of(self._specs[_NORM + gate])
        multiplier, shift = quantize_multiplier(float(scale))
        guard = max(1, int(np.float32(10000) * scale))
        return _Norm(w, self._arrays[_BIAS + gate], multiplier, shift + 12, guard)

    def _set_output(self, hidden: TensorSpec) -> None:
        """Scales of the output before and after a projection; before, -zero point is added."""
        w, state = self._arrays[_PROJECTION], self._specs[_HIDDEN]
        zero_point = zero_point_of(hidden)
        real = np.float32(2.0**-15 / float(scale_of(hidden)) * 2.0**-15)
        self._hidden_scaling = quantize_multiplier(float(real))
        self._hidden_offset = zero_point if w is None else -zero_point
        self._output_zero_point = zero_point_of(state)
        self._project = None
        if w is not None:
            real = scale_of(self._specs[_PROJECTION]) * scale_of(hidden) / scale_of(state)
            self._project = _Product.of(w, self._arrays[_PROJECTION + 1], zero_point, real)

    def step(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        """Output int8 [n_batch, n_output] and cell state int16 [n_batch, n_cell]."""
        forget = self._gates[_FORGET](x, h, c)
        update = 32767 - forget if self._is_coupled else self._gates[_INPUT](x, h, c)
        proposal = self._gates[_CELL](x, h, c)
        c = saturating_add(
            _times(forget, c, 15), _times(update, proposal, 30 + self._state_exponent)
        )
        c = _clip(c, self._state_clip)
        shown = self._gates[_OUTPUT](x, h, c)
        shown = shown.astype(np.int32) * fixed_math.tanh(c, 15 + self._state_exponent)
        hidden = wide(multiply_by_quantized_multiplier(shown, *self._hidden_scaling))
        h = saturate(hidden + self._hidden_offset, _INT8)
        if self._project is not None:
            h = saturate(self._project(h) + self._output_zero_point, _INT8)
            h = _clip(h, self._output_clip)
        return h, c


def _state_exponent(state: TensorSpec) -> int:
    """The cell state's scale as a power of two, with 0 to 6 integer bits (as PortableApplyTanh)."""
    exponent, is_power = checked_log2(float(scale_of(state)))
    if not is_power or not -15 <= exponent <= -9:
        raise TypeError(f"{state.name!r} must have a scale of 2**-15 to 2**-9")
    return exponent


def _steps(limit: float, scale: np.float32, dtype: np.dtype) -> int:
    """A clip in steps, truncated; 0: no clip."""
    with np.errstate(over="ignore"):
        return int(np.minimum(np.float32(limit) / scale, np.iinfo(dtype).max)) if limit > 0 else 0


def _clip(x: Array, limit: int) -> Array:
    return np.clip(x, -limit, limit) if limit > 0 else x


def _times(a: Array, b: Array, shift: int) -> Array:
    """PortableCwiseMul: the rounded product of int16 values, times 2**-shift."""
    return wrap(rounding_divide_by_pot(a.astype(np.int32) * b, shift), _INT16)


def lstm(
    o: _Options, inputs: Specs, outputs: Specs, *arrays: Any, intermediates: Specs
) -> tuple[Array, ...]:
    """kernels/lstm.cc, kernels/unidirectional_sequence_lstm.cc."""
    x = as_steps(o, arrays[0])
    rows_at_once = x.shape[1] if getattr(o, "time_major", True) else 1
    cell = Cell(o, inputs, outputs, arrays, intermediates, rows_at_once)
    y, h, c = _sequence(cell, x, *arrays[_HIDDEN : _STATE + 1])
    return with_states(inputs, outputs, [from_steps(o, y)], {_HIDDEN: h, _STATE: c})


def _sequence(cell: Cell, x: Array, h: Any, c: Any) -> tuple[Array, Array, Array]:
    n_time, n_batch = x.shape[:2]
    h, c = h.reshape(n_batch, cell.n_output), c.reshape(n_batch, cell.n_cell)
    y = np.empty((n_time, n_batch, cell.n_output), x.dtype)
    for t in range(n_time):
        h, c = cell.step(x[t], h, c)
        y[t] = h
    return y, h, c


# --- The basic kernel, in uint8 ---

_BASIC_DTYPES = (np.uint8, np.uint8, np.uint8, np.int32, np.int16)
_STATE_BITS = 4  # integer bits of the cell state
_ACTIVATION_ZERO_POINT = 128


def basic(
    inputs: Specs, outputs: Specs, x: Array, h: Array, w: Array, b: Array, c: Array
) -> tuple[Array, ...]:
    """LstmCell of kernels/internal/reference/lstm_cell.h: gates in Q3.12, the cell state in Q4.11.

    It assumes activations in [-1, 1) and reads only the bias's scale.
    """
    check_dtypes(inputs, _BASIC_DTYPES)
    exponent, is_power = checked_log2(float(scale_of(outputs[1])))
    if not is_power or 15 + exponent != _STATE_BITS:
        raise TypeError(f"{outputs[1].name!r} must have a scale of 2**-11")
    joined = np.concatenate([x, h], axis=1)
    steps = joined.astype(np.int32) - _ACTIVATION_ZERO_POINT
    total = steps @ steps_of(w, inputs[2]).T + b
    scaling = quantize_multiplier(4096 * float(scale_of(inputs[3])))
    gates = saturate(_rescale_upwards(total, *scaling), _INT16)
    update, proposal, forget, shown = np.split(gates, 4, axis=1)
    times = saturating_rounding_doubling_high_mul
    added = times(fixed_math.logistic(update, 3), fixed_math.tanh(proposal, 3))
    c = saturating_add(rescale(added, 0, _STATE_BITS), times(fixed_math.logistic(forget, 3), c))
    y = times(fixed_math.logistic(shown, 3), fixed_math.tanh(rescale(c, _STATE_BITS, 3), 3))
    y = np.clip(rounding_divide_by_pot(y, 8), -128, 127) + _ACTIVATION_ZERO_POINT
    return with_states(inputs, outputs, [y, c, joined, gates], {1: y, 4: c})


def _rescale_upwards(x: Array, multiplier: int, shift: int) -> Array:
    """int64: multiply_by_quantized_multiplier, but ties of its second rounding go upwards.

    LiteRT runs LstmCell on ruy's kernels with both of its resolvers, and they round this way.
    """
    left, right = max(shift, 0), max(-shift, 0)
    y = wide(saturating_rounding_doubling_high_mul(wrap(wide(x) << left, _INT32), multiplier))
    return (y + ((1 << right) >> 1)) >> right
