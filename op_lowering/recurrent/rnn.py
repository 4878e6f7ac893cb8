"""RNN, its sequences and SVDF; functions that the LSTMs share.

A lowered function gets variable tensors as arrays, and returns their new values after the outputs.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, Generic, Self, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from jaxdelegate.op_lowering.common import small_products_cpu_kernel as small_products
from jaxdelegate.op_lowering.common.basics import scalar
from jaxdelegate.op_lowering.common.derivatives import derived_as
from jaxdelegate.op_lowering.common.downcast import downcast, upcast
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.recurrent import quantized as quantized_recurrent
from jaxdelegate.op_lowering.recurrent.dynamic_range import (
    Matrix,
    is_dynamic_range,
    operands,
    why_not_activation,
    why_not_weights,
)
from jaxdelegate.op_lowering.recurrent.options import (
    BidirectionalSequenceRNNOptions,
    RecurrentOptions,
    RNNOptions,
    SequenceRNNOptions,
    SVDFOptions,
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
    why_not_dtype,
)
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant import eigen, jax_affine
from jaxdelegate.quant.jax_affine import rounded

T = TypeVar("T")  # a cell's tensors: int positions, TensorSpec | None, or arrays
Activate = Callable[[jax.Array], jax.Array]


def _bounded(low: float, high: float) -> Activate:
    def bounded(x: jax.Array) -> jax.Array:
        floor = scalar(low, x)
        return jnp.where(x > floor, jnp.minimum(x, scalar(high, x)), floor)

    return derived_as(bounded, lambda x: lax.clamp(scalar(low, x), x, scalar(high, x)))


# From kernels/internal/portable_tensor_utils.cc: a NaN becomes the lower bound.
_ACTIVATIONS: dict[Act, Activate] = {
    Act.NONE: lambda x: x,
    Act.RELU: _bounded(0, jnp.inf),
    Act.RELU_N1_TO_1: _bounded(-1, 1),
    Act.RELU6: _bounded(0, 6),
    Act.TANH: jnp.tanh,
    Act.SIGN_BIT: lambda x: jnp.signbit(x).astype(x.dtype),
}


@dataclasses.dataclass(frozen=True)
class Functions:
    activate: Activate
    logistic: Activate
    rounded: Activate  # applied to a product before an addition

    @classmethod
    def of(cls, kind: Act, *, dynamic_range: bool) -> Self:
        """The functions of dynamic range cells equal the kernels' bit for bit."""
        if not dynamic_range:
            return cls(_ACTIVATIONS[kind], jax.nn.sigmoid, lambda x: x)
        tanh, logistic = (
            functools.partial(f, arithmetic=jax_affine) for f in (eigen.tanh, eigen.logistic)
        )
        return cls(tanh if kind is Act.TANH else _ACTIVATIONS[kind], logistic, rounded)


def matmul(context: LoweringContext, x: jax.Array, w: jax.Array | Matrix) -> jax.Array:
    """[..., n_in] times the transpose of [n_out, n_in], in the accumulator's dtype."""
    if isinstance(w, Matrix):
        return w.product(x)
    policy = context.precision
    factor = policy.operand_dtype(w.dtype, rows=math.prod(x.shape[:-1]), output_channels=w.shape[0])
    if small_products.may_multiply(context, factor) and small_products.takes(
        x, w, is_transposed=True
    ):
        return small_products.product(x, w, is_transposed=True)
    y = lax.dot_general(
        downcast(x, factor, exactly=policy.rounds_exactly),
        downcast(w, factor, exactly=policy.rounds_exactly),
        (((x.ndim - 1,), (1,)), ((), ())),
        precision=policy.precision(factor),
        preferred_element_type=policy.total(factor),
    )
    return upcast(y, policy.accumulator(w.dtype))


def along_rows(vector: jax.Array, like: jax.Array) -> jax.Array:
    """A vector [n] in the dtype and rank of `like`, [..., n]."""
    return vector.astype(like.dtype).reshape((1,) * (like.ndim - 1) + vector.shape)


def is_time_major(options: Options) -> bool | None:
    """The file's order of time and batch; None: the operator runs one step."""
    return getattr(options, "time_major", None)


def as_steps(x: jax.Array, options: Options) -> jax.Array:
    """An input in the file's order -> [time, batch, ...]. None stays None."""
    time_major = is_time_major(options)
    if x is None or time_major:
        return x
    return x[None] if time_major is None else jnp.swapaxes(x, 0, 1)


