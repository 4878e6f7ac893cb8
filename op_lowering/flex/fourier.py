"""Fourier transforms along the last dimensions, and complex numbers (core/kernels/fft_ops.cc)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.basics import why_not_broadcast
from jaxdelegate.op_lowering.common.movement import integers
from jaxdelegate.op_lowering.common.pointwise import why_not_one_dtype
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.rule import (
    Function,
    Op,
    OpRule,
    first_reason,
    table,
    why_not_const,
    why_not_dtype,
    why_not_result,
)
from jaxdelegate.op_lowering.spec import TensorSpec

_Op = Op[FlexOptions]
_COMPLEX: dict[np.dtype, np.dtype] = {
    np.dtype(np.float32): np.dtype(np.complex64),
    np.dtype(np.float64): np.dtype(np.complex128),
}
_REAL = {wide: real for real, wide in _COMPLEX.items()}


def _why_not_rank(x: TensorSpec, rank: int) -> str | None:
    return None if len(x.shape) >= rank else f"{x.name!r} has rank {len(x.shape)}, not {rank}"


def _why_not_lengths(lengths: TensorSpec, rank: int) -> str | None:
    reason = why_not_const(lengths) or why_not_dtype(lengths, np.int32)
    if reason is not None:
        return reason
    sizes = list(integers(lengths))
    fits = len(sizes) == rank and min(sizes) > 0
    return None if fits else f"transform lengths {sizes} are not {rank} positive numbers"


def _complex(name: str, rank: int, *, inverse: bool) -> OpRule[FlexOptions]:
    def why_not(op: _Op) -> str | None:
        x = op.inputs[0]
        return first_reason(
            why_not_dtype(x, np.complex64, np.complex128),
            why_not_result(op.outputs[0], x.dtype),
            _why_not_rank(x, rank),
        )

    def lower(op: _Op) -> Function:
        if 0 in op.outputs[0].shape:
            return lambda x: (x,)
        transform = jnp.fft.ifftn if inverse else jnp.fft.fftn
        return lambda x: (transform(x, axes=range(-rank, 0)),)

    return OpRule(f"{FLEX}{name}", FlexOptions, 1, why_not, lower)


def _real(name: str, rank: int, *, inverse: bool) -> OpRule[FlexOptions]:
    """The last dimension of the real values has its own length: half of the bins say it all."""

    def why_not(op: _Op) -> str | None:
        x = op.inputs[0]
        results = _REAL if inverse else _COMPLEX
        return first_reason(
            why_not_dtype(x, frozenset(results)),
            why_not_result(op.outputs[0], results.get(x.dtype, x.dtype)),
            _why_not_rank(x, rank),
            _why_not_lengths(op.inputs[1], rank),
        )

    def lower(op: _Op) -> Function:
        lengths, (y,) = integers(op.inputs[1]), op.outputs
        if 0 in (*op.inputs[0].shape, *y.shape):
            return lambda *_: (jnp.zeros(y.shape, y.dtype),)
        transform = _inverse_real(lengths) if inverse else _forward_real(lengths)
        return lambda x, _lengths: (transform(x),)

    return OpRule(f"{FLEX}{name}", FlexOptions, 1, why_not, lower, arity=2)


def _forward_real(lengths: tuple[int, ...]) -> Callable[[jax.Array], jax.Array]:
    return lambda x: jnp.fft.rfftn(x, lengths, range(-len(lengths), 0))


def _inverse_real(lengths: tuple[int, ...]) -> Callable[[jax.Array], jax.Array]:
    """Imaginary parts of the first and the middle bin are removed: not every library ignores them.

    They exist after the complex transforms along the other dimensions.
    """
    *others, last = lengths
    n_bins = last // 2 + 1
    is_real = np.isin(np.arange(n_bins), [0, last / 2])

    def transform(x: jax.Array) -> jax.Array:
        x = _fitted(x, (*others, n_bins))
        if others:
            x = jnp.fft.ifftn(x, axes=range(-len(lengths), -1))
        x = jnp.where(jnp.broadcast_to(is_real, x.shape), x.real.astype(x.dtype), x)
        return jnp.fft.irfft(x, last, axis=-1)

    return transform


def _fitted(x: jax.Array, sizes: tuple[int, ...]) -> jax.Array:
    """Cut off, or zeros added, at the end of the last dimensions."""
    kept = [slice(None)] * (x.ndim - len(sizes)) + [slice(n) for n in sizes]
    x = x[tuple(kept)]
    missing = [n - held for n, held in zip(sizes, x.shape[-len(sizes) :], strict=True)]
    return jnp.pad(x, [(0, 0)] * (x.ndim - len(sizes)) + [(0, n) for n in missing])


def _why_not_complex(op: _Op) -> str | None:
    real, imaginary = op.inputs[:2]
    return first_reason(
        why_not_dtype(real, np.float32, np.float64),
        why_not_one_dtype(real, imaginary),
        why_not_result(op.outputs[0], _COMPLEX.get(real.dtype, real.dtype)),
        why_not_broadcast(real.shape, imaginary.shape),
    )


def _lower_complex(_op: _Op) -> Function:
    return lambda real, imaginary: (lax.complex(*jnp.broadcast_arrays(real, imaginary)),)


RULES = table(
    *(
        rule(f"{kind}FFT{'' if rank == 1 else f'{rank}D'}", rank, inverse=kind.startswith("I"))
        for rule, kinds in ((_complex, ("", "I")), (_real, ("R", "IR")))
        for kind in kinds
        for rank in (1, 2, 3)
    ),
    OpRule(f"{FLEX}Complex", FlexOptions, 1, _why_not_complex, _lower_complex, arity=2),
)
