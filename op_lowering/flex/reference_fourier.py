"""Fourier transforms along the last dimensions, and complex numbers (core/kernels/fft_ops.cc)."""

import numpy as np

from jaxdelegate.op_lowering.flex.reference_named import named
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.reference.kernel import Array, Kernel, broadcast_shape
from jaxdelegate.reference.movement import ints

_Shapes = tuple[Shape | None, ...]


def _wave(n: int, sign: int) -> Array:
    """exp(2 pi i j k / n), [n, n]."""
    turns = np.outer(np.arange(n), np.arange(n)) % n
    wave: Array = np.exp(sign * 2j * np.pi * turns / n)
    return wave


def _transformed(x: Array, axis: int, sign: int) -> Array:
    """The definition, as a product of matrices in complex128."""
    n = x.shape[axis]
    moved = np.moveaxis(x, axis, -1) @ _wave(n, sign)
    return np.moveaxis(moved if sign < 0 else moved / max(n, 1), -1, axis)


def _checked(x: TensorSpec, rank: int) -> Shape:
    if len(x.shape) < rank:
        raise ValueError(f"{x.name!r} has rank {len(x.shape)}, not {rank} or more")
    return x.shape


def _complex(rank: int, sign: int) -> Kernel:
    def shapes(_o: FlexOptions, inputs: Specs) -> _Shapes:
        return (_checked(inputs[0], rank),)

    def run(_o: FlexOptions, _inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
        y = x.astype(np.complex128)
        for axis in range(-rank, 0):
            y = _transformed(y, axis, sign)
        return (y.astype(outputs[0].dtype),)

    return Kernel(run, shapes)


def _lengths(array: Array, rank: int) -> list[int]:
    lengths = ints(array)
    if len(lengths) != rank or min(lengths) < 1:
        raise ValueError(f"transform lengths {lengths} are not {rank} positive numbers")
    return lengths


def _fitted(x: Array, sizes: list[int]) -> Array:
    """In complex128, cut off or with zeros at the end of the last dimensions."""
    y = np.zeros((*x.shape[: -len(sizes)], *sizes), np.complex128)
    common = (slice(min(n, m)) for n, m in zip(x.shape[-len(sizes) :], sizes, strict=True))
    part = (*[slice(None)] * (x.ndim - len(sizes)), *common)
    y[part] = x[part]
    return y


def _real(rank: int) -> Kernel:
    def shapes(_o: FlexOptions, inputs: Specs) -> _Shapes:
        batch, const = _checked(inputs[0], rank)[:-rank], inputs[1].const
        if const is None:
            return (None,)
        *others, last = _lengths(np.asarray(const), rank)
        return ((*batch, *others, last // 2 + 1),)

    def run(
        _o: FlexOptions, _inputs: Specs, outputs: Specs, x: Array, lengths: Array
    ) -> tuple[Array]:
        sizes = _lengths(lengths, rank)
        y = _fitted(x, sizes)
        for axis in range(-rank, 0):
            y = _transformed(y, axis, -1)
        return (y[..., : sizes[-1] // 2 + 1].astype(outputs[0].dtype),)

    return Kernel(run, shapes)


def _inverse_real(rank: int) -> Kernel:
    def shapes(_o: FlexOptions, inputs: Specs) -> _Shapes:
        batch, const = _checked(inputs[0], rank)[:-rank], inputs[1].const
        return (None if const is None else (*batch, *_lengths(np.asarray(const), rank)),)

    def run(
        _o: FlexOptions, _inputs: Specs, outputs: Specs, x: Array, lengths: Array
    ) -> tuple[Array]:
        *others, last = _lengths(lengths, rank)
        y = _fitted(x, [*others, last // 2 + 1])
        for axis in range(-rank, -1):
            y = _transformed(y, axis, 1)
        whole = np.zeros((*y.shape[:-1], last), np.complex128)
        whole[..., : y.shape[-1]] = y
        whole[..., 0] = y[..., 0].real  # of a real signal, whose other bins are mirrored
        if last % 2 == 0:
            whole[..., last // 2] = whole[..., last // 2].real
        n_mirrored = (last - 1) // 2
        whole[..., last - n_mirrored :] = whole[..., n_mirrored:0:-1].conj()
        return (_transformed(whole, -1, 1).real.astype(outputs[0].dtype),)

    return Kernel(run, shapes)


def make_complex(
    _o: FlexOptions, _inputs: Specs, outputs: Specs, real: Array, imaginary: Array
) -> tuple[Array]:
    y = np.empty(outputs[0].shape, outputs[0].dtype)
    y.real, y.imag = real, imaginary
    return (y,)


KERNELS = named(
    {f"{FLEX}Complex": Kernel(make_complex, broadcast_shape)}
    | {
        f"{FLEX}{kind}FFT{'' if rank == 1 else f'{rank}D'}": kernel
        for rank in (1, 2, 3)
        for kind, kernel in (
            ("", _complex(rank, -1)),
            ("I", _complex(rank, 1)),
            ("R", _real(rank)),
            ("IR", _inverse_real(rank)),
        )
    }
)