def from_steps(y: jax.Array, options: Options) -> jax.Array:
    """[time, batch, ...] -> an output in the file's order."""
    time_major = is_time_major(options)
    if time_major:
        return y
    return y[0] if time_major is None else jnp.swapaxes(y, 0, 1)


def both_directions(
    forward: jax.Array, backward: jax.Array, *, merge: bool
) -> tuple[jax.Array, ...]:
    return (jnp.concatenate([forward, backward], -1),) if merge else (forward, backward)


def results(
    outputs: Sequence[TensorSpec],
    ys: Sequence[jax.Array],
    states: Sequence[TensorSpec],
    new: Sequence[jax.Array],
) -> tuple[jax.Array, ...]:
    """Outputs, then new states, in their tensors' dtypes and shapes."""
    kept = (h.astype(spec.dtype).reshape(spec.shape) for h, spec in zip(new, states, strict=True))
    return (*(y.astype(spec.dtype) for y, spec in zip(ys, outputs, strict=True)), *kept)


def n_rows(spec: TensorSpec) -> int:
    """The first dimension; 0 for a scalar, since rules must not raise."""
    return spec.shape[0] if spec.shape else 0


def row_length(spec: TensorSpec | None) -> int:
    """The last dimension; 0 for a scalar or an absent tensor."""
    return spec.shape[-1] if spec is not None and spec.shape else 0


def why_not_shape(spec: TensorSpec | None, *shape: int) -> str | None:
    if spec is None or spec.shape == shape:
        return None
    return f"{spec.name!r} has shape {list(spec.shape)}, not {list(shape)}"


def why_not_rank(spec: TensorSpec, rank: int) -> str | None:
    if len(spec.shape) == rank:
        return None
    return f"{spec.name!r} has rank {len(spec.shape)}, not {rank}"


def why_not_floats(op: Op[Options]) -> str | None:
    """A reason unless all tensors have the same float dtype and are stored dense."""
    present = [spec for spec in (*op.inputs, *op.outputs) if spec is not None]
    sparse = next((f"{s.name!r} is stored sparse" for s in present if s.sparsity is not None), None)
    one = frozenset([op.inputs[0].dtype])
    others = (why_not_dtype(spec, one) for spec in present)
    return first_reason(sparse, why_not_dtype(op.inputs[0], FLOATS), *others)


def why_not_operands(op: Op[Options], weights: Collection[int]) -> str | None:
    if not is_dynamic_range(op.inputs, weights):
        return why_not_floats(op)
    others = [spec for i, spec in enumerate(op.inputs) if spec is not None and i not in weights]
    return first_reason(
        why_not_weights([spec for i, spec in enumerate(op.inputs) if i in weights]),
        *(why_not_activation(spec) for spec in (*others, *op.outputs)),
    )


def why_not_states(op: Op[Options], *states: int) -> str | None:
    variables = set(variable_inputs(op))
    for i in states:
        if i not in variables:
            return f"input {i} holds state, but is not a variable tensor"
    extra = variables - set(states)
    return f"input {min(extra)} is a variable tensor, but holds no state" if extra else None


def why_not_counts(op: Op[Options], n_inputs: Sequence[int], n_out: int) -> str | None:
    if len(op.inputs) not in n_inputs:
        return f"has {len(op.inputs)} inputs, not {' or '.join(map(str, n_inputs))}"
    return None if len(op.outputs) == n_out else f"has {len(op.outputs)} outputs, not {n_out}"


def why_not_aux(
    x: TensorSpec, aux: TensorSpec | None, forward: TensorSpec | None, backward: TensorSpec | None
) -> str | None:
    if (forward is None) != (backward is None):
        return "one direction has weights for the auxiliary input, the other has none"
    if aux is None:
        return None if forward is None else "has weights for an auxiliary input, but not that input"
    # Without weights, it replaces the backward direction's input.
    return why_not_shape(aux, *x.shape[:2], x.shape[2] if forward is None else row_length(aux))


@dataclasses.dataclass(frozen=True)
class RnnCell(Generic[T]):
    """One direction's tensors."""

    weights: T  # [n_units, n_input]
    recurrent: T  # [n_units, n_units]
    bias: T  # [n_units]
    state: T  # [n_batch, n_units], the last output
    aux: T  # [n_units, n_aux], weights of the auxiliary input; optional


_CELL = RnnCell[int](weights=1, recurrent=2, bias=3, state=4, aux=-1)
_FORWARD = RnnCell[int](weights=1, recurrent=2, bias=3, state=4, aux=10)
_BACKWARD = RnnCell[int](weights=5, recurrent=6, bias=7, state=8, aux=11)
_AUX_INPUT = 9
_CELL_WEIGHTS = (1, 2)
_BOTH_WEIGHTS = (1, 2, 5, 6, 10, 11)


