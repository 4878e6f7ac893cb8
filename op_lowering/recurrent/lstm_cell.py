"""The LSTM cell of the full kernels: its tensors, when it can be lowered, its sweep over time."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Generic

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.basics import scalar
from jaxdelegate.op_lowering.common.derivatives import straight_through
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.recurrent.dynamic_range import Matrix, joined
from jaxdelegate.op_lowering.recurrent.options import (
    BidirectionalSequenceLSTMOptions,
    LSTMOptions,
    UnidirectionalSequenceLSTMOptions,
)
from jaxdelegate.op_lowering.recurrent.rnn import (
    Functions,
    T,
    along_rows,
    matmul,
    n_rows,
    row_length,
    why_not_shape,
)
from jaxdelegate.op_lowering.rule import LoweringContext, Op, first_reason, optional
from jaxdelegate.op_lowering.spec import Specs, TensorSpec
from jaxdelegate.quant import affine, jax_affine
from jaxdelegate.quant.params import integer_range

LstmOptions = LSTMOptions | UnidirectionalSequenceLSTMOptions | BidirectionalSequenceLSTMOptions
_VARIANCE_GUARD = 1e-8  # PortableMeanStddevNormalization


@dataclasses.dataclass(frozen=True)
class Gate(Generic[T]):
    weights: T  # [n_cell, n_input]
    recurrent: T  # [n_cell, n_output], or [n_cell]: the diagonal of a square matrix
    bias: T  # [n_cell]
    peephole: T  # [n_cell], weights of the cell state; optional
    norm: T  # [n_cell], coefficients of the layer norm; optional
    aux: T  # [n_cell, n_aux], weights of the auxiliary input; optional


@dataclasses.dataclass(frozen=True)
class Cell(Generic[T]):
    """One direction's tensors. Without its tensors (CIFG), the input gate is 1 - forget gate."""

    input: Gate[T]
    forget: Gate[T]
    cell: Gate[T]
    output: Gate[T]
    projection: T  # [n_output, n_cell]; optional
    projection_bias: T  # [n_output]; optional
    hidden: T  # n_batch * n_output values, the last output
    state: T  # n_batch * n_cell values

    @property
    def gates(self) -> tuple[Gate[T], ...]:
        gates = (self.input, self.forget, self.cell, self.output)
        return gates if self.input.weights is not None else gates[1:]


# The tensors' positions among the inputs (kernels/lstm_shared.h, bidirectional_sequence_lstm.cc);
# -1: absent.
CELL = Cell[int](
    # weights, recurrent, bias, peephole, norm, aux
    input=Gate[int](1, 5, 12, 9, 20, -1),
    forget=Gate[int](2, 6, 13, 10, 21, -1),
    cell=Gate[int](3, 7, 14, -1, 22, -1),
    output=Gate[int](4, 8, 15, 11, 23, -1),
    projection=16,
    projection_bias=17,
    hidden=18,
    state=19,
)
FORWARD = Cell[int](
    input=Gate[int](1, 5, 12, 9, -1, 40),
    forget=Gate[int](2, 6, 13, 10, -1, 41),
    cell=Gate[int](3, 7, 14, -1, -1, 42),
    output=Gate[int](4, 8, 15, 11, -1, 43),
    projection=16,
    projection_bias=17,
    hidden=35,
    state=36,
)
BACKWARD = Cell[int](
    input=Gate[int](18, 22, 29, 26, -1, 44),
    forget=Gate[int](19, 23, 30, 27, -1, 45),
    cell=Gate[int](20, 24, 31, -1, -1, 46),
    output=Gate[int](21, 25, 32, 28, -1, 47),
    projection=33,
    projection_bias=34,
    hidden=37,
    state=38,
)


def read(at: Cell[int], tensors: Sequence[Any]) -> Cell[Any]:
    """None for absent tensors."""

    def tensor(i: int) -> Any:
        return tensors[i] if 0 <= i < len(tensors) else None

    def gate(positions: Gate[int]) -> Gate[Any]:
        return Gate(*map(tensor, dataclasses.astuple(positions)))

    return Cell(
        input=gate(at.input),
        forget=gate(at.forget),
        cell=gate(at.cell),
        output=gate(at.output),
        projection=tensor(at.projection),
        projection_bias=tensor(at.projection_bias),
        hidden=tensor(at.hidden),
        state=tensor(at.state),
    )


def weights_of(at: Cell[int], inputs: Specs) -> frozenset[int]:
    """Positions of 8-bit tensors in dynamic range kernels: no biases, norms or diagonals."""
    gates = (at.input, at.forget, at.cell, at.output)
    several = [(gate.weights, gate.peephole, gate.aux) for gate in gates]
    recurrent = [gate.recurrent for gate in gates if _rank(inputs, gate.recurrent) != 1]
    return frozenset([*(i for group in several for i in group), *recurrent, at.projection]) - {-1}


