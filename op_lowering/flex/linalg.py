"""Inverses, solutions of linear systems, decompositions and diagonals (core/kernels/linalg/).

TensorFlow leaves the signs of eigenvectors and singular vectors open: here the largest value of
each is positive.
"""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import solve_triangular

from jaxdelegate.errors import GradientError
from jaxdelegate.op_lowering.common.derivatives import derived_as
from jaxdelegate.op_lowering.common.movement import integers, why_not_moved
from jaxdelegate.op_lowering.flex.options import (
    FlexDecompositionOptions,
    FlexDiagonalOptions,
    FlexLeftDiagonalOptions,
    FlexMatrixOptions,
)
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.rule import (
    Function,
    Op,
    OpRule,
    first_reason,
    table,
    why_not_const,
    why_not_dtype,
    why_not_result,
)
from jaxdelegate.op_lowering.spec import Shape, TensorSpec

_Op = Op[FlexMatrixOptions]


def _why_not_matrices(op: Op[FlexOptions]) -> str | None:
    a = op.inputs[0]
    return first_reason(
        why_not_dtype(a, np.float32, np.float64),
        *(why_not_result(y, a.dtype) for y in op.outputs),
        None if len(a.shape) >= 2 else f"{a.name!r} {list(a.shape)} is not of matrices",
        f"{a.name!r} {list(a.shape)} has no values" if 0 in a.shape else None,
    )


def _why_not_square(op: Op[FlexOptions]) -> str | None:
    shape = op.inputs[0].shape
    is_square = shape[-1:] == shape[-2:-1]
    reason = f"{op.inputs[0].name!r} {list(shape)} is not of square matrices"
    return _why_not_matrices(op) or (None if is_square else reason)


def _why_not_system(op: _Op) -> str | None:
    a, b = op.inputs[:2]
    fits = len(b.shape) == len(a.shape) and b.shape[:-1] == a.shape[:-1]
    return first_reason(
        _why_not_square(op),
        None if a.dtype == b.dtype else f"{b.name!r} is {b.dtype}, not {a.dtype}",
        None if fits else f"matrices {list(a.shape)} for right sides {list(b.shape)}",
    )


def _lower_inverse(op: _Op) -> Function:
    """A matrix that has no inverse is an error of TensorFlow's; here the result has no meaning."""
    adjoint = op.options.adjoint
    return lambda a: (jnp.linalg.inv(a.mT if adjoint else a),)


def _lower_solve(op: _Op) -> Function:
    adjoint = op.options.adjoint
    return lambda a, b: (jnp.linalg.solve(a.mT if adjoint else a, b),)


def _lower_triangular(op: _Op) -> Function:
    lower, adjoint = op.options.lower, op.options.adjoint

    def solve(a: jax.Array, b: jax.Array) -> tuple[jax.Array]:
        return (solve_triangular(a, b, trans="C" if adjoint else "N", lower=lower),)

    return solve


def _rule(name: str, arity: int) -> OpRule[FlexMatrixOptions]:
    lowers = {
        "MatrixInverse": _lower_inverse,
        "MatrixSolve": _lower_solve,
        "MatrixTriangularSolve": _lower_triangular,
    }
    why_not = _why_not_square if arity == 1 else _why_not_system
    return OpRule(f"{FLEX}{name}", FlexMatrixOptions, 1, why_not, lowers[name], arity=arity)


# ---- Cholesky, MatrixDeterminant, Qr, SelfAdjointEigV2, Svd


def _lower_cholesky(_op: Op[FlexOptions]) -> Function:
    """The upper triangle is not read. Without a decomposition the values are NaN."""
    return lambda a: (lax.linalg.cholesky(_mirrored(a), symmetrize_input=False),)


def _mirrored(a: jax.Array) -> jax.Array:
    """The lower triangle on both sides."""
    return jnp.tril(a) + jnp.tril(a, -1).mT


def _lower_determinant(_op: Op[FlexOptions]) -> Function:
    return lambda a: (jnp.linalg.det(a),)


def _lower_qr(op: Op[FlexDecompositionOptions]) -> Function:
    is_full = op.options.full_matrices
    return lambda a: tuple(lax.linalg.qr(a, full_matrices=is_full))


