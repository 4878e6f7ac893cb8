"""Products of matrices and of tensors, linear systems, decompositions (core/kernels/linalg/)."""

import numpy as np

from jaxdelegate.op_lowering.flex.reference_kernels import kernels
from jaxdelegate.op_lowering.flex.reference_movement import matrix_shape
from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.spec import Specs
from jaxdelegate.reference.kernel import Array, ResultShapes
from jaxdelegate.reference.pointwise import widen

# ---- MatMul


def matmul_shape(o: FlexOptions, inputs: Specs) -> ResultShapes:
    x, y = inputs[0].shape, inputs[1].shape
    left, right = x[::-1] if o.transpose_a else x, y[::-1] if o.transpose_b else y
    if not len(left) == len(right) == 2 or left[1] != right[0]:
        raise ValueError(f"{list(left)} times {list(right)}: expected matrices that fit")
    return ((left[0], right[1]),)


def matmul(o: FlexOptions, x: Array, y: Array) -> Array:
    product: Array = np.matmul(
        widen(x.T if o.transpose_a else x), widen(y.T if o.transpose_b else y)
    )
    return product


# ---- Einsum


def einsum_shape(o: FlexOptions, inputs: Specs) -> ResultShapes:
    terms, result = o.labels([len(spec.shape) for spec in inputs])
    sizes: dict[str, int] = {}
    for term, spec in zip(terms, inputs, strict=True):
        for label, n in zip(term, spec.shape, strict=True):
            known = sizes.setdefault(label, n)
            spreads = label not in o.equation and 1 in (known, n)  # it stands for `...`
            if known != n and not spreads:
                shapes = [list(s.shape) for s in inputs]
                raise ValueError(f"the equation {o.equation!r} does not fit the shapes {shapes}")
            sizes[label] = n if known == 1 else known
    return (tuple(sizes[label] for label in result),)


def einsum(o: FlexOptions, *arrays: Array) -> Array:
    terms, result = o.labels([a.ndim for a in arrays])
    wide = {"f": np.float64, "V": np.float64, "c": np.complex128}
    dtype: np.dtype = np.dtype(wide.get(arrays[0].dtype.kind, np.int64))
    equation = f"{','.join(terms)}->{result}"
    return np.asarray(np.einsum(equation, *(a.astype(dtype) for a in arrays)))


# ---- MatrixInverse, MatrixSolve, MatrixTriangularSolve


def square_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    shape = matrix_shape(inputs[0])
    if shape[-1] != shape[-2]:
        raise ValueError(f"{inputs[0].name!r} {list(shape)} is not of square matrices")
    return (shape,)


def system_shape(o: FlexOptions, inputs: Specs) -> ResultShapes:
    square_shape(o, inputs)
    a, b = inputs[0].shape, inputs[1].shape
    if len(a) != len(b) or a[:-1] != b[:-1]:
        raise ValueError(f"matrices {list(a)} for right sides {list(b)}")
    return (b,)


def _wide(a: Array) -> Array:
    if a.dtype not in (np.float32, np.float64):
        raise TypeError(f"matrices of {a.dtype} are not supported")
    return a.astype(np.float64)


def solve(o: FlexOptions, a: Array, b: Array) -> Array:
    """In float64; a matrix without an inverse is a ValueError."""
    wide = _wide(a)
    try:
        return np.linalg.solve(np.swapaxes(wide, -1, -2) if o.adjoint else wide, b)
    except np.linalg.LinAlgError as error:
        raise ValueError(f"a matrix has no inverse: {error}") from error


def inverse(o: FlexOptions, a: Array) -> Array:
    return solve(o, a, np.broadcast_to(np.eye(a.shape[-1]), a.shape))


def triangular_solve(o: FlexOptions, a: Array, b: Array) -> Array:
    """The other triangle is not read."""
    return solve(o, np.tril(a) if o.lower else np.triu(a), b)


# ---- Cholesky, MatrixDeterminant, Qr, SelfAdjointEigV2, Svd