def _rank(inputs: Specs, position: int) -> int | None:
    spec = optional(inputs, position)
    return None if spec is None else len(spec.shape)


def _all_or_none(what: str, *specs: TensorSpec | None) -> str | None:
    present = sum(spec is not None for spec in specs)
    return f"{what} tensors are incomplete" if 0 < present < len(specs) else None


def _why_not_complete(cell: Cell[TensorSpec | None]) -> str | None:
    live, absent = cell.gates, None if len(cell.gates) == 4 else cell.input
    needed = [t for gate in live for t in (gate.weights, gate.recurrent, gate.bias)]
    if any(t is None for t in needed):
        return "a gate lacks its weights, recurrent weights or bias"
    if absent is not None and (absent.recurrent, absent.bias, absent.norm) != (None,) * 3:
        return "the input gate has tensors, but no weights"
    if cell.projection is None and cell.projection_bias is not None:
        return "has a projection bias without projection weights"
    return first_reason(
        _all_or_none("peephole", *(gate.peephole for gate in live if gate is not cell.cell)),
        _all_or_none("layer norm", *(gate.norm for gate in live)),
        _all_or_none("auxiliary weight", *(gate.aux for gate in live)),
    )


def _why_not_gate(
    gate: Gate[Any], n_cell: int, n_input: int, n_output: int, n_aux: int
) -> str | None:
    diagonal = len(gate.recurrent.shape) == 1 and n_cell == n_output
    return first_reason(
        why_not_shape(gate.weights, n_cell, n_input),
        why_not_shape(gate.recurrent, *((n_cell,) if diagonal else (n_cell, n_output))),
        why_not_shape(gate.aux, n_cell, n_aux),
        *(why_not_shape(t, n_cell) for t in (gate.bias, gate.peephole, gate.norm)),
    )


def _why_not_size(spec: TensorSpec, rows: int, columns: int) -> str | None:
    if math.prod(spec.shape) == rows * columns:
        return None
    return f"{spec.name!r} has shape {list(spec.shape)}, not [{rows}, {columns}]"


def why_not_cell(cell: Cell[Any], n_batch: int, n_input: int, n_aux: int = 0) -> str | None:
    incomplete = _why_not_complete(cell)
    if incomplete:
        return incomplete
    n_cell, n_output = n_rows(cell.output.weights), row_length(cell.output.recurrent)
    if cell.projection is None and n_output != n_cell:
        return f"{n_output} outputs of {n_cell} cells need projection weights"
    return first_reason(
        *(_why_not_gate(gate, n_cell, n_input, n_output, n_aux) for gate in cell.gates),
        why_not_shape(cell.projection, n_output, n_cell),
        why_not_shape(cell.projection_bias, n_output),
        _why_not_size(cell.hidden, n_batch, n_output),
        _why_not_size(cell.state, n_batch, n_cell),
    )


def why_not_parameters(o: LstmOptions) -> str | None:
    """A reason if LiteRT refuses the options, or gives undefined results."""
    if o.fused_activation_function is Act.NONE:
        return "without a fused activation, LiteRT's kernel returns what its scratch memory holds"
    return None if min(o.cell_clip, o.proj_clip) >= 0 else "a clip is negative"


def _clipped(x: jax.Array, limit: float) -> jax.Array:
    """PortableCwiseClipping: a limit of 0 does nothing, and NaN becomes the limit."""
    if not limit:
        return x

    def clip(x: jax.Array) -> jax.Array:
        top = scalar(limit, x)
        return jnp.maximum(jnp.where(x < top, x, top), -top)

    clipped: jax.Array = straight_through(clip, -limit, limit)(x)
    return clipped


def _normalized(x: jax.Array) -> jax.Array:
    centered = x - jnp.mean(x, -1, keepdims=True)
    variance = jnp.mean(centered * centered, -1, keepdims=True)
    return centered / jnp.sqrt(variance + scalar(_VARIANCE_GUARD, x))


_OnGrid = Callable[[jax.Array], jax.Array]
_N_BETWEEN = 5  # tensors between the gates of an integer LSTM: the gates' sums, the hidden output


def _grids(context: LoweringContext) -> tuple[_OnGrid, ...]:
    """In the float view of an integer LSTM, the rounding and clamping of those five tensors."""
    between = context.intermediates
    if context.quant_mode != "float_view" or len(between) != _N_BETWEEN:
        return (lambda x: x,) * _N_BETWEEN
    # Before a projection, the kernel uses the hidden output's zero point with the opposite sign.
    return (*map(_grid, between[:4]), _grid(between[4], flipped=True))


