"""Pools, and the Fourier transform."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdelegate.conversion.emitter import F32, Emitter
from jaxdelegate.conversion.graph import Complex, Value, scalar_of
from jaxdelegate.conversion.interpreting import Lower, Primitive, write
from jaxdelegate.conversion.products import padded_for
from jaxdelegate.op_lowering.options import Padding, Pool2DOptions


def _pool(op: str) -> Lower:
    def lower(
        e: Emitter, x: Value, *, window_dimensions: Any, window_strides: Any, padding: Any,
        base_dilation: Any, window_dilation: Any, **_: Any,
    ) -> Value:  # fmt: skip
        if x.dtype != F32 or max((*base_dilation, *window_dilation)) > 1:
            e.refuse(f"pools have no dilations and no {x.dtype.name}", "convert to float32")
        windows = list(zip(window_dimensions, window_strides, padding, strict=True))
        axes = [i for i, (k, s, p) in enumerate(windows) if k > 1 or s > 1 or any(p)]
        for first in range(0, len(axes), 2):  # over two dimensions, then over others
            x = _over(e, op, x, axes[first : first + 2], windows)
        return x

    return lower


def _over(e: Emitter, op: str, x: Value, axes: list[int], windows: list[Any]) -> Value:
    """The pool over one or two axes, which become the height and width of [batch, h, w, c]."""
    rest = [i for i in range(x.rank) if i not in axes]
    order = [*rest[:-1], *axes, *rest[-1:]]
    spatial, used = [x.shape[i] for i in axes], [windows[i] for i in axes]
    if len(axes) == 1:
        spatial, used = [1, *spatial], [(1, 1, (0, 0)), *used]
    batch, channels = (math.prod(x.shape[i] for i in part) for part in (rest[:-1], rest[-1:]))
    y = _pooled(e, op, e.reshape(e.transpose(x, order), (batch, *spatial, channels)), used)
    sizes = dict(zip(axes, y.shape[3 - len(axes) : 3], strict=True))
    shape = tuple(sizes.get(i, x.shape[i]) for i in order)
    return e.transpose(e.reshape(y, shape), np.argsort(order))


def _pooled(e: Emitter, op: str, x: Value, windows: list[Any]) -> Value:
    """MAX_POOL_2D, or AVERAGE_POOL_2D times the window's size."""
    sizes, strides, pads = (list(part) for part in zip(*windows, strict=True))
    is_max = op == "MAX_POOL_2D"
    if is_max:
        x, padding = padded_for(e, x, sizes, strides, pads, e.like(x, -np.inf))
    else:  # SAME would average over fewer elements at the edges
        x, padding = e.pad(x, [(0, 0), *pads, (0, 0)]), Padding.VALID
    lost = [0 if padding == Padding.SAME else k - 1 for k in sizes]
    out = [-(-(n - k) // s) for n, k, s in zip(x.shape[1:3], lost, strides, strict=True)]
    options = Pool2DOptions(padding, strides[1], strides[0], sizes[1], sizes[0])
    y = e.op(op, [x], (x.shape[0], *out, x.shape[3]), F32, options)
    return y if is_max else e.compute("MUL", y, e.like(y, math.prod(sizes)))


def _min_pool(e: Emitter, x: Value, **how: Any) -> Value:
    return e.compute("NEG", _pool("MAX_POOL_2D")(e, e.compute("NEG", x), **how))


# ---- Fourier transform


def _fft(e: Emitter, x: Any, *, fft_type: Any, fft_lengths: Sequence[int]) -> Any:
    """By products with matrices of cosines and sines, along one axis after the other."""
    if fft_type.name in ("FFT", "IFFT") and scalar_of(x.im) == 0:
        x = x.re
    return write(e, functools.partial(_transformed, fft_type.name, list(fft_lengths)), x)


def _transformed(kind: str, lengths: list[int], x: Any) -> Any:
    axes = range(-len(lengths), 0)
    sign = 1 if kind in ("IFFT", "IRFFT") else -1
    steps = [(axis, n, np.arange(n), np.arange(n)) for axis, n in zip(axes, lengths, strict=True)]
    last, half = lengths[-1], np.arange(lengths[-1] // 2 + 1)
    if kind == "RFFT":
        steps = [(-1, last, half, np.arange(last)), *steps[:-1]]
    elif kind == "IRFFT":
        steps[-1] = (-1, last, np.arange(last), half)
    for axis, n, rows, columns in steps:
        angles = 2 * np.pi * (np.outer(rows, columns) % n) / n  # exact before the division
        matrix = np.exp(sign * 1j * angles) / (n if sign > 0 else 1)
        if columns is half and kind == "IRFFT":  # the other half are the conjugates
            matrix = matrix * np.where((columns == 0) | (2 * columns == n), 1, 2)
            return _product(x.re, axis, matrix.real) - _product(x.im, axis, matrix.imag)
        x = _along(x, axis, matrix)
    return x


def _along(x: Any, axis: int, matrix: np.ndarray) -> Complex:
    """The product of a complex matrix with the elements along an axis."""
    re, im = matrix.real, matrix.imag
    if not isinstance(x, Complex):
        return Complex(_product(x, axis, re), _product(x, axis, im))
    parts = [_product(v, axis, m) for v in (x.re, x.im) for m in (re, im)]
    return Complex(parts[0] - parts[3], parts[1] + parts[2])


def _product(x: Any, axis: int, matrix: np.ndarray) -> Any:
    weights = jnp.asarray(matrix.T, np.float32)
    return jnp.moveaxis(jnp.moveaxis(x, axis, -1) @ weights, -1, axis)


_CONDITION = "float32, no dilation; more than two dimensions by several pools"
PRIMITIVES = (
    Primitive("reduce_window_max", "MAX_POOL_2D", _pool("MAX_POOL_2D"), _CONDITION),
    Primitive("reduce_window_sum", "AVERAGE_POOL_2D, MUL", _pool("AVERAGE_POOL_2D"), _CONDITION),
    Primitive("reduce_window_min", "MAX_POOL_2D, NEG", _min_pool, _CONDITION),
    Primitive("fft", "FULLY_CONNECTED", _fft, "as products with matrices: n * n operations", _fft),
)
