"""Exact convolutions of integers, plain and transposed, on common/integer_products.py."""

import dataclasses
import functools
import operator
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common import product_triton
from jaxdelegate.op_lowering.common.algorithms import chosen
from jaxdelegate.op_lowering.common.basics import Array
from jaxdelegate.op_lowering.common.integer_products import (
    Piece,
    Zero,
    add_up,
    matrix_product,
    moved,
    pieces,
    product,
    to_int8,
)
from jaxdelegate.op_lowering.common.products import Arithmetic, Axes
from jaxdelegate.op_lowering.common.quantized_products import INT8, INT32, Epilogue, Tensors
from jaxdelegate.op_lowering.common.window import Spreads
from jaxdelegate.op_lowering.convolution.algorithms import (
    Convolution,
    Layout,
    Run,
    dot,
    grouped_dot,
    tap_sum,
)
from jaxdelegate.op_lowering.convolution.candidates import integer_algorithms
from jaxdelegate.op_lowering.records.enums import Padding
from jaxdelegate.op_lowering.rule import LoweringContext, Prepare
from jaxdelegate.op_lowering.spec import TensorSpec


class _Bytes(Arithmetic):
    """int8, summed in int32."""

    def dot(self, x: jax.Array, w: jax.Array, contract: Axes, batch: Axes = ((), ())) -> jax.Array:
        return product(x, w, contract, batch)


@dataclasses.dataclass(frozen=True)
class _RequantizedBytes(Arithmetic):
    """int8, summed in int32 and requantized by the same kernel; see product_triton.py."""

    offset: jax.Array | None = None  # int32 [O], added to the sums
    end: Epilogue | None = None

    def dot(
        self, x: jax.Array, w: jax.Array, _contract: Axes, _batch: Axes = ((), ())
    ) -> jax.Array:
        # [*1, M, K] x [*1, K, N]
        assert self.offset is not None
        assert self.end is not None
        y = product_triton.product(
            x.reshape(x.shape[-2:]), w.reshape(w.shape[-2:]), self.offset, self.end
        )
        return y.reshape(*x.shape[:-1], -1)


_INT8 = _Bytes(np.dtype(np.int8), np.dtype(np.int32), "default")
_INT32 = Arithmetic(np.dtype(np.int32), np.dtype(np.int32), "default")


