"""Pools, and the Fourier transform."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdelegate.conversion.elementwise import as_complex
from jaxdelegate.conversion.emitter import F32, Emitter
from jaxdelegate.conversion.graph import Complex, Value, scalar_of
from jaxdelegate.conversion.products import padded_for
from jaxdelegate.conversion.table import Lower, Primitive
from jaxdelegate.op_lowering.options import FullyConnectedOptions, Padding, Pool2DOptions


def _pool(op: str) -> Lower:
    def lower(
        e: Emitter,
        x: Value,
        *,
        window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        padding: Sequence[tuple[int, int]],
        base_dilation: Sequence[int],
        window_dilation: Sequence[int],
        **_: Any,
    ) -> Value:
        if x.dtype != F32 or max((*base_dilation, *window_dilation)) > 1:
            e.refuse(f"pools have no dilations and no {x.dtype.name}", "convert to float32")
        windows = list(zip(window_dimensions, window_strides, padding, strict=True))
        axes = [i for i, (k, s, p) in enumerate(windows) if k > 1 or s > 1 or any(p)]
        if len(axes) > 2:
            e.refuse("pools have two dimensions", "pool along two dimensions, then others")
        return _over(e, op, x, axes, windows)

    return lower


def _over(e: Emitter, op: str, x: Value, axes: list[int], windows: list[Any]) -> Value:
    """The pool over one or two axes, which become the height and width of [batch, h, w, c]."""
    if not axes:
        return x
    rest = [i for i in range(x.rank) if i not in axes]
    order = [*rest[:-1], *axes, *rest[-1:]]
    moved = e.transpose(x, order)
    spatial = [x.shape[i] for i in axes]
    batch = math.prod(x.shape[i] for i in rest[:-1])
    channels = math.prod(x.shape[i] for i in rest[-1:])
    used = [windows[i] for i in axes]
    if len(axes) == 1:
        spatial, used = [1, *spatial], [(1, 1, (0, 0)), *used]
    y = _pooled(e, op, e.reshape(moved, (batch, *spatial, channels)), used)
    sizes = dict(zip(axes, y.shape[3 - len(axes) : 3], strict=True))
    shape = [sizes.get(i, x.shape[i]) for i in order]
    return e.transpose(e.reshape(y, tuple(shape)), np.argsort(order))


def _pooled(e: Emitter, op: str, x: Value, windows: list[Any]) -> Value:
    """MAX_POOL_2D, or AVERAGE_POOL_2D times the window's size."""
    sizes, strides, pads = (list(part) for part in zip(*windows, strict=True))
    is_max = op == "MAX_POOL_2D"
    lowest = e.like(x, -np.inf)
    if is_max:
        x, padding = padded_for(e, x, sizes, strides, pads, lowest)
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
    kind, lengths = fft_type.name, list(fft_lengths)
    axes = [len(x.shape) - len(lengths) + i for i in range(len(lengths))]
    real = kind in ("RFFT", "IRFFT")
    inverse = kind in ("IFFT", "IRFFT")
    others = list(zip(axes[:-1], lengths[:-1], strict=True)) if real else []
    if kind == "RFFT":
        x = _along(e, x, axes[-1], *_rfft(lengths[-1]))
    for axis, n in others if real else zip(axes, lengths, strict=True):
        x = _along(e, x, axis, *_complex_transform(n, inverse=inverse))
    return _real_inverse(e, x, axes[-1], lengths[-1]) if kind == "IRFFT" else x


def _angles(n: int, rows: int, columns: int) -> np.ndarray:
    products = np.arange(rows)[:, None] * np.arange(columns) % n  # exact before the division
    return 2 * np.pi * products / n


def _rfft(n: int) -> tuple[np.ndarray, np.ndarray]:
    angles = _angles(n, n // 2 + 1, n)
    return np.cos(angles), -np.sin(angles)


def _complex_transform(n: int, *, inverse: bool) -> tuple[np.ndarray, np.ndarray]:
    angles = _angles(n, n, n)
    scale = 1 / n if inverse else 1
    return scale * np.cos(angles), (scale if inverse else -1) * np.sin(angles)


def _along(e: Emitter, x: Any, axis: int, re: np.ndarray, im: np.ndarray) -> Complex:
    """The product of complex matrices with the elements along an axis."""
    if isinstance(x, Complex) and scalar_of(x.im) == 0:
        x = x.re
    if not isinstance(x, Complex):
        return Complex(_product(e, x, axis, re), _product(e, x, axis, im))
    parts = [_product(e, v, axis, m) for v in (x.re, x.im) for m in (re, im)]
    return Complex(e.compute("SUB", parts[0], parts[3]), e.compute("ADD", parts[1], parts[2]))


def _product(e: Emitter, x: Value, axis: int, matrix: np.ndarray) -> Value:
    order = [i for i in range(x.rank) if i != axis] + [axis]
    moved = e.transpose(x, order)
    shape = (*moved.shape[:-1], len(matrix))
    weights = e.const(matrix.astype(np.float32))
    options = FullyConnectedOptions(keep_num_dims=True)
    y = e.op("FULLY_CONNECTED", [moved, weights, None], shape, F32, options)
    return e.transpose(y, np.argsort(order))


def _real_inverse(e: Emitter, x: Any, axis: int, n: int) -> Value:
    x = as_complex(e, x)
    angles = _angles(n, n, n // 2 + 1)
    twice = np.where((np.arange(n // 2 + 1) % n == 0) | (2 * np.arange(n // 2 + 1) == n), 1, 2) / n
    re = _product(e, x.re, axis, twice * np.cos(angles))
    return e.compute("SUB", re, _product(e, x.im, axis, twice * np.sin(angles)))


_CONDITION = "float32, one or two dimensions with a window, no dilation"
PRIMITIVES = (
    Primitive("reduce_window_max", "MAX_POOL_2D", _pool("MAX_POOL_2D"), _CONDITION),
    Primitive("reduce_window_sum", "AVERAGE_POOL_2D, MUL", _pool("AVERAGE_POOL_2D"), _CONDITION),
    Primitive("reduce_window_min", "MAX_POOL_2D, NEG", _min_pool, _CONDITION),
    Primitive("fft", "FULLY_CONNECTED", _fft, "as products with matrices: n * n operations"),
)
