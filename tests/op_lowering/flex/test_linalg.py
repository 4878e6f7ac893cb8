"""Inverses, solutions of linear systems, decompositions and diagonals."""

import numpy as np

from jaxdelegate.testing import Arg, Case, const, f32, of, value
from tests.op_lowering.flex.test_math import case


def matrices(*shape: int, dtype: type = np.float32) -> Arg:
    """Well-conditioned ones."""
    return value(of(dtype, *shape, low=-0.3, high=0.3).value + np.eye(shape[-1], dtype=dtype))


def solver(name: str, label: str, inputs: list[Arg], **attributes: bool) -> Case:
    return case(name, label, inputs, attributes=attributes, accumulated=64)


UNBOUNDED = np.float32([[[np.inf, 1], [2, 3]], [[4, 1], [2, 3]], [[np.nan, 1], [2, 3]]])
CASES = [
    *(
        solver(name, f"{adjoint}", [matrices(2, 4, 4), f32(2, 4, 3)][:count], adjoint=adjoint)
        for name, count in (("MatrixInverse", 1), ("MatrixSolve", 2))
        for adjoint in (False, True)
    ),
    solver("MatrixInverse", "float64", [matrices(3, 3, dtype=np.float64)]),
    *(
        solver(
            "MatrixTriangularSolve",
            f"{lower}-{adjoint}",
            [matrices(4, 4), f32(4, 2)],
            lower=lower,
            adjoint=adjoint,
        )
        for lower in (False, True)
        for adjoint in (False, True)
    ),
]


def positive(*shape: int, dtype: type = np.float32) -> Arg:
    """Symmetric matrices whose upper triangle holds something else."""
    a = of(dtype, *shape).value
    whole = a @ np.swapaxes(a, -1, -2) + 2 * np.eye(shape[-1], dtype=dtype)
    return value((np.tril(whole) + np.triu(np.ones_like(a), 1)).astype(dtype))


def decomposition(name: str, label: str, a: Arg, **attributes: bool) -> Case:
    outputs = [a.value.dtype] * {"Qr": 2, "SelfAdjointEigV2": 2, "Svd": 3}.get(name, 1)
    return case(name, label, [a], outputs, attributes=attributes, accumulated=1024)


def diagonals(label: str, x: Arg, *k: int, align: str = "RIGHT_LEFT") -> Case:
    band = const(np.array(k[0] if len(k) == 1 else k, np.int32))
    padding = const(np.array(9, x.value.dtype))
    return case("MatrixDiagPartV3", label, [x, band, padding], attributes={"align": align})


# Eigen, TensorFlow's library, chooses other signs of vectors than LAPACK: here the largest value
# of each is positive (LOWERED: not compared with TensorFlow).
LOWERED = [
    decomposition("SelfAdjointEigV2", "vectors", positive(2, 4, 4)),
    *(decomposition("Svd", f"{m}x{n}", f32(2, m, n)) for m, n in ((4, 3), (3, 4), (3, 3))),
    decomposition("Svd", "infinite", value(UNBOUNDED)),
    decomposition("Svd", "full", f32(4, 3), full_matrices=True),
    decomposition("Svd", "float64", of(np.float64, 3, 4), full_matrices=True),
]
CASES += [
    decomposition("Cholesky", "plain", positive(2, 4, 4)),
    decomposition("Cholesky", "float64", positive(3, 3, dtype=np.float64)),
    decomposition("MatrixDeterminant", "plain", matrices(2, 4, 4)),
    decomposition("MatrixDeterminant", "one", f32(3, 1, 1)),
    *(decomposition("Qr", f"{m}x{n}", f32(2, m, n)) for m, n in ((4, 3), (3, 4))),
    decomposition("Qr", "full", f32(4, 3), full_matrices=True),
    decomposition("SelfAdjointEigV2", "values", positive(3, 3), compute_v=False),
    decomposition("Svd", "values", f32(2, 4, 3), compute_uv=False),
    diagonals("main", f32(2, 3, 4), 0),
    diagonals("upper", of(np.int32, 4, 3), 1),
    *(
        diagonals(align, f32(3, 4), -1, 2, align=align)
        for align in ("RIGHT_LEFT", "LEFT_RIGHT", "LEFT_LEFT", "RIGHT_RIGHT")
    ),
]
INTEGERS = solver("MatrixInverse", "", [of(np.int32, 2, 2)])
REFUSED = {"is int32, not one of": INTEGERS}
IMPOSSIBLE = [
    decomposition("Cholesky", "", f32(3, 4)),
    decomposition("Qr", "", f32(3)),
    decomposition("Svd", "", f32(3)),
    diagonals("", f32(3, 4), 4),
    diagonals("", f32(3, 4), 1, 0),
]
STOPPED = {
    "a matrix has no inverse": solver("MatrixInverse", "", [value(np.zeros((2, 2), np.float32))]),
    ("matrices of int32", TypeError): INTEGERS,
}