@dataclasses.dataclass(frozen=True)
class IntegerConvolution:
    """[N, *spatial, C] -> int32 or int64 [N, *out, O].

    `prepare` lays out filters [*spatial, I, O]; `w_zero` is the zero point of its result, and
    `w_sums`, int32 [O], are the sums of a constant filter less that zero point.
    """

    c: Convolution
    layout: Layout
    run: Run
    w_zero: int
    w_sums: np.ndarray | None

    @classmethod
    def of(
        cls,
        context: LoweringContext,
        c: Convolution,
        dtype: np.dtype,
        w_zero: int,
        filters: Array | None,
    ) -> Self:
        """For filters of this dtype and zero point; `filters` is [*spatial, I, O] if constant."""
        zero = moved(w_zero, dtype)
        algorithm = chosen(integer_algorithms(context.platform, c), context.algorithm)
        sums = None if filters is None else filter_sums(filters, zero)
        return cls(c, *algorithm, zero, sums)

    def prepare(self, filters: Array) -> Array:
        """[*spatial, I, O] -> int8, in the algorithm's layout."""
        return self.layout(self.c, to_int8(filters))

    def __call__(self, x: jax.Array, zero: Zero, w: jax.Array) -> jax.Array:
        """`x` are stored integers of 8 or 16 bits, `w` is prepared.

        `zero` is the zero point of `x`; or int32 [N, 1, ..., 1] for int8, one for each image.
        """
        if self.run is tap_sum:  # at most 256 products of at most 2**22
            is_short = x.dtype.itemsize == 1 and isinstance(zero, int)  # half the bytes to pad
            wide = x.astype(np.int16 if is_short else np.int32) - zero
            return tap_sum(_INT32, self.c, wide, w.astype(np.int32) - self.w_zero)
        if isinstance(zero, int):
            zero = moved(zero, np.dtype(x.dtype))
        parts = pieces(to_int8(x), zero)
        return add_up((part.factor, self._centered(part, w)) for part in parts)

    def fuses(self, context: LoweringContext, tensors: Tensors, end: Epilogue) -> bool:
        """Whether one GPU kernel multiplies and requantizes."""
        rows = self.c.results // self.c.output_channels
        is_matrix = self.c.groups == 1 and self.run in (dot, grouped_dot)
        shape = rows, self.c.products, self.c.output_channels
        if not is_matrix or self.w_sums is None:
            return False
        return product_triton.takes(context, tensors, end, shape)

    def fused(
        self, x: jax.Array, zero: int, w: jax.Array, bias: jax.Array | None, end: Epilogue
    ) -> jax.Array:
        """`end(self(x, zero, w), bias)` by one GPU kernel."""
        offset = -zero * jnp.asarray(self.w_sums)
        offset = offset if bias is None else offset + bias.reshape(-1)
        arithmetic = _RequantizedBytes(INT8, INT32, "default", offset=offset, end=end)
        return self.run(arithmetic, self._bare, self._padded(Piece(x, zero)), w)

    @functools.cached_property
    def _bare(self) -> Convolution:
        """Over an image that is already padded."""
        windows = (
            dataclasses.replace(
                d, n_in=d.n_in + sum(d.pads), padding=Padding.VALID, explicit=(0, 0)
            )
            for d in self.c.windows
        )
        return dataclasses.replace(self.c, windows=tuple(windows))

    def _centered(self, x: Piece, w: jax.Array) -> jax.Array:
        padded = self._padded(x)
        total = self.run(_INT8, self._bare, padded, w)
        if self.w_zero:
            total = total - self.w_zero * self._window_sums(padded)
        if isinstance(x.zero, jax.Array) or x.zero:
            sums = jnp.asarray(self.w_sums) if self.w_sums is not None else self._late_sums(w)
            total = total - x.zero * sums.reshape((1,) * (total.ndim - 1) + (-1,))
        return total

    def _padded(self, x: Piece) -> jax.Array:
        if not any(any(d.pads) for d in self.c.windows):
            return x.values
        edges = [(0, 0), *(d.pads for d in self.c.windows), (0, 0)]
        with_stride = [(low, high, 0) for low, high in edges]
        if isinstance(x.zero, int):
            return lax.pad(x.values, np.int8(x.zero), with_stride)
        padded = lax.pad(x.values, np.int8(0), with_stride)
        ones = np.ones((1, *x.values.shape[1:-1], 1), np.bool_)
        return jnp.where(np.pad(ones, edges), padded, x.zero.astype(np.int8))

    def _window_sums(self, padded: jax.Array) -> jax.Array:
        """The sum of each window's values in each group: int32 [N, *out, O]."""
        c = dataclasses.replace(self._bare, output_channels=self.c.groups)
        ones = np.ones((*(d.size for d in c.windows), c.depth, c.output_channels), np.int8)
        sums = self.run(_INT8, c, padded, jnp.asarray(self.layout(c, ones)))
        return jnp.repeat(sums, self.c.output_channels // c.output_channels, -1)

    def _late_sums(self, w: jax.Array) -> jax.Array:
        """The filter's sums from a window over ones: int32 [1, ..., O]."""
        windows = tuple(dataclasses.replace(d, n_in=d.span) for d in self._bare.windows)
        ones = jnp.ones((1, *(d.span for d in windows), self.c.channels), np.int8)
        sums = self.run(_INT8, dataclasses.replace(self.c, windows=windows), ones, w)
        return sums - self.c.products * self.w_zero


@dataclasses.dataclass(frozen=True)
class IntegerTransposedConvolution:
    """[N, *in, I] -> int32 or int64 [N, *out, O]: one matrix product, then overlapping sums.

    `w_zero` and `w_sums` are as IntegerConvolution's, the sums [*spatial * O].
    """

    spreads: Spreads
    w_zero: int
    w_sums: np.ndarray | None

    @classmethod
    def of(cls, spreads: Spreads, dtype: np.dtype, w_zero: int, filters: Array | None) -> Self:
        """For filters of this dtype and zero point; `filters` is [*spatial, I, O] if constant."""
        zero = moved(w_zero, dtype)
        if filters is None:
            return cls(spreads, zero, None)
        sums = np.sum(to_int8(filters), -2, dtype=np.int32) - filters.shape[-2] * zero
        return cls(spreads, zero, sums.reshape(-1))

    def prepare(self, filters: Array) -> Array:
        """[*spatial, I, O] -> int8 [*spatial * O, I]."""
        axes = (*range(filters.ndim - 2), filters.ndim - 1, filters.ndim - 2)
        return to_int8(filters).transpose(axes).reshape(-1, filters.shape[-2])

    def __call__(self, x: jax.Array, zero: int, w: jax.Array) -> jax.Array:
        zero = moved(zero, np.dtype(x.dtype))
        rows = to_int8(x).reshape(-1, x.shape[-1])
        # [N * *in, *spatial * O]
        y = matrix_product(pieces(rows, zero), pieces(w, self.w_zero), w_sums=self.w_sums)
        sizes = tuple(s.size for s in self.spreads)
        return overlap(y.reshape(*x.shape[:-1], *sizes, -1), self.spreads)


def overlap(y: jax.Array, spreads: Spreads) -> jax.Array:
    """Patches [N, *in, *size, O], added up where they overlap in the output: [N, *out, O]."""
    rank = len(spreads)
    for i in reversed(range(rank)):  # the last size goes first
        s, axis = spreads[i], 1 + rank + i
        taps = (lax.index_in_dim(y, t, axis, keepdims=False) for t in range(s.size))
        zero = jnp.zeros((), y.dtype)
        y = functools.reduce(
            operator.add,
            (lax.pad(tap, zero, _at(s.edges(t), 1 + i, y.ndim - 1)) for t, tap in enumerate(taps)),
        )
    return y


def _at(edges: tuple[int, int, int], axis: int, rank: int) -> list[tuple[int, int, int]]:
    return [edges if i == axis else (0, 0, 0) for i in range(rank)]


def filter_sums(filters: Array, zero: int) -> np.ndarray:
    """int32 [O]: sums of a constant filter [*spatial, I, O], less its zero point as int8."""
    count = int(np.prod(filters.shape[:-1]))
    axes = tuple(range(filters.ndim - 1))
    return np.asarray(np.sum(to_int8(filters), axes, dtype=np.int32) - count * zero)


def constant(spec: TensorSpec, spatial_io: Prepare) -> Array | None:
    """The constant filter as [*spatial, I, O]; None if it is computed at run time."""
    return None if spec.const is None else spatial_io(spec.const)
