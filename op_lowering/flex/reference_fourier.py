"""Fourier transforms along the last dimensions, and complex numbers (core/kernels/fft_ops.cc)."""

from collections.abc import Callable, Sequence

import numpy as np

from jaxdelegate.op_lowering.flex.reference_kernels import constant, kernels
from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.reference.kernel import Array, Function, ResultShapes, Shapes, broadcast_shape
from jaxdelegate.reference.movement import ints

_Transform = Callable[..., Array]


def _batch(x: TensorSpec, rank: int) -> Shape:
    if len(x.shape) < rank:
        raise ValueError(f"{x.name!r} has rank {len(x.shape)}, not {rank} or more")
    return x.shape[:-rank]


def _complex(transform: _Transform, rank: int) -> tuple[Function, Shapes]:
    def shapes(_o: FlexOptions, inputs: Specs) -> ResultShapes:
        _batch(inputs[0], rank)
        return (inputs[0].shape,)

    def run(_o: FlexOptions, x: Array) -> Array:
        return transform(x.astype(np.complex128), axes=range(-rank, 0)) if x.size else x

    return run, shapes


def _lengths(lengths: Sequence[int], rank: int) -> Sequence[int]:
    if len(lengths) != rank or min(lengths) < 1:
        raise ValueError(f"transform lengths {list(lengths)} are not {rank} positive numbers")
    return lengths


def _real(transform: _Transform, rank: int) -> tuple[Function, Shapes]:
    """Values are cut off, or zeros added, at the end; half of the bins say all of a real signal."""

    def shapes(_o: FlexOptions, inputs: Specs) -> ResultShapes:
        batch, lengths = _batch(inputs[0], rank), constant(inputs[1])
        if lengths is None:
            return (None,)
        *others, last = _lengths(lengths, rank)
        return ((*batch, *others, last // 2 + 1 if transform is np.fft.rfftn else last),)

    def run(_o: FlexOptions, x: Array, lengths: Array) -> Array:
        wide = np.complex128 if x.dtype.kind == "c" else np.float64
        return transform(x.astype(wide), _lengths(ints(lengths), rank), range(-rank, 0))

    return run, shapes


def make_complex(_o: FlexOptions, real: Array, imaginary: Array) -> Array:
    y = np.empty(
        np.broadcast_shapes(real.shape, imaginary.shape), np.result_type(real, np.complex64)
    )
    y.real, y.imag = real, imaginary
    return y


KERNELS = kernels(
    {"Complex": (make_complex, broadcast_shape)}
    | {
        f"{kind}FFT{'' if rank == 1 else f'{rank}D'}": row(transform, rank)
        for rank in (1, 2, 3)
        for kind, row, transform in (
            ("", _complex, np.fft.fftn),
            ("I", _complex, np.fft.ifftn),
            ("R", _real, np.fft.rfftn),
            ("IR", _real, np.fft.irfftn),
        )
    }
)
