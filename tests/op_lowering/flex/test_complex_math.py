"""Arithmetic of complex numbers and doubles."""

from typing import Any

import numpy as np

from jaxdelegate.testing import Arg, Case, f32, of, value
from tests.op_lowering.flex.test_math import case, number, numbers

INT = np.dtype(np.int32)
DTYPES = (np.float32, np.float64, np.complex64, np.complex128)
UNARY = ("Cos", "Exp", "Log", "Rsqrt", "Sigmoid", "Sin", "Sqrt", "Square", "Tanh")
HOLES = value([[1 + 2j, 0, -1j], [0, 3, 2]], np.complex64)


def reduced(name: str, x: Arg, *axes: int, keep_dims: bool = False) -> Case:
    label = f"{x.value.dtype}-{axes}-{keep_dims}"
    attributes: dict[str, Any] = {"Tidx": INT, "keep_dims": keep_dims}
    return case(name, label, [x, numbers(*axes)], attributes=attributes, accumulated=16)


def product(x: Arg, y: Arg, **attributes: bool) -> Case:
    label = f"{x.value.dtype}-{list(attributes)}"
    return case("MatMul", label, [x, y], attributes=attributes, accumulated=8)


def joined(axis: int, *values: Arg) -> Case:
    attributes: dict[str, Any] = {"Tidx": INT, "N": len(values)}
    label = f"{values[0].value.dtype}-{axis}"
    return case("ConcatV2", label, [*values, number(axis)], attributes=attributes)


STRINGS = value(np.array([[b"a", b""]], object))
CASES = [
    *(case(name, np.dtype(d).name, [of(d, 3, 4, low=0.5)]) for name in UNARY for d in DTYPES),
    *(case("Conj", np.dtype(d).name, [of(d, 3, 4)]) for d in DTYPES[2:]),
    *(case("Pow", np.dtype(d).name, [of(d, 3, 4, low=0.5), of(d, 4)]) for d in DTYPES),
    *(case("DivNoNan", np.dtype(d).name, [of(d, 2, 3), of(d, 3)]) for d in DTYPES[:2]),
    case("DivNoNan", "zeros", [of(np.complex64, 2, 3), HOLES]),
    *(
        case("Angle", np.dtype(d).name, [of(d, 3, 4)], [real], attributes={"Tout": np.dtype(real)})
        for d, real in ((np.complex64, np.float32), (np.complex128, np.float64))
    ),
    *(reduced(name, of(d, 2, 3, 4), -1, 0) for name in ("Mean", "Prod", "Sum") for d in DTYPES),
    reduced("Sum", of(np.complex64, 2, 3), 1, keep_dims=True),
    reduced("Mean", of(np.complex64, 2, 3)),
    product(of(np.complex64, 3, 4), of(np.complex64, 4, 2)),
    product(of(np.complex64, 4, 3), of(np.complex64, 4, 2), transpose_a=True),
    product(of(np.float64, 3, 4), of(np.float64, 2, 4), transpose_b=True),
    product(of(np.int32, 3, 4), of(np.int32, 4, 2)),
    joined(-1, of(np.complex64, 2, 3), of(np.complex64, 2, 1)),
    joined(0, of(np.float64, 2, 3), of(np.float64, 1, 3), of(np.float64, 0, 3)),
]
RUN_TIME = [
    joined(0, STRINGS, STRINGS),
    case("Sum", "axes", [f32(2), value(np.int32([0]))], [np.float32]),
]
IMPOSSIBLE = [
    product(f32(2, 3), f32(2, 3)),
    product(f32(2, 3, 4), f32(4, 2)),
    joined(0, f32(2, 3), f32(2, 4)),
    joined(2, f32(2, 3), f32(2, 3)),
    case("ConcatV2", "axes", [f32(2), f32(2), numbers()]),
    reduced("Sum", f32(2, 3), 2),
]