def _read(at: RnnCell[int], tensors: Sequence[Any]) -> RnnCell[Any]:
    return RnnCell(*(None if i < 0 else tensors[i] for i in dataclasses.astuple(at)))


def _why_not_cell(cell: RnnCell[Any], n_batch: int, n_input: int, n_aux: int = 0) -> str | None:
    n_units = n_rows(cell.bias)
    return first_reason(
        why_not_rank(cell.bias, 1),
        why_not_shape(cell.weights, n_units, n_input),
        why_not_shape(cell.recurrent, n_units, n_units),
        why_not_shape(cell.state, n_batch, n_units),
        why_not_shape(cell.aux, n_units, n_aux),
    )


def _why_not_rnn(op: Op[RNNOptions | SequenceRNNOptions]) -> str | None:
    x, time_major = op.inputs[0], is_time_major(op.options)
    reason = first_reason(
        why_not_counts(op, (5,), 1),
        why_not_operands(op, _CELL_WEIGHTS),
        why_not_states(op, _CELL.state),
        why_not_rank(x, 2 if time_major is None else 3),
    )
    batch_axis = 1 if time_major else 0
    return reason or _why_not_cell(_read(_CELL, op.inputs), x.shape[batch_axis], x.shape[-1])


def _sweep(
    context: LoweringContext,
    activate: Activate,
    cell: RnnCell[Any],
    x: jax.Array,
    aux: jax.Array | None = None,
    *,
    reverse: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """[time, n_batch, n_input] -> [time, n_batch, n_units] and the last state.

    Source: RnnBatchStep of kernels/internal/kernel_utils.cc.
    """
    driven = matmul(context, x, cell.weights)
    driven += along_rows(cell.bias, driven)
    if aux is not None:
        driven += matmul(context, aux, cell.aux)

    def step(h: jax.Array, driven_now: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = activate(driven_now + matmul(context, h, cell.recurrent))
        return h, h

    state, y = lax.scan(step, cell.state.astype(driven.dtype), driven, reverse=reverse)
    return y, state


def _activation(op: Op[RecurrentOptions], weights: Collection[int]) -> Activate:
    dynamic_range = is_dynamic_range(op.inputs, weights)
    return Functions.of(op.options.fused_activation_function, dynamic_range=dynamic_range).activate


def _lower_rnn(op: Op[RNNOptions | SequenceRNNOptions]) -> Function:
    activate, prepared = _activation(op, _CELL_WEIGHTS), operands(op)

    def rnn(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        x = as_steps(arrays[0], op.options)
        y, state = _sweep(op.context, activate, _read(_CELL, prepared(arrays)), x)
        y = from_steps(y, op.options)
        return results(op.outputs, [y], [op.inputs[_CELL.state]], [state])

    return rnn


def _why_not_bidirectional(op: Op[BidirectionalSequenceRNNOptions]) -> str | None:
    x, aux = op.inputs[0], optional(op.inputs, _AUX_INPUT)
    reason = first_reason(
        why_not_counts(op, (12,), 1 if op.options.merge_outputs else 2),
        why_not_operands(op, _BOTH_WEIGHTS),
        why_not_states(op, _FORWARD.state, _BACKWARD.state),
        why_not_rank(x, 3),
    )
    if reason:
        return reason
    n_batch, n_aux = x.shape[int(op.options.time_major)], row_length(aux)
    cells = [_read(at, op.inputs) for at in (_FORWARD, _BACKWARD)]
    return first_reason(
        why_not_aux(x, aux, *(cell.aux for cell in cells)),
        *(_why_not_cell(cell, n_batch, x.shape[2], n_aux) for cell in cells),
    )


def _lower_bidirectional(op: Op[BidirectionalSequenceRNNOptions]) -> Function:
    """Source: kernels/bidirectional_sequence_rnn.cc.

    An auxiliary input without weights replaces the input of the backward direction, but only in
    time-major order: in batch-major order, the kernel reads the input in both directions.
    In time-major order, the dynamic range kernel sweeps once for each time step, and keeps the
    states between the sweeps.
    """
    activate, prepared = _activation(op, _BOTH_WEIGHTS), operands(op)
    time_major, has_weights = op.options.time_major, op.inputs[_FORWARD.aux] is not None
    states = op.inputs[_FORWARD.state], op.inputs[_BACKWARD.state]
    repeats = time_major and is_dynamic_range(op.inputs, _BOTH_WEIGHTS)
    n_before = max(op.inputs[0].shape[0] - 1, 0) if repeats else 0

    def bidirectional_sequence_rnn(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        x, aux = (as_steps(arrays[i], op.options) for i in (0, _AUX_INPUT))
        instead = aux is not None and not has_weights and time_major
        shared = aux if has_weights else None
        forward, backward = (_read(at, prepared(arrays)) for at in (_FORWARD, _BACKWARD))

        def sweeps(h: jax.Array, h_back: jax.Array) -> tuple[tuple[jax.Array, jax.Array], ...]:
            there, back = (
                dataclasses.replace(cell, state=state)
                for cell, state in ((forward, h), (backward, h_back))
            )
            return (
                _sweep(op.context, activate, there, x, shared),
                _sweep(op.context, activate, back, aux if instead else x, shared, reverse=True),
            )

        h, h_back = forward.state, backward.state
        if n_before:
            h, h_back = lax.fori_loop(
                0, n_before, lambda _, now: tuple(state for _, state in sweeps(*now)), (h, h_back)
            )
        (y, h), (y_back, h_back) = sweeps(h, h_back)
        ys = both_directions(y, y_back, merge=op.options.merge_outputs)
        ys = tuple(from_steps(y, op.options) for y in ys)
        return results(op.outputs, ys, states, (h, h_back))

    return bidirectional_sequence_rnn


_SVDF_STATE = 4
_SVDF_WEIGHTS = (1, 2)
_SVDF_TIME = 2  # weights over time


def _why_not_svdf(op: Op[SVDFOptions]) -> str | None:
    reason = first_reason(
        why_not_counts(op, (5,), 1),
        quantized_recurrent.why_not_svdf(op)
        if op.inputs[0].is_quantized
        else why_not_operands(op, _SVDF_WEIGHTS),
        why_not_states(op, _SVDF_STATE),
        *(why_not_rank(spec, 2) for spec in op.inputs[:3]),
    )
    if reason:
        return reason
    x, feature, time, bias, state = op.inputs
    (n_filters, n_memory), rank = time.shape, op.options.rank
    if rank < 1 or n_filters % rank or not n_memory:
        return f"{n_filters} filters with {n_memory} steps of memory do not divide into rank {rank}"
    return first_reason(
        why_not_shape(feature, n_filters, x.shape[1]),
        why_not_shape(bias, n_filters // rank),
        why_not_shape(state, x.shape[0], n_memory * n_filters),
    )


def _lower_svdf(op: Op[SVDFOptions]) -> Function:
    step = quantized_recurrent.svdf_step(op) if op.inputs[0].is_quantized else _svdf_step(op)

    def svdf(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        y, memory = step(*arrays)
        return results(op.outputs, [y], [op.inputs[_SVDF_STATE]], [memory])

    return svdf


def _svdf_step(op: Op[SVDFOptions]) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Source: kernels/internal/reference/svdf.h. A filter weights the activations in its memory."""
    (n_filters, n_memory), rank = op.inputs[_SVDF_TIME].shape, op.options.rank
    activate = _activation(op, _SVDF_WEIGHTS)
    prepared = operands(op, dequantized=[_SVDF_TIME])

    def step(*arrays: jax.Array) -> tuple[jax.Array, jax.Array]:  # [N, n_input] -> [N, n_units]
        x, feature, time, bias, state = prepared(arrays)
        now = matmul(op.context, x, feature)
        memory = state.astype(now.dtype).reshape(x.shape[0], n_filters, n_memory)
        memory = jnp.concatenate([memory[:, :, 1:], now[:, :, None]], 2)
        filtered = jnp.sum(memory * time.astype(now.dtype)[None], 2)
        y = jnp.sum(filtered.reshape(x.shape[0], n_filters // rank, rank), 2)
        y = y if bias is None else y + along_rows(bias, y)
        return activate(y), memory

    return step


RULES = table(
    rule("RNN", 3, _why_not_rnn, _lower_rnn, variable_inputs, arity=5),
    rule("UNIDIRECTIONAL_SEQUENCE_RNN", 3, _why_not_rnn, _lower_rnn, variable_inputs, arity=5),
    rule(
        "BIDIRECTIONAL_SEQUENCE_RNN",
        3,
        _why_not_bidirectional,
        _lower_bidirectional,
        variable_inputs,
        arity=9,
    ),
    rule("SVDF", 4, _why_not_svdf, _lower_svdf, variable_inputs, arity=3),
)
