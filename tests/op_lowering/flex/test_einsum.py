"""Einsum."""

import dataclasses

import numpy as np

from jaxdelegate.testing import Arg, Case, f32, of
from tests.op_lowering.flex.test_math import case
from tests.support.dtypes import BF16


def einsum(equation: str, *inputs: Arg) -> Case:
    label = f"{inputs[0].value.dtype}-{equation}"
    attributes = {"equation": equation, "N": len(inputs)}
    return case("Einsum", label, inputs, attributes=attributes, accumulated=64)


X, Y = f32(2, 3, 4), f32(2, 4, 5, seed=1)
CASES = [
    einsum("bij,bjk->bik", X, Y),
    einsum("bij,bjk->kbi", X, Y),
    einsum("...ij,...jk->...ik", f32(2, 1, 3, 4), f32(6, 4, 5)),
    einsum("...ij,jk...->...ki", f32(2, 3, 4), f32(4, 5, 1)),
    einsum("ii->i", f32(4, 4)),
    einsum("bii->b", f32(2, 4, 4)),
    einsum("abc->ca", X),
    einsum("...->...", X),
    einsum("ab,cd->abcd", f32(2, 3), f32(1, 2)),
    einsum("abc,abc->", X, X),
    einsum("bij,bjk->bik", of(BF16, 2, 3, 4), of(BF16, 2, 4, 5)),
    einsum("ij,jk->ik", of(np.int32, 2, 3), of(np.int32, 3, 2)),
    einsum("ij,jk->ik", of(np.complex64, 2, 3), of(np.complex64, 3, 2)),
    einsum("ij,jk->ik", of(np.float64, 2, 0), of(np.float64, 0, 2)),
]
REFUSED = {"is int8, not one of": einsum("i->i", of(np.int8, 3))}
IMPOSSIBLE = [
    einsum("i,i->i", f32(3), f32(1)),
    einsum("i , i -> i", f32(3), f32(3)),
    einsum("ij,jk", X, Y),
    einsum("ij->ij", X, Y),
    einsum("ij->i", X),
    einsum("i1k->i", X),
    einsum("......->...", X),
    einsum("abc->abz", X),
    einsum("abc->aab", X),
    einsum("abc,acd->ab", X, X),
]
MIXED = dataclasses.replace(einsum("abc,abc->", X, of(np.float64, 2, 3, 4)), outputs=[np.float32])
REFUSED["is not float32"] = MIXED
