"""Inverses, solutions of linear systems, decompositions and diagonals (core/kernels/linalg/)."""

import numpy as np

from jaxdelegate.op_lowering.flex.options import (
    FlexDecompositionOptions,
    FlexDiagonalOptions,
    FlexMatrixOptions,
)
from jaxdelegate.op_lowering.flex.reference_named import named
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.reference.kernel import Array, Kernel
from jaxdelegate.reference.movement import ints

_O = FlexMatrixOptions


def _matrix_shape(spec: TensorSpec) -> Shape:
    if len(spec.shape) < 2:
        raise ValueError(f"{spec.name!r} {list(spec.shape)} is not of matrices")
    return spec.shape


def inverse_shape(_o: FlexOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    shape = _matrix_shape(inputs[0])
    if shape[-1] != shape[-2]:
        raise ValueError(f"{inputs[0].name!r} {list(shape)} is not of square matrices")
    return (shape,)


def system_shape(o: _O, inputs: Specs) -> tuple[Shape | None, ...]:
    (a,), b = inverse_shape(o, inputs), inputs[1].shape
    if a is None or len(a) != len(b) or a[:-1] != b[:-1]:
        raise ValueError(f"matrices {list(inputs[0].shape)} for right sides {list(b)}")
    return (b,)


def _wide(a: Array) -> Array:
    if a.dtype not in (np.float32, np.float64):
        raise TypeError(f"matrices of {a.dtype} are not supported")
    return a.astype(np.float64)


def _solved(o: _O, a: Array, b: Array, outputs: Specs) -> tuple[Array]:
    """In float64; a matrix without an inverse is a ValueError."""
    wide = _wide(a)
    try:
        y = np.linalg.solve(np.swapaxes(wide, -1, -2) if o.adjoint else wide, b)
    except np.linalg.LinAlgError as error:
        raise ValueError(f"a matrix has no inverse: {error}") from error
    return (y.astype(outputs[0].dtype),)


def matrix_inverse(o: _O, _inputs: Specs, outputs: Specs, a: Array) -> tuple[Array]:
    return _solved(o, a, np.broadcast_to(np.eye(a.shape[-1]), a.shape), outputs)


def matrix_solve(o: _O, _inputs: Specs, outputs: Specs, a: Array, b: Array) -> tuple[Array]:
    return _solved(o, a, b, outputs)


def triangular_solve(o: _O, _inputs: Specs, outputs: Specs, a: Array, b: Array) -> tuple[Array]:
    """The other triangle is not read."""
    return _solved(o, np.tril(a) if o.lower else np.triu(a), b, outputs)


# ---- Cholesky, MatrixDeterminant, Qr, SelfAdjointEigV2, Svd


def cholesky(_o: FlexOptions, _inputs: Specs, outputs: Specs, a: Array) -> tuple[Array]:
    """A row after the other; NaN where a root has no value."""
    a = _wide(a)
    y = np.zeros_like(a)
    with np.errstate(invalid="ignore", divide="ignore"):
        for i in range(a.shape[-1]):
            for j in range(i + 1):
                left = a[..., i, j] - np.sum(y[..., i, :j] * y[..., j, :j], axis=-1)
                y[..., i, j] = np.sqrt(left) if i == j else left / y[..., j, j]
    return (y.astype(outputs[0].dtype),)


def determinant_shape(o: FlexOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    inverse_shape(o, inputs)
    return (inputs[0].shape[:-2],)


def determinant(_o: FlexOptions, _inputs: Specs, outputs: Specs, a: Array) -> tuple[Array]:
    return (np.asarray(np.linalg.det(_wide(a)), outputs[0].dtype),)


def qr_shape(o: FlexDecompositionOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    *batch, m, n = _matrix_shape(inputs[0])
    k = m if o.full_matrices else min(m, n)
    return (*batch, m, k), (*batch, k, n)


def qr(o: FlexDecompositionOptions, _inputs: Specs, outputs: Specs, a: Array) -> tuple[Array, ...]:
    found = np.linalg.qr(_wide(a), mode="complete" if o.full_matrices else "reduced")
    return tuple(y.astype(spec.dtype) for y, spec in zip(found, outputs, strict=True))


def eigen_shape(o: FlexDecompositionOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """Vectors that are not computed are one number, as in TensorFlow."""
    inverse_shape(o, inputs)
    shape = inputs[0].shape
    return shape[:-1], shape if o.compute_v else ()


def eigen(
    o: FlexDecompositionOptions, _inputs: Specs, outputs: Specs, a: Array
) -> tuple[Array, Array]:
    """Ascending, of the matrix whose lower triangle is given."""
    values, vectors = np.linalg.eigh(_wide(a), UPLO="L")
    vectors = vectors * _signs(vectors) if o.compute_v else np.zeros(())
    return values.astype(outputs[0].dtype), vectors.astype(outputs[1].dtype)


def _signs(vectors: Array) -> Array:
    """That of the largest value of each column."""
    high, low = (f(vectors, axis=-2, keepdims=True, initial=0) for f in (np.max, np.min))
    return np.where(-low > high, -1, 1)


def svd_shape(o: FlexDecompositionOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    *batch, m, n = _matrix_shape(inputs[0])
    k = min(m, n)
    if not o.compute_uv:
        return (*batch, k), (), ()
    left, right = (m, n) if o.full_matrices else (k, k)
    return (*batch, k), (*batch, m, left), (*batch, n, right)


def svd(o: FlexDecompositionOptions, _inputs: Specs, outputs: Specs, a: Array) -> tuple[Array, ...]:
    """`a` is u @ diag(s) @ v.T; NaN for a matrix with infinity, which LAPACK never finishes."""
    is_finite = np.isfinite(a).all((-2, -1), keepdims=True)
    found = _decomposed(o, outputs, np.where(is_finite, a, 0))
    kept = (is_finite[..., 0], is_finite, is_finite)
    return tuple(
        np.where(k, y, np.nan).astype(y.dtype) if y.ndim else y
        for y, k in zip(found, kept, strict=True)
    )


def _decomposed(o: FlexDecompositionOptions, outputs: Specs, a: Array) -> tuple[Array, ...]:
    if not o.compute_uv:
        values = np.linalg.svd(_wide(a), compute_uv=False)
        return values.astype(a.dtype), *(np.zeros((), a.dtype) for _ in range(2))
    u, s, v = np.linalg.svd(_wide(a), full_matrices=o.full_matrices)
    v, n = np.swapaxes(v, -1, -2), s.shape[-1]
    signs = np.concatenate([_signs(u[..., :n]), _signs(v[..., n:])], axis=-1)
    u = u * _signs(u)
    return tuple(y.astype(f.dtype) for y, f in zip((s, u, v * signs), outputs, strict=True))


# ---- MatrixDiagPart, MatrixDiag, MatrixSetDiag


def diagonals_shape(_o: FlexDiagonalOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    *batch, rows, columns = _matrix_shape(inputs[0])
    if inputs[1].const is None:
        return (None,)
    first, last = _band(np.asarray(inputs[1].const), rows, columns)
    return ((*batch, *_of_band(first, last, rows, columns)),)


def _of_band(first: int, last: int, rows: int, columns: int) -> Shape:
    """The shape of the diagonals of one matrix."""
    longest = max(_length(k, rows, columns) for k in range(first, last + 1))
    return (last - first + 1, longest) if first < last else (longest,)


def _band(k: Array, rows: int, columns: int) -> tuple[int, int]:
    band = ints(k)
    if len(band) not in (1, 2) or not -rows < band[0] <= band[-1] < columns:
        raise ValueError(f"diagonals {band} of [{rows}, {columns}]")
    return band[0], band[-1]


def _length(k: int, rows: int, columns: int) -> int:
    return min(rows + min(k, 0), columns - max(k, 0))


def diagonals(
    o: FlexDiagonalOptions, _inputs: Specs, outputs: Specs, x: Array, k: Array, padding: Array
) -> tuple[Array]:
    """Upper diagonals first; shorter ones are padded on the side that `align` leaves."""
    first, last = _band(k, *x.shape[-2:])
    shape = outputs[0].shape
    y = np.full((*x.shape[:-2], last - first + 1, shape[-1]), padding.reshape(()), x.dtype)
    for i, offset in enumerate(range(last, first - 1, -1)):
        values = np.diagonal(x, offset, -2, -1)
        y[..., i, _part(o, offset, values.shape[-1], shape[-1])] = values
    return (y.reshape(shape),)


def _part(o: FlexDiagonalOptions, offset: int, size: int, longest: int) -> slice:
    """The values of a diagonal among those of the longest."""
    above, below = (side == "RIGHT" for side in o.align.split("_"))
    start = longest - size if (above if offset >= 0 else below) else 0
    return slice(start, start + size)


def matrices_shape(_o: FlexDiagonalOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """The smallest matrices that have the diagonals, or of the sizes that are not -1."""
    if any(spec.const is None for spec in inputs[1:4]):
        return (None,)
    k, (rows,), (columns,) = (ints(np.asarray(spec.const)) for spec in inputs[1:4])
    shape = inputs[0].shape
    least_rows, least_columns = shape[-1] - min(k[-1], 0), shape[-1] + max(k[0], 0)
    if rows == columns == -1:
        rows = columns = max(least_rows, least_columns)
    rows, columns = (m if n == -1 else n for m, n in ((least_rows, rows), (least_columns, columns)))
    first, last = _band(np.asarray(k), rows, columns)
    if shape[-2 if first < last else -1 :] != _of_band(first, last, rows, columns):
        raise ValueError(f"diagonals {list(shape)} for {k} of [{rows}, {columns}]")
    return ((*shape[: -2 if first < last else -1], rows, columns),)


def matrices_of(
    o: FlexDiagonalOptions, _i: Specs, outputs: Specs, x: Array, k: Array, *rest: Array
) -> tuple[Array]:
    """Matrices with these diagonals, and the last of `rest` around them."""
    y = np.full(outputs[0].shape, rest[-1].reshape(()), x.dtype)
    return with_diagonals(o, _i, outputs, y, x, k)


def with_diagonals_shape(o: FlexDiagonalOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    x, diagonal, k = inputs[:3]
    (shape,) = diagonals_shape(o, (x, k))
    if shape not in (None, diagonal.shape):
        raise ValueError(f"diagonals {list(diagonal.shape)} for {list(shape)}")
    return (x.shape,)


def with_diagonals(
    o: FlexDiagonalOptions, _i: Specs, _outputs: Specs, x: Array, diagonal: Array, k: Array
) -> tuple[Array]:
    """The values of `x`, except on these diagonals."""
    y, (first, last) = x.copy(), _band(k, *x.shape[-2:])
    each = diagonal if first < last else diagonal[..., None, :]
    for i, offset in enumerate(range(last, first - 1, -1)):
        n = np.arange(_length(offset, *x.shape[-2:]))
        part = _part(o, offset, len(n), diagonal.shape[-1])
        y[..., n + max(-offset, 0), n + max(offset, 0)] = each[..., i, part]
    return (y,)


KERNELS = named(
    {
        f"{FLEX}Cholesky": Kernel(cholesky, inverse_shape),
        f"{FLEX}MatrixDeterminant": Kernel(determinant, determinant_shape),
        **{
            f"{FLEX}{name}{version}": kernel
            for name, kernel in (
                ("MatrixDiag", Kernel(matrices_of, matrices_shape)),
                ("MatrixDiagPart", Kernel(diagonals, diagonals_shape)),
                ("MatrixSetDiag", Kernel(with_diagonals, with_diagonals_shape)),
            )
            for version in ("V2", "V3")
        },
        f"{FLEX}MatrixInverse": Kernel(matrix_inverse, inverse_shape),
        f"{FLEX}MatrixSolve": Kernel(matrix_solve, system_shape),
        f"{FLEX}MatrixTriangularSolve": Kernel(triangular_solve, system_shape),
        f"{FLEX}Qr": Kernel(qr, qr_shape),
        f"{FLEX}SelfAdjointEigV2": Kernel(eigen, eigen_shape),
        f"{FLEX}Svd": Kernel(svd, svd_shape),
    }
)
