"""Fourier transforms along the last dimensions, and complex numbers (core/kernels/fft_ops.cc)."""

import jax.numpy as jnp
from jax import lax

from jaxdelegate.op_lowering.common.movement import integers
from jaxdelegate.op_lowering.common.signature import (
    COMPLEX_OF,
    CONSTANTS32,
    REAL,
    REAL_OF,
    SAME,
    Input,
)
from jaxdelegate.op_lowering.flex.signature import rule
from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.rule import Function, Op, OpRule, table
from jaxdelegate.op_lowering.signal.rule import inverse_real

_Op = Op[FlexOptions]
_COMPLEX = Input(frozenset(REAL_OF))


def _complex(kind: str, rank: int) -> OpRule[FlexOptions]:
    transform = jnp.fft.ifftn if kind == "I" else jnp.fft.fftn

    def lower(op: _Op) -> Function:
        is_empty = 0 in op.outputs[0].shape
        return lambda x: (x if is_empty else transform(x, axes=range(-rank, 0)),)

    return rule(_name(kind, rank), [_COMPLEX], lower)


def _real(kind: str, rank: int) -> OpRule[FlexOptions]:
    """The last dimension of the real values has its own length: half of the bins say it all."""

    def lower(op: _Op) -> Function:
        lengths, (y,) = integers(op.inputs[1]), op.outputs
        if 0 in (*op.inputs[0].shape, *y.shape):
            return lambda *_: (jnp.zeros(y.shape, y.dtype),)
        if kind == "IR":
            return lambda x, _lengths: (inverse_real(x, lengths),)
        return lambda x, _lengths: (jnp.fft.rfftn(x, lengths, range(-rank, 0)),)

    values, result = (_COMPLEX, REAL_OF) if kind == "IR" else (REAL, COMPLEX_OF)
    return rule(_name(kind, rank), [values, CONSTANTS32], lower, results=[result])


def _name(kind: str, rank: int) -> str:
    return f"{kind}FFT{'' if rank == 1 else f'{rank}D'}"


def _lower_complex(_op: _Op) -> Function:
    return lambda real, imaginary: (lax.complex(*jnp.broadcast_arrays(real, imaginary)),)


RULES = table(
    *(_complex(kind, rank) for kind in ("", "I") for rank in (1, 2, 3)),
    *(_real(kind, rank) for kind in ("R", "IR") for rank in (1, 2, 3)),
    rule("Complex", [REAL, SAME], _lower_complex, results=[COMPLEX_OF]),
)