def cholesky(_o: FlexOptions, a: Array) -> Array:
    """A row after the other; NaN where a root has no value."""
    a = _wide(a)
    y = np.zeros_like(a)
    for i in range(a.shape[-1]):
        for j in range(i + 1):
            left = a[..., i, j] - np.sum(y[..., i, :j] * y[..., j, :j], axis=-1)
            y[..., i, j] = np.sqrt(left) if i == j else left / y[..., j, j]
    return y


def determinant_shape(o: FlexOptions, inputs: Specs) -> ResultShapes:
    square_shape(o, inputs)
    return (inputs[0].shape[:-2],)


def determinant(_o: FlexOptions, a: Array) -> Array:
    return np.asarray(np.linalg.det(_wide(a)))


def qr_shape(o: FlexOptions, inputs: Specs) -> ResultShapes:
    *batch, m, n = matrix_shape(inputs[0])
    k = m if o.full_matrices else min(m, n)
    return (*batch, m, k), (*batch, k, n)


def qr(o: FlexOptions, a: Array) -> tuple[Array, ...]:
    return tuple(np.linalg.qr(_wide(a), mode="complete" if o.full_matrices else "reduced"))


def eigen_shape(o: FlexOptions, inputs: Specs) -> ResultShapes:
    """Vectors that are not computed are one number, as in TensorFlow."""
    square_shape(o, inputs)
    shape = inputs[0].shape
    return shape[:-1], shape if o.compute_v else ()


def eigen(o: FlexOptions, a: Array) -> tuple[Array, Array]:
    """Ascending; the upper triangle is not read."""
    values, vectors = np.linalg.eigh(_wide(a), UPLO="L")
    return values, vectors * _signs(vectors) if o.compute_v else np.zeros(())


def _signs(vectors: Array) -> Array:
    """That of the largest value of each column."""
    high, low = (f(vectors, axis=-2, keepdims=True, initial=0) for f in (np.max, np.min))
    return np.where(-low > high, -1, 1)


def svd_shape(o: FlexOptions, inputs: Specs) -> ResultShapes:
    *batch, m, n = matrix_shape(inputs[0])
    k = min(m, n)
    if not o.compute_uv:
        return (*batch, k), (), ()
    left, right = (m, n) if o.full_matrices else (k, k)
    return (*batch, k), (*batch, m, left), (*batch, n, right)


def svd(o: FlexOptions, a: Array) -> tuple[Array, ...]:
    """`a` is u @ diag(s) @ v.T; NaN for a matrix with infinity, which LAPACK never finishes."""
    is_finite = np.isfinite(a).all((-2, -1), keepdims=True)
    wide = np.where(is_finite, _wide(a), 0)
    if not o.compute_uv:
        s = np.linalg.svd(wide, compute_uv=False)
        return np.where(is_finite[..., 0], s, np.nan), np.zeros(()), np.zeros(())
    u, s, v = np.linalg.svd(wide, full_matrices=o.full_matrices)
    v, n = np.swapaxes(v, -1, -2), s.shape[-1]
    signs = np.concatenate([_signs(u[..., :n]), _signs(v[..., n:])], axis=-1)
    vectors = (np.where(is_finite, y, np.nan) for y in (u * _signs(u), v * signs))
    return np.where(is_finite[..., 0], s, np.nan), *vectors


KERNELS = kernels(
    {
        "Cholesky": (cholesky, square_shape),
        "Einsum": (einsum, einsum_shape),
        "MatMul": (matmul, matmul_shape),
        "MatrixDeterminant": (determinant, determinant_shape),
        "MatrixInverse": (inverse, square_shape),
        "MatrixSolve": (solve, system_shape),
        "MatrixTriangularSolve": (triangular_solve, system_shape),
        "Qr": (qr, qr_shape),
        "SelfAdjointEigV2": (eigen, eigen_shape),
        "Svd": (svd, svd_shape),
    }
)