def _grid(spec: TensorSpec | None, *, flipped: bool = False) -> _OnGrid:
    if spec is None or spec.quantization is None or not spec.is_quantized:
        return lambda x: x
    quantization, dtype = spec.quantization, spec.dtype
    if flipped:
        quantization = dataclasses.replace(quantization, zero_point=-quantization.zero_point)

    def on_grid(x: jax.Array) -> jax.Array:
        steps = jax_affine.quantize(x.astype(np.float32), quantization, dtype)
        return jax_affine.dequantize(steps, quantization).astype(x.dtype)

    ends = affine.dequantize(np.array(integer_range(dtype), dtype), quantization)
    return straight_through(on_grid, *ends.tolist())


def _finished(
    f: Functions, gate: Gate[Any], total: jax.Array, state: jax.Array, on_grid: _OnGrid
) -> jax.Array:
    if gate.peephole is not None:
        total += f.rounded(along_rows(gate.peephole, total) * state)
    if gate.norm is None:
        return total
    return _normalized(on_grid(total)) * along_rows(gate.norm, total) + along_rows(gate.bias, total)


def _recurrence(
    context: LoweringContext, f: Functions, weights: Sequence[Any], n_time: int
) -> Callable[[jax.Array], list[jax.Array]]:
    """The last output's term in each gate. Several steps justify joining the matrices."""
    if n_time > 1 and all(w.ndim == 2 for w in weights):
        together = joined(weights)
        return lambda h: jnp.split(matmul(context, h, together), len(weights), -1)
    return lambda h: [
        matmul(context, h, w) if w.ndim == 2 else f.rounded(h * along_rows(w, h)) for w in weights
    ]


def _step(
    op: Op[LstmOptions], f: Functions, cell: Cell[Any], totals: Sequence[jax.Array], c: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Output and state of one step, from the gates' sums over their inputs, [n_batch, n_cell]."""
    *grids, hidden_grid = _grids(op.context)
    *update, forget, new, output = totals
    keep = f.logistic(_finished(f, cell.forget, forget, c, grids[1]))
    take = f.logistic(_finished(f, cell.input, update[0], c, grids[0])) if update else 1 - keep
    new = f.activate(_finished(f, cell.cell, new, c, grids[2]))
    c = _clipped(f.rounded(keep * c) + f.rounded(take * new), op.options.cell_clip)
    h = f.logistic(_finished(f, cell.output, output, c, grids[3])) * f.activate(c)
    if cell.projection is not None:
        h = matmul(op.context, hidden_grid(h), cell.projection)
        h = h if cell.projection_bias is None else h + along_rows(cell.projection_bias, h)
        h = _clipped(h, op.options.proj_clip)
    return h, c


def _driven(context: LoweringContext, x: jax.Array, gate: Gate[Any]) -> jax.Array:
    """The input's term in a gate, with the bias unless a layer norm comes first."""
    total = matmul(context, x, gate.weights)
    return total if gate.norm is not None else total + along_rows(gate.bias, total)


def sweep(
    op: Op[LstmOptions],
    cell: Cell[Any],
    x: jax.Array,
    aux: jax.Array | None = None,
    *,
    reverse: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """[time, n_batch, n_input] -> [time, n_batch, n_output], the last output and cell state.

    Source: LstmStepFloat of kernels/lstm_eval.cc; here one product covers the inputs of all steps.
    """
    context, dynamic_range = op.context, isinstance(cell.output.weights, Matrix)
    driven = [_driven(context, x, gate) for gate in cell.gates]
    if aux is not None:
        driven = [d + matmul(context, aux, g.aux) for d, g in zip(driven, cell.gates, strict=True)]
    f = Functions.of(op.options.fused_activation_function, dynamic_range=dynamic_range)
    recurrent = [gate.recurrent for gate in cell.gates]
    recurrence = _recurrence(context, f, recurrent, x.shape[0])

    def step(
        carry: tuple[jax.Array, jax.Array], driven_now: list[jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        h, c = carry
        totals = [d + r for d, r in zip(driven_now, recurrence(h), strict=True)]
        h, c = _step(op, f, cell, totals, c)
        return (h, c), h

    n_batch, wide = x.shape[1], driven[0].dtype
    h = cell.hidden.astype(wide).reshape(n_batch, cell.output.recurrent.shape[-1])
    c = cell.state.astype(wide).reshape(n_batch, cell.output.weights.shape[0])
    (h, c), y = lax.scan(step, (h, c), driven, reverse=reverse)
    return y, h, c
