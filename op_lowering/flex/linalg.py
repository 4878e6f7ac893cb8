"""Products of matrices and of tensors, linear systems, decompositions (core/kernels/linalg/).

TensorFlow leaves the signs of eigenvectors and singular vectors open: here the largest value of
each is positive.
"""

from collections.abc import Callable, Sequence
from typing import NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import solve_triangular

from jaxdelegate.errors import GradientError
from jaxdelegate.op_lowering.common.derivatives import derived_as
from jaxdelegate.op_lowering.common.pointwise import COMPLEX
from jaxdelegate.op_lowering.common.products import PRODUCT_FLOATS, Arithmetic
from jaxdelegate.op_lowering.common.signature import REAL, REALS, SAME, Input
from jaxdelegate.op_lowering.dtypes import FLOATS, INDICES
from jaxdelegate.op_lowering.flex.signature import rule
from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.rule import Function, Op, table

_Op = Op[FlexOptions]
_NUMBER = Input(FLOATS | COMPLEX | INDICES)
_MANY = 1 << 30  # rows and columns: the product is not a short one


# ---- MatMul


def _lower_matmul(op: _Op) -> Function:
    o, dtype = op.options, op.outputs[0].dtype
    wide = op.context.precision.accumulator(dtype)

    def matmul(x: jax.Array, y: jax.Array) -> tuple[jax.Array]:
        x, y = jnp.asarray(x, wide), jnp.asarray(y, wide)
        x, y = x.T if o.transpose_a else x, y.T if o.transpose_b else y
        return (jnp.matmul(x, y, precision="highest").astype(dtype),)

    return matmul


# ---- Einsum


def _why_not_einsum(op: _Op) -> str | None:
    if any(spec is None for spec in op.inputs):
        return "an input is left out"
    x, *others = op.inputs
    different = next((s for s in others if s.dtype != x.dtype), None)
    return None if different is None else f"{different.name!r} is not {x.dtype}"


def _lower_einsum(op: _Op) -> Function:
    terms, result = op.options.labels([len(spec.shape) for spec in op.inputs])
    terms, ones = _squeezed(op, terms)
    equation, dtype = f"{','.join(terms)}->{result}", op.outputs[0].dtype
    if dtype not in PRODUCT_FLOATS:
        return lambda *arrays: (
            jnp.einsum(equation, *map(jnp.squeeze, arrays, ones), precision="highest"),
        )
    a = Arithmetic.of_dot(op.context, _MANY, _MANY, *op.inputs)

    def einsum(*arrays: jax.Array) -> tuple[jax.Array]:
        operands = [a.reduced(jnp.squeeze(x, axes)) for x, axes in zip(arrays, ones, strict=True)]
        y = jnp.einsum(equation, *operands, precision=a.precision, preferred_element_type=a.total)
        return (y.astype(dtype),)

    return einsum


def _squeezed(op: _Op, terms: list[str]) -> tuple[list[str], list[tuple[int, ...]]]:
    """Without dimensions of one that broadcast to those of another input: jnp.einsum repeats them.

    The second list has the axes of each input that go.
    """
    sizes: dict[str, int] = {}
    for term, spec in zip(terms, op.inputs, strict=True):
        for label, n in zip(term, spec.shape, strict=True):
            sizes[label] = n if sizes.get(label, 1) == 1 else sizes[label]
    axes = [
        tuple(i for i, n in enumerate(spec.shape) if n == 1 != sizes[term[i]])
        for term, spec in zip(terms, op.inputs, strict=True)
    ]
    kept = [
        "".join(label for i, label in enumerate(term) if i not in gone)
        for term, gone in zip(terms, axes, strict=True)
    ]
    return kept, axes


# ---- MatrixInverse, MatrixSolve, MatrixTriangularSolve


def _why_not_empty(op: _Op) -> str | None:
    a = op.inputs[0]
    return f"{a.name!r} {list(a.shape)} has no values" if 0 in a.shape else None


def _lower_inverse(op: _Op) -> Function:
    """A matrix that has no inverse is an error of TensorFlow's; here the result has no meaning."""
    adjoint = op.options.adjoint
    return lambda a: (jnp.linalg.inv(a.mT if adjoint else a),)


