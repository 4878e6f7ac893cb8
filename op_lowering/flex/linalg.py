"""Inverses and solutions of linear systems (core/kernels/linalg/)."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from jaxdelegate.op_lowering.flex.options import FlexMatrixOptions
from jaxdelegate.op_lowering.records.flex import FLEX
from jaxdelegate.op_lowering.rule import (
    Function,
    Op,
    OpRule,
    first_reason,
    table,
    why_not_dtype,
    why_not_result,
)

_Op = Op[FlexMatrixOptions]


def _why_not_square(op: _Op) -> str | None:
    a = op.inputs[0]
    is_square = len(a.shape) >= 2 and a.shape[-1] == a.shape[-2]
    return first_reason(
        why_not_dtype(a, np.float32, np.float64),
        why_not_result(op.outputs[0], a.dtype),
        None if is_square else f"{a.name!r} {list(a.shape)} is not of square matrices",
    )


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


RULES = table(_rule("MatrixInverse", 1), _rule("MatrixSolve", 2), _rule("MatrixTriangularSolve", 2))
