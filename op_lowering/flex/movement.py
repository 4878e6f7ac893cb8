"""Values that move: copies, rolls, concatenations, gradients of slices, diagonals.

Sources: core/kernels/{concat_op,ensure_shape_op,identity_op,inverse_permutation...}.cc, roll_op.cc,
strided_slice_op.cc, core/kernels/linalg/matrix_{diag,set_diag}_op.cc.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.common import movement
from jaxdelegate.op_lowering.common.pointwise import why_not_one_dtype
from jaxdelegate.op_lowering.common.signature import (
    ANY,
    CONSTANT,
    CONSTANTS,
    CONSTANTS32,
    INDEX,
    MOVED,
    Input,
)
from jaxdelegate.op_lowering.flex.signature import rule
from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.rule import Function, Op, OpRule, first_reason, table, why_not_dtype
from jaxdelegate.op_lowering.spec import Shape, TensorSpec

_Op = Op[FlexOptions]
_MOVABLE, _PADDING = Input(movement.MOVABLE), Input(is_number=True, is_moved=True)


def _lower_same(_op: _Op) -> Function:
    return lambda x: (x,)


# ---- Roll: values, shifts, axes; InvertPermutation


def _why_not_roll(op: _Op) -> str | None:
    x, shifts, axes = op.inputs[:3]
    return first_reason(
        None if shifts.shape == axes.shape and len(axes.shape) < 2 else "shifts and axes differ",
        *(movement.why_not_axis(axis, len(x.shape)) for axis in movement.integers(axes)),
    )


def _lower_roll(op: _Op) -> Function:
    shifts, axes = movement.integers(op.inputs[1]), movement.integers(op.inputs[2])
    return lambda x, *_: (jnp.roll(x, shifts, axes),)


def _why_not_permutation(op: _Op) -> str | None:
    x = op.inputs[0]
    return None if len(x.shape) == 1 else f"{x.name!r} has rank {len(x.shape)}, not 1"


def _lower_permutation(_op: _Op) -> Function:
    """The result for what is not a permutation is an error of TensorFlow's."""
    return lambda x: (jnp.zeros_like(x).at[x].set(jnp.arange(len(x), dtype=x.dtype), mode="drop"),)


# ---- ConcatV2: values, axis


def _why_not_concat(op: _Op) -> str | None:
    *values, axis = op.inputs
    return movement.why_not_present(*op.inputs) or first_reason(
        *(why_not_dtype(spec, movement.MOVABLE) for spec in values),
        *(why_not_one_dtype(values[0], spec) for spec in values[1:]),
        CONSTANT.why_not(axis),
    )


def _lower_concat(op: _Op) -> Function:
    axis = movement.integers(op.inputs[-1])[0]
    return lambda *arrays: (jnp.concatenate(arrays[:-1], axis),)


# ---- StridedSliceGrad: shape, begin, end, strides, gradient


def _why_not_slice(op: _Op) -> str | None:
    shape, *entries = map(movement.integers, op.inputs[:4])
    try:
        part = np.broadcast_to(np.int8(0), shape)[op.options.index(*entries)].shape
    except (ValueError, IndexError) as error:
        return f"a slice of {list(shape)}: {error}"
    dy = op.inputs[4].shape
    return None if part == dy else f"a slice is {list(part)}, its gradient {list(dy)}"


def _lower_slice(op: _Op) -> Function:
    shape, *entries = map(movement.integers, op.inputs[:4])
    index, dtype = op.options.index(*entries), op.outputs[0].dtype
    return lambda *arrays: (jnp.zeros(shape, dtype).at[index].set(arrays[4]),)


# ---- diagonals


def _size(k: int, rows: int, columns: int) -> int:
    return min(rows + min(k, 0), columns - max(k, 0))


def _places(
    band: Sequence[int], align: str, rows: int, columns: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the values of diagonals, the uppermost first, are: rows, columns, and which exist."""
    to_right = align.split("_")
    places = []
    longest = max(_size(k, rows, columns) for k in range(band[0], band[-1] + 1))
    for k in range(band[-1], band[0] - 1, -1):
        i, size = np.arange(longest), _size(k, rows, columns)
        side = to_right[0] if k >= 0 else to_right[-1]
        i = i - (longest - size) if side == "RIGHT" else i
        places.append((i + max(-k, 0), i + max(k, 0), (i >= 0) & (i < size)))
    row, column, inside = (np.stack(kind) for kind in zip(*places, strict=True))
    return row, column, inside


# ---- MatrixDiagPart: matrices, the first and the last diagonal, padding


def _lower_diagonals(op: _Op) -> Function:
    (*_, rows, columns), shape = op.inputs[0].shape, op.outputs[0].shape
    row, column, inside = _places(movement.integers(op.inputs[1]), op.options.align, rows, columns)

    def diagonals(x: jax.Array, _k: jax.Array, padding: jax.Array) -> tuple[jax.Array]:
        values = x[..., np.clip(row, 0, rows - 1), np.clip(column, 0, columns - 1)]
        return (jnp.where(inside, values, jnp.asarray(padding).reshape(())).reshape(shape),)

    return diagonals


# ---- MatrixDiag: diagonals, the first and the last one, rows, columns, padding
# ---- MatrixSetDiag: matrices, diagonals, the first and the last one


def _placed(
    diagonals: jax.Array, k: TensorSpec, align: str, others: jax.Array, shape: Shape
) -> jax.Array:
    """Matrices of a shape: with these diagonals, and other values around."""
    row, column, inside = _places(movement.integers(k), align, *shape[-2:])
    source, is_placed = np.zeros(shape[-2:], np.int32), np.zeros(shape[-2:], bool)
    source[row[inside], column[inside]] = np.flatnonzero(inside)
    is_placed[row[inside], column[inside]] = True
    values = jnp.asarray(diagonals).reshape(*shape[:-2], inside.size)[..., source]
    return jnp.where(jnp.broadcast_to(is_placed, shape), values, jnp.broadcast_to(others, shape))


def _lower_matrices_of(op: _Op) -> Function:
    k, align, shape = op.inputs[1], op.options.align, op.outputs[0].shape
    return lambda x, *rest: (_placed(x, k, align, jnp.reshape(rest[-1], ()), shape),)


def _lower_set(op: _Op) -> Function:
    k, align, shape = op.inputs[2], op.options.align, op.inputs[0].shape
    return lambda x, diagonals, _k: (_placed(diagonals, k, align, x, shape),)


def _diagonal_rules(version: str) -> Sequence[OpRule[FlexOptions]]:
    """The versions differ in their options."""
    diag, part, set_ = (f"Matrix{name}{version}" for name in ("Diag", "DiagPart", "SetDiag"))
    return (
        rule(diag, [MOVED, CONSTANTS32, ANY, ANY, _PADDING], _lower_matrices_of),
        rule(part, [MOVED, CONSTANTS32, _PADDING], _lower_diagonals),
        rule(set_, [MOVED, MOVED, CONSTANTS32], _lower_set),
    )


RULES = table(
    rule("ConcatV2", [ANY, ANY], _lower_concat, _why_not_concat),
    rule("EnsureShape", [MOVED], _lower_same),
    rule("Identity", [ANY], _lower_same),
    rule("InvertPermutation", [INDEX], _lower_permutation, _why_not_permutation),
    rule("Roll", [ANY, CONSTANTS, CONSTANTS], _lower_roll, _why_not_roll),
    rule(
        "StridedSliceGrad", [*[CONSTANTS] * 4, _MOVABLE], _lower_slice, _why_not_slice, results=[4]
    ),
    *_diagonal_rules("V2"),
    *_diagonal_rules("V3"),
)