def _lower_solve(op: _Op) -> Function:
    adjoint = op.options.adjoint
    return lambda a, b: (jnp.linalg.solve(a.mT if adjoint else a, b),)


def _lower_triangular(op: _Op) -> Function:
    lower, trans = op.options.lower, "C" if op.options.adjoint else "N"
    return lambda a, b: (solve_triangular(a, b, trans=trans, lower=lower),)


# ---- Cholesky, MatrixDeterminant, Qr, SelfAdjointEigV2, Svd


def _lower_cholesky(_op: _Op) -> Function:
    """The upper triangle is not read. Without a decomposition the values are NaN."""
    return lambda a: (lax.linalg.cholesky(_mirrored(a), symmetrize_input=False),)


def _mirrored(a: jax.Array) -> jax.Array:
    """The lower triangle on both sides."""
    return jnp.tril(a) + jnp.tril(a, -1).mT


def _lower_determinant(_op: _Op) -> Function:
    return lambda a: (jnp.linalg.det(a),)


def _lower_qr(op: _Op) -> Function:
    is_full = op.options.full_matrices
    return lambda a: tuple(lax.linalg.qr(a, full_matrices=is_full))


def _lower_eigenvectors(op: _Op) -> Function:
    """The upper triangle is not read."""
    shape, has_vectors = op.outputs[1].shape, op.options.compute_v

    def decompose(a: jax.Array) -> tuple[jax.Array, jax.Array]:
        vectors, values = lax.linalg.eigh(_mirrored(a), symmetrize_input=False)
        return values, vectors * _signs(vectors) if has_vectors else jnp.zeros(shape, a.dtype)

    return decompose


def _signs(vectors: jax.Array) -> jax.Array:
    """That of the largest value of each column."""
    sizes = jnp.abs(vectors)
    is_largest = sizes == jnp.max(sizes, -2, keepdims=True)
    # Of booleans, because JAX cannot lower that of float64 for a caller without 64-bit types.
    largest = lax.argmax(is_largest, vectors.ndim - 2, np.int32)[..., None, :]
    return jnp.where(jnp.take_along_axis(vectors, largest, -2) < 0, -1, 1).astype(vectors.dtype)


def _lower_svd(op: _Op) -> Function:
    o, nothing, triple = op.options, op.outputs[1].shape, _triple(op)

    def svd(a: jax.Array) -> tuple[jax.Array, ...]:
        """NaN for a matrix with infinity, which LAPACK never finishes, or NaN."""
        is_finite = jnp.isfinite(a).all((-2, -1), keepdims=True)
        factors = decompose(jnp.where(is_finite, a, jnp.zeros_like(a)))
        kept = is_finite[..., 0], is_finite, is_finite
        return tuple(
            jnp.where(k, y, jnp.full_like(y, np.nan)) if y.ndim else y
            for y, k in zip(factors, kept, strict=True)
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


def _triple(op: _Op) -> Callable[[jax.Array], Sequence[jax.Array]]:
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


RULES = table(
    rule("Cholesky", [REAL], _lower_cholesky, _why_not_empty),
    rule(
        "Einsum",
        [Input(PRODUCT_FLOATS | REALS | COMPLEX | INDICES)],
        _lower_einsum,
        _why_not_einsum,
    ),
    rule("MatMul", [_NUMBER, SAME], _lower_matmul),
    rule("MatrixDeterminant", [REAL], _lower_determinant, _why_not_empty),
    rule("MatrixInverse", [REAL], _lower_inverse, _why_not_empty),
    rule("MatrixSolve", [REAL, SAME], _lower_solve, _why_not_empty),
    rule("MatrixTriangularSolve", [REAL, SAME], _lower_triangular, _why_not_empty),
    rule("Qr", [REAL], _lower_qr, _why_not_empty, results=[0, 0]),
    rule("SelfAdjointEigV2", [REAL], _lower_eigenvectors, _why_not_empty, results=[0, 0]),
    rule("Svd", [REAL], _lower_svd, _why_not_empty, results=[0, 0, 0]),
)