def _lower_eigenvectors(op: Op[FlexDecompositionOptions]) -> Function:
    """The upper triangle is not read."""
    shape, wanted = op.outputs[1].shape, op.options.compute_v

    def decompose(a: jax.Array) -> tuple[jax.Array, jax.Array]:
        vectors, values = lax.linalg.eigh(_mirrored(a), symmetrize_input=False)
        return values, vectors * _signs(vectors) if wanted else jnp.zeros(shape, a.dtype)

    return decompose


def _signs(vectors: jax.Array) -> jax.Array:
    """That of the largest value of each column."""
    sizes = jnp.abs(vectors)
    is_largest = sizes == jnp.max(sizes, -2, keepdims=True)
    # Of booleans, because JAX cannot lower that of float64 for a caller without 64-bit types.
    largest = lax.argmax(is_largest, vectors.ndim - 2, np.int32)[..., None, :]
    return jnp.where(jnp.take_along_axis(vectors, largest, -2) < 0, -1, 1).astype(vectors.dtype)


def _lower_svd(op: Op[FlexDecompositionOptions]) -> Function:
    o, nothing, triple = op.options, op.outputs[1].shape, _triple(op)

    def svd(a: jax.Array) -> tuple[jax.Array, ...]:
        """NaN for a matrix with infinity, which LAPACK never finishes, or NaN."""
        is_finite = jnp.isfinite(a).all((-2, -1), keepdims=True)
        found = decompose(jnp.where(is_finite, a, jnp.zeros_like(a)))
        kept = is_finite[..., 0], is_finite, is_finite
        return tuple(
            jnp.where(k, y, jnp.full_like(y, np.nan)) if y.ndim else y
            for y, k in zip(found, kept, strict=True)
        )

    def decompose(a: jax.Array) -> tuple[jax.Array, ...]:
        if not o.compute_uv:
            s = lax.linalg.svd(a, compute_uv=False)
            return s, jnp.zeros(nothing, a.dtype), jnp.zeros(nothing, a.dtype)
        u, s, v = triple(a)
        n, v = s.shape[-1], v.mT
        signs = _signs(u)[..., :n]
        rest = _signs(v)[..., n:]  # vectors of no singular value
        return s, u * _signs(u), v * jnp.concatenate([signs, rest], -1)

    return svd


def _triple(op: Op[FlexDecompositionOptions]) -> Callable[[jax.Array], Sequence[jax.Array]]:
    """The decomposition; full matrices have a derivative only if there is no vector to add."""
    is_full, (rows, columns) = op.options.full_matrices, op.inputs[0].shape[-2:]

    def triple(a: jax.Array) -> Sequence[jax.Array]:
        return tuple(lax.linalg.svd(a, full_matrices=is_full))

    def refuse(_a: jax.Array) -> NoReturn:
        raise GradientError(
            f"FlexSvd: full_matrices adds vectors to those of a {rows} by {columns} matrix that "
            f"are not unique, so the result has no derivative"
        )

    return derived_as(triple, refuse) if is_full and rows != columns else triple


# ---- diagonals


def _why_not_band(k: TensorSpec, rows: int, columns: int) -> str | None:
    reason = why_not_const(k) or why_not_dtype(k, np.int32)
    if reason:
        return reason
    band = integers(k)
    fits = len(band) in (1, 2) and -rows < band[0] <= band[-1] < columns
    return None if fits else f"diagonals {list(band)} of matrices [{rows}, {columns}]"


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


def _why_not_diagonals(op: Op[FlexDiagonalOptions]) -> str | None:
    x, k, padding = op.inputs[:3]
    reason = first_reason(
        why_not_moved(op.context, x, padding, op.outputs[0]),
        None if len(x.shape) >= 2 else f"{x.name!r} {list(x.shape)} is not of matrices",
        _why_not_one(padding),
    )
    return reason or _why_not_band(k, *x.shape[-2:])


def _why_not_one(padding: TensorSpec) -> str | None:
    return None if padding.shape in ((), (1,)) else f"{padding.name!r} is not one number"


def _lower_diagonals(op: Op[FlexDiagonalOptions]) -> Function:
    (*_, rows, columns), shape = op.inputs[0].shape, op.outputs[0].shape
    row, column, inside = _places(integers(op.inputs[1]), op.options.align, rows, columns)

    def diagonals(x: jax.Array, _k: jax.Array, padding: jax.Array) -> tuple[jax.Array]:
        found = x[..., np.clip(row, 0, rows - 1), np.clip(column, 0, columns - 1)]
        return (jnp.where(inside, found, jnp.asarray(padding).reshape(())).reshape(shape),)

    return diagonals


