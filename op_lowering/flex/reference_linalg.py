"""Inverses and solutions of linear systems (core/kernels/linalg/)."""

import numpy as np

from jaxdelegate.op_lowering.flex.options import FlexMatrixOptions
from jaxdelegate.op_lowering.records.flex import FLEX
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel

_O = FlexMatrixOptions


def inverse_shape(_o: _O, inputs: Specs) -> tuple[Shape | None, ...]:
    shape = inputs[0].shape
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(f"{inputs[0].name!r} {list(shape)} is not of square matrices")
    return (shape,)


def system_shape(o: _O, inputs: Specs) -> tuple[Shape | None, ...]:
    (a,), b = inverse_shape(o, inputs), inputs[1].shape
    if a is None or len(a) != len(b) or a[:-1] != b[:-1]:
        raise ValueError(f"matrices {list(inputs[0].shape)} for right sides {list(b)}")
    return (b,)


def _solved(o: _O, a: Array, b: Array, outputs: Specs) -> tuple[Array]:
    """In float64; a matrix without an inverse is a ValueError."""
    if a.dtype not in (np.float32, np.float64):
        raise TypeError(f"matrices of {a.dtype} are not supported")
    wide = a.astype(np.float64)
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


KERNELS = {
    f"{FLEX}MatrixInverse": Kernel(matrix_inverse, inverse_shape),
    f"{FLEX}MatrixSolve": Kernel(matrix_solve, system_shape),
    f"{FLEX}MatrixTriangularSolve": Kernel(triangular_solve, system_shape),
}
