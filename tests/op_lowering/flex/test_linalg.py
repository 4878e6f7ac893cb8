"""Inverses and solutions of linear systems."""

import numpy as np

from jaxdelegate.testing import Arg, Case, f32, of, value
from tests.op_lowering.flex.test_math import case


def matrices(*shape: int, dtype: type = np.float32) -> Arg:
    """Well-conditioned ones."""
    return value(of(dtype, *shape, low=-0.3, high=0.3).value + np.eye(shape[-1], dtype=dtype))


def solver(name: str, label: str, inputs: list[Arg], **attributes: bool) -> Case:
    return case(name, label, inputs, attributes=attributes, accumulated=64)


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
INTEGERS = solver("MatrixInverse", "", [of(np.int32, 2, 2)])
REFUSED = {"is int32, not one of": INTEGERS}
STOPPED = {
    "a matrix has no inverse": solver("MatrixInverse", "", [value(np.zeros((2, 2), np.float32))]),
    ("matrices of int32", TypeError): INTEGERS,
}
