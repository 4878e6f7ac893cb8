"""RNN, its sequences and SVDF, step by step as in the kernels."""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.recurrent.options import (
    BidirectionalSequenceRNNOptions,
    RecurrentOptions,
    RNNOptions,
    SequenceRNNOptions,
    SVDFOptions,
)
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.quant import affine, eigen
from jaxdelegate.quant.fixed_point import multiply_by_quantized_multiplier, saturate
from jaxdelegate.quant.multiplier import quantize_multiplier
from jaxdelegate.quant.params import tensor_scale, tensor_zero_point
from jaxdelegate.reference.kernel import Array, Folds, Kernel
from jaxdelegate.reference.quantization import scale_of, steps_of, zero_point_of

# ---- SVDF in integers

_DTYPES = (np.int8, np.int8, np.int16, np.int32, np.int16)  # input, feature, time, bias, state


def check_dtypes(inputs: Specs, dtypes: tuple[type, ...]) -> None:
    for spec, dtype in zip(inputs, dtypes, strict=False):
        if spec is not None and spec.dtype != dtype:
            wanted = np.dtype(dtype).name
            raise TypeError(f"{spec.name!r} is {spec.dtype}: the integer kernel takes {wanted}")


def quantized_svdf(
    o: SVDFOptions,
    inputs: Specs,
    outputs: Specs,
    x: Array,
    w_feature: Array,
    w_time: Array,
    b: Array | None,
    state: Array,
) -> tuple[Array, Array]:
    """EvalIntegerSVDF of kernels/internal/reference/svdf.h.

    The kernel requires RELU but does not apply it: the output's range clamps.
    """
    if o.fused_activation_function is not ActivationFunctionType.RELU:
        raise TypeError("the integer kernel takes RELU only")
    check_dtypes(inputs, _DTYPES)
    x_scale, feature_scale, time_scale = map(scale_of, inputs[:3])
    state_scale, y_scale = scale_of(inputs[4]), scale_of(outputs[0])
    n_batch, (n_filters, n_memory) = len(x), w_time.shape
    memory = state.reshape(n_batch, n_filters, n_memory).copy()
    memory[:, :, :-1] = memory[:, :, 1:].copy()
    now = steps_of(x, inputs[0]) @ w_feature.astype(np.int32).T
    scaling = quantize_multiplier(float(x_scale * feature_scale / state_scale))
    memory[:, :, -1] = saturate(multiply_by_quantized_multiplier(now, *scaling), memory.dtype)
    filtered = np.einsum("bfm,fm->bf", memory.astype(np.int32), w_time.astype(np.int32))
    y = filtered.reshape(n_batch, n_filters // o.rank, o.rank).sum(axis=2, dtype=np.int32)
    y = y if b is None else y + b
    scaling = quantize_multiplier(float(state_scale * time_scale / y_scale))
    y = multiply_by_quantized_multiplier(y, *scaling).astype(np.int64) + zero_point_of(outputs[0])
    return saturate(y, outputs[0].dtype), memory


# ---- dynamic range; dynamic_range.py names the sources

_WEIGHTS = (np.dtype(np.int8), np.dtype(np.uint8))


@dataclasses.dataclass(frozen=True, eq=False)
class Matrix:
    """8-bit weights; the vectors that they multiply are quantized on the fly."""

    steps: Array  # int8 [n_out, n_in]
    scale: np.float32
    asymmetric: bool  # whether vectors get an offset

    @property
    def shape(self) -> tuple[int, ...]:
        return self.steps.shape

    @property
    def ndim(self) -> int:
        return self.steps.ndim

    def __len__(self) -> int:
        return len(self.steps)

    def product(self, x: Array) -> Array:
        """float32 [n_batch, n_in] -> [n_batch, n_out] (MatrixBatchVectorMultiplyAccumulate)."""
        w = self.steps.astype(np.int32)
        if self.asymmetric:
            q, factor, offset = affine.asymmetric_quantize(x)
            total = q.astype(np.int32) @ w.T - offset[:, np.newaxis] * w.sum(axis=1)
        else:
            q, factor = affine.symmetric_quantize(x)
            total = q.astype(np.int32) @ w.T
        y: Array = total.astype(np.float32) * (factor * self.scale)[:, np.newaxis]
        return y


def product(x: Array, w: Array | Matrix) -> Array:
    """[n_batch, n_in] times the transpose of [n_out, n_in]."""
    y: Array = w.product(x) if isinstance(w, Matrix) else x @ w.T
    return y


def as_operands(
    o: RecurrentOptions,
    inputs: Specs,
    arrays: tuple[Array | None, ...],
    dequantized: Collection[int] = (),
) -> tuple[Any, ...]:
    """An operator's tensors for `product`: 8-bit matrices as `Matrix`, the others as floats.

    Matrices at the positions `dequantized`, which multiply element by element, become floats too.
    """

    def operand(position: int, spec: TensorSpec | None, array: Array | None) -> Any:
        if spec is None or array is None:
            return None
        if not spec.is_quantized and spec.dtype in FLOATS:
            return array if spec.dtype.itemsize > 2 else array.astype(np.float32)
        scale, steps = _weights(spec, array)
        if array.ndim == 1 or position in dequantized:
            return scale * steps.astype(np.float32)
        return Matrix(steps, scale, o.asymmetric_quantize_inputs)

    return tuple(map(operand, range(len(inputs)), inputs, arrays))


def _weights(spec: TensorSpec, array: Array) -> tuple[np.float32, Array]:
    # The kernels read uint8 weights by their bits, as int8, too.
    q = spec.quantization
    if q is None or not spec.is_quantized or spec.dtype not in _WEIGHTS or q.is_per_channel:
        raise TypeError(
            f"{spec.name!r} is {spec.dtype}: recurrent kernels take floats, and next to them 8-bit "
            "weights with one scale"
        )
    if tensor_zero_point(q):
        raise TypeError(f"{spec.name!r} has a zero point, which dynamic range kernels do not read")
    return np.float32(tensor_scale(q)), array.view(np.int8)


def apply_activation(kind: ActivationFunctionType, x: Array) -> Array:
    """ApplyActivationToVector of kernels/internal/tensor_utils.h; NaN becomes a bound."""
    return _ACTIVATIONS[kind](x)


def _between(low: float, high: float) -> Callable[[Array], Array]:
    return lambda x: np.where(x > low, np.minimum(x, x.dtype.type(high)), x.dtype.type(low))


def _tanh(x: Array) -> Array:
    """The kernels' approximation for float32; exact for float64, which they do not take."""
    return eigen.tanh(x) if x.dtype == np.float32 else np.asarray(np.tanh(x))


_ACTIVATIONS: dict[ActivationFunctionType, Callable[[Array], Array]] = {
    ActivationFunctionType.NONE: lambda x: x,
    ActivationFunctionType.RELU: _between(0, np.inf),
    ActivationFunctionType.RELU_N1_TO_1: _between(-1, 1),
    ActivationFunctionType.RELU6: _between(0, 6),
    ActivationFunctionType.TANH: _tanh,
    ActivationFunctionType.SIGN_BIT: lambda x: np.signbit(x).astype(x.dtype),
}


# ---- the operators


def as_floats(specs: Specs, arrays: tuple[Array | None, ...]) -> tuple[Any, ...]:
    """Half precision becomes float32; None where absent."""
    for spec in specs:
        if spec is not None and (spec.is_quantized or spec.dtype not in FLOATS):
            raise TypeError(f"{spec.name!r} is {spec.dtype}: the kernel takes floats only")
    return tuple(a if a is None or a.dtype.itemsize > 2 else a.astype(np.float32) for a in arrays)


def with_states(
    inputs: Specs, outputs: Specs, ys: list[Array], states: dict[int, Array]
) -> tuple[Array, ...]:
    """Outputs, then the new values of the variable inputs, in their declared dtypes and shapes."""
    variables = [i for i, spec in enumerate(inputs) if spec is not None and spec.is_variable]
    return (
        *(y.astype(spec.dtype) for y, spec in zip(ys, outputs, strict=True)),
        *(states[i].astype(inputs[i].dtype).reshape(inputs[i].shape) for i in variables),
    )


def require_states(inputs: Specs, n_batch: int, sizes: Mapping[int, int]) -> None:
    """Refuse states that do not hold the input's batch, as the kernels' Prepare does.

    `sizes` are each state's elements for one item, by the state's position.
    """
    for position, size in sizes.items():
        state = inputs[position] if position < len(inputs) else None
        if state is not None and math.prod(state.shape) != n_batch * size:
            raise ValueError(
                f"its state {state.name!r} is {list(state.shape)}, expected [{n_batch}, {size}] "
                f"for a batch of {n_batch}"
            )


def batch_of(o: Options, x: TensorSpec) -> int:
    """The batch of a sequence, or of one step."""
    return x.shape[1 if getattr(o, "time_major", False) else 0]


def as_steps(o: Options, x: Array) -> Array:
    """An input in the file's order -> [time, batch, ...]; some operators run one step."""
    time_major = getattr(o, "time_major", None)
    if time_major is None:
        return x[np.newaxis]
    return x if time_major else x.swapaxes(0, 1)


def from_steps(o: Options, y: Array) -> Array:
    """[time, batch, ...] -> an output in the file's order."""
    time_major = getattr(o, "time_major", None)
    if time_major is None:
        (y,) = y
        return y
    return y if time_major else y.swapaxes(0, 1)


def _rnn_step(cell: list[Any], x: Array, h: Array, aux: Array | None = None) -> Array:
    """RnnBatchStep of kernels/internal/kernel_utils.cc, before the activation."""
    w, u, b, *w_aux = cell
    total: Array = b + product(x, w)
    if aux is not None:
        total += product(aux, w_aux[0])
    total += product(h, u)
    return total


# --- RNN, UNIDIRECTIONAL_SEQUENCE_RNN: input, weights, recurrent weights, bias, hidden state ---


def _sequence(
    act: ActivationFunctionType,
    cell: list[Any],
    x: Array,
    h: Array,
    aux: Array | None = None,
    *,
    backward: bool = False,
) -> tuple[Array, Array]:
    """The input is [time, batch, n_input]; outputs have the order of the inputs."""
    y = np.empty((*x.shape[:2], h.shape[1]), x.dtype)
    for t in reversed(range(len(x))) if backward else range(len(x)):
        h = apply_activation(act, _rnn_step(cell, x[t], h, None if aux is None else aux[t]))
        y[t] = h
    return y, h


def rnn_shapes(o: RNNOptions | SequenceRNNOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    require_states(inputs, batch_of(o, inputs[0]), {4: inputs[1].shape[0]})
    return ((*inputs[0].shape[:-1], inputs[1].shape[0]),)


def rnn(
    o: RNNOptions | SequenceRNNOptions, inputs: Specs, outputs: Specs, *arrays: Array | None
) -> tuple[Array, ...]:
    """kernels/basic_rnn.cc, kernels/unidirectional_sequence_rnn.cc."""
    x, *cell, h = as_operands(o, inputs, arrays)
    y, h = _sequence(o.fused_activation_function, cell, as_steps(o, x), h)
    return with_states(inputs, outputs, [from_steps(o, y)], {4: h})


# --- BIDIRECTIONAL_SEQUENCE_RNN: input, (weights, recurrent weights, bias, hidden state) forward
# and backward, auxiliary input, its weights forward and backward ---


def bidirectional_shapes(
    o: BidirectionalSequenceRNNOptions, inputs: Specs
) -> tuple[Shape | None, ...]:
    n_forward, n_backward = inputs[1].shape[0], inputs[5].shape[0]
    require_states(inputs, batch_of(o, inputs[0]), {4: n_forward, 8: n_backward})
    return merged_shapes(inputs, n_forward, n_backward, merge=o.merge_outputs)


def merged_shapes(
    inputs: Specs, n_forward: int, n_backward: int, *, merge: bool
) -> tuple[Shape | None, ...]:
    output_channels = (n_forward + n_backward,) if merge else (n_forward, n_backward)
    return tuple((*inputs[0].shape[:2], n) for n in output_channels)


def bidirectional_sequence_rnn(
    o: BidirectionalSequenceRNNOptions, inputs: Specs, outputs: Specs, *arrays: Array | None
) -> tuple[Array, ...]:
    """kernels/bidirectional_sequence_rnn.cc.

    The auxiliary input has weights in both directions, or it is the backward direction's input; the
    kernel supports the latter only in time-major order, else both directions read the input. In
    time-major order, the dynamic range kernel sweeps once for each time step, and keeps the states
    between the sweeps.
    """
    x, *cells, aux, w_aux_forward, w_aux_backward = as_operands(o, inputs, arrays)
    x, aux = as_steps(o, x), None if aux is None else as_steps(o, aux)
    x_backward = x
    if aux is not None and w_aux_forward is None:
        x_backward, aux = aux if o.time_major else x, None
    (*forward, h), (*backward, h_backward) = cells[:4], cells[4:]
    act = o.fused_activation_function
    sweeps = len(x) if o.time_major and isinstance(forward[0], Matrix) else 1
    for _ in range(max(sweeps, 1)):
        y, h = _sequence(act, [*forward, w_aux_forward], x, h, aux)
        y_backward, h_backward = _sequence(
            act, [*backward, w_aux_backward], x_backward, h_backward, aux, backward=True
        )
    ys = [from_steps(o, y) for y in (y, y_backward)]
    ys = [np.concatenate(ys, axis=2)] if o.merge_outputs else ys
    return with_states(inputs, outputs, ys, {4: h, 8: h_backward})


# --- SVDF: input, feature weights, time weights, bias, activation state ---


def svdf_shapes(o: SVDFOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """Each unit sums `rank` filters."""
    require_states(inputs, inputs[0].shape[0], {4: math.prod(inputs[2].shape)})
    return ((inputs[0].shape[0], inputs[1].shape[0] // o.rank),)


def svdf(o: SVDFOptions, inputs: Specs, outputs: Specs, *arrays: Array | None) -> tuple[Array, ...]:
    """EvalFloatSVDF, EvalHybridSVDF or EvalIntegerSVDF of kernels/internal/reference/svdf.h."""
    if inputs[0].is_quantized:
        y, memory = quantized_svdf(o, inputs, outputs, *arrays)  # type: ignore[arg-type]
        return with_states(inputs, outputs, [y], {4: memory})
    x, w_feature, w_time, b, state = as_operands(o, inputs, arrays, dequantized={2})
    n_batch, (n_filters, n_memory) = len(x), w_time.shape
    memory = state.reshape(n_batch, n_filters, n_memory).copy()
    memory[:, :, :-1] = memory[:, :, 1:].copy()
    memory[:, :, -1] = product(x, w_feature)
    filtered = np.einsum("bfm,fm->bf", memory, w_time)
    y = filtered.reshape(n_batch, n_filters // o.rank, o.rank).sum(axis=2)
    y = y if b is None else y + b
    y = apply_activation(o.fused_activation_function, y)
    return with_states(inputs, outputs, [y], {4: memory})


KERNELS = {
    "RNN": Kernel(rnn, rnn_shapes, Folds.NEVER),
    "UNIDIRECTIONAL_SEQUENCE_RNN": Kernel(rnn, rnn_shapes, Folds.NEVER),
    "BIDIRECTIONAL_SEQUENCE_RNN": Kernel(
        bidirectional_sequence_rnn, bidirectional_shapes, Folds.NEVER
    ),
    "SVDF": Kernel(svdf, svdf_shapes, Folds.NEVER),
}
