"""Inverses, solutions of linear systems, decompositions and diagonals."""

import numpy as np
import pytest

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


def of_diagonals(
    label: str, x: Arg, *k: int, rows: int = -1, columns: int = -1, **more: str
) -> Case:
    """MatrixDiagV3; MatrixDiagV2 if no `align` is given."""
    numbers = [const(np.int32(n)) for n in (k if len(k) == 1 else [k], rows, columns)]
    padding = const(np.array(9, x.value.dtype))
    name = "MatrixDiagV3" if more else "MatrixDiagV2"
    return case(name, label, [x, *numbers, padding], attributes=more)


def set_diagonals(label: str, x: Arg, diagonals: Arg, *k: int, **more: str) -> Case:
    """MatrixSetDiagV3; MatrixSetDiagV2 if no `align` is given."""
    name = "MatrixSetDiagV3" if more else "MatrixSetDiagV2"
    band = const(np.int32(k[0] if len(k) == 1 else k))
    return case(name, label, [x, diagonals, band], attributes=more)


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
ALIGNMENTS = ("RIGHT_LEFT", "LEFT_RIGHT", "LEFT_LEFT", "RIGHT_RIGHT")
CASES += [
    case("MatrixDiagPartV2", "band", [f32(3, 4), const(np.int32([-1, 2])), const(np.float32(9))]),
    of_diagonals("main", f32(2, 3), 0),
    of_diagonals("above", of(np.int32, 2, 3), 1),
    of_diagonals("one-of-a-band", f32(2, 3), -1, -1),
    of_diagonals("above", f32(2, 3), 1, align="RIGHT_LEFT"),
    of_diagonals("below", f32(3), -2, align="RIGHT_LEFT"),
    of_diagonals("rows-columns", f32(2), -1, rows=3, columns=4, align="RIGHT_LEFT"),
    of_diagonals("columns", f32(2), -1, columns=3, align="RIGHT_LEFT"),
    of_diagonals("rows", f32(2), 1, rows=3, align="RIGHT_LEFT"),
    *(of_diagonals(align, f32(2, 4, 3), -1, 2, rows=3, align=align) for align in ALIGNMENTS),
    of_diagonals("half", of(np.float16, 2, 3), 0, align="RIGHT_LEFT"),
    set_diagonals("main", f32(2, 3, 4), f32(2, 3), 0),
    set_diagonals("below", f32(4, 3), f32(3), -1, align="RIGHT_LEFT"),
    *(set_diagonals(align, f32(2, 3, 4), f32(2, 4, 3), -1, 2, align=align) for align in ALIGNMENTS),
]
INTEGERS = solver("MatrixInverse", "", [of(np.int32, 2, 2)])
REFUSED = {"is int32, not one of": INTEGERS}
IMPOSSIBLE = [
    decomposition("Cholesky", "", f32(3, 4)),
    decomposition("Qr", "", f32(3)),
    decomposition("Svd", "", f32(3)),
    diagonals("", f32(3, 4), 4),
    diagonals("", f32(3, 4), 1, 0),
    of_diagonals("", f32(2, 3), 0, rows=2),
    of_diagonals("", f32(2), 0, rows=3, columns=4),
    of_diagonals("", f32(2, 3), 0, 2),
    set_diagonals("", f32(3, 4), f32(4), 0),
    set_diagonals("", f32(3), f32(3), 0),
]
STOPPED = {
    "a matrix has no inverse": solver("MatrixInverse", "", [value(np.zeros((2, 2), np.float32))]),
    ("matrices of int32", TypeError): INTEGERS,
}


def placed(case: Case, y: np.ndarray) -> np.ndarray:
    """What tf.linalg.diag's documentation says, value by value: `y` with the diagonals."""
    is_set = "Set" in case.name
    x, k = (a.value for a in case.inputs[int(is_set) :][:2])
    align, low, high = case.options.align, int(np.ravel(k)[0]), int(np.ravel(k)[-1])
    y, (*batch, rows, columns) = y.copy(), y.shape
    each = x if low < high else x[..., None, :]
    for place in np.ndindex(*batch, rows, columns):
        *item, m, n = place
        d = n - m
        if not low <= d <= high:
            continue
        above, below = align.split("_")
        size = min(rows + min(d, 0), columns - max(d, 0))
        offset = each.shape[-1] - size if (above if d >= 0 else below) == "RIGHT" else 0
        y[place] = each[(*item, high - d, n - max(d, 0) + offset)]
    return y


@pytest.mark.parametrize(
    "case", [c for c in CASES if "Diag" in c.name and "Part" not in c.name], ids=str
)
def test_diagonals_are_placed_as_documented(case: Case) -> None:
    (got,) = case.run_reference()
    start = case.inputs[0].value if "Set" in case.name else np.full_like(got, 9)
    np.testing.assert_array_equal(got, placed(case, start))


def test_examples_of_the_documentation() -> None:
    """tf.linalg.diag's."""
    band = value([[[0, 8, 9], [1, 2, 3], [4, 5, 0]], [[0, 2, 3], [6, 7, 9], [9, 1, 0]]], np.float32)
    (got,) = of_diagonals("", band, -1, 1, align="RIGHT_LEFT").run_reference()
    want = [[[1, 8, 9], [4, 2, 9], [9, 5, 3]], [[6, 2, 9], [9, 7, 3], [9, 1, 9]]]
    np.testing.assert_array_equal(got, want)
    one = value([1, 2], np.float32)
    (got,) = of_diagonals("", one, -1, columns=3, align="RIGHT_LEFT").run_reference()
    np.testing.assert_array_equal(got, [[9, 9, 9], [1, 9, 9], [9, 2, 9]])