# ---- MatrixDiag: diagonals, the first and the last one, rows, columns, padding
# ---- MatrixSetDiag: matrices, diagonals, the first and the last one


def _why_not_placed(diagonals: TensorSpec, k: TensorSpec, matrices: TensorSpec) -> str | None:
    if len(matrices.shape) < 2:
        return f"{matrices.name!r} {list(matrices.shape)} is not of matrices"
    *batch, rows, columns = matrices.shape
    reason = _why_not_band(k, rows, columns)
    if reason:
        return reason
    first, last = integers(k)[0], integers(k)[-1]
    longest = max(_size(n, rows, columns) for n in range(first, last + 1))
    wanted = (*batch, *([last - first + 1] if first < last else []), longest)
    fits = diagonals.shape == wanted
    return None if fits else f"{diagonals.name!r} is {list(diagonals.shape)}, not {list(wanted)}"


def _placed(
    diagonals: jax.Array, k: TensorSpec, align: str, others: jax.Array, shape: Shape
) -> jax.Array:
    """Matrices of a shape: with these diagonals, and other values around."""
    row, column, inside = _places(integers(k), align, *shape[-2:])
    source, is_placed = np.zeros(shape[-2:], np.int32), np.zeros(shape[-2:], bool)
    source[row[inside], column[inside]] = np.flatnonzero(inside)
    is_placed[row[inside], column[inside]] = True
    found = jnp.asarray(diagonals).reshape(*shape[:-2], inside.size)[..., source]
    return jnp.where(jnp.broadcast_to(is_placed, shape), found, jnp.broadcast_to(others, shape))


def _why_not_matrices_of(op: Op[FlexDiagonalOptions]) -> str | None:
    x, k, *_, padding = op.inputs[:5]
    reason = why_not_moved(op.context, x, padding, op.outputs[0]) or _why_not_one(padding)
    return reason or _why_not_placed(x, k, op.outputs[0])


def _lower_matrices_of(op: Op[FlexDiagonalOptions]) -> Function:
    k, align, shape = op.inputs[1], op.options.align, op.outputs[0].shape

    def matrices(x: jax.Array, *rest: jax.Array) -> tuple[jax.Array]:
        return (_placed(x, k, align, jnp.reshape(rest[-1], ()), shape),)

    return matrices


def _why_not_set(op: Op[FlexDiagonalOptions]) -> str | None:
    x, diagonals, k = op.inputs[:3]
    reason = why_not_moved(op.context, x, diagonals, op.outputs[0])
    return reason or _why_not_placed(diagonals, k, x)


def _lower_set(op: Op[FlexDiagonalOptions]) -> Function:
    k, align, shape = op.inputs[2], op.options.align, op.inputs[0].shape
    return lambda x, diagonals, _k: (_placed(diagonals, k, align, x, shape),)


def _of_diagonals(name: str, why_not: Any, lower: Any, arity: int) -> tuple[OpRule[Any], ...]:
    """The rules of an operator's second and third version, which differ in their options."""
    return tuple(
        OpRule(f"{FLEX}{name}{suffix}", options, 1, why_not, lower, arity=arity)
        for suffix, options in (("V2", FlexLeftDiagonalOptions), ("V3", FlexDiagonalOptions))
    )


RULES = table(
    _rule("MatrixInverse", 1),
    _rule("MatrixSolve", 2),
    _rule("MatrixTriangularSolve", 2),
    OpRule(f"{FLEX}Cholesky", FlexOptions, 1, _why_not_square, _lower_cholesky),
    OpRule(f"{FLEX}MatrixDeterminant", FlexOptions, 1, _why_not_square, _lower_determinant),
    *_of_diagonals("MatrixDiag", _why_not_matrices_of, _lower_matrices_of, 5),
    *_of_diagonals("MatrixDiagPart", _why_not_diagonals, _lower_diagonals, 3),
    *_of_diagonals("MatrixSetDiag", _why_not_set, _lower_set, 3),
    OpRule(f"{FLEX}Qr", FlexDecompositionOptions, 1, _why_not_matrices, _lower_qr, results=2),
    OpRule(
        f"{FLEX}SelfAdjointEigV2",
        FlexDecompositionOptions,
        1,
        _why_not_square,
        _lower_eigenvectors,
        results=2,
    ),
    OpRule(f"{FLEX}Svd", FlexDecompositionOptions, 1, _why_not_matrices, _lower_svd, results=3),
)
