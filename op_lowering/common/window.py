"""Windows that slide over [N, *spatial, C]: their positions, and the slices that they read."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jaxdelegate.op_lowering.common.basics import Array, window_padding
from jaxdelegate.op_lowering.records.enums import Padding

_FAR = 256  # values that a window may reach beyond twice the input's


@dataclasses.dataclass(frozen=True)
class Window:
    """A window sliding along one spatial dimension, as kernels/padding.h places it.

    `explicit` are zeros before and after, over which a VALID window slides as well.
    """

    n_in: int
    size: int
    stride: int
    padding: Padding
    dilation: int = 1
    explicit: tuple[int, int] = (0, 0)

    @property
    def span(self) -> int:
        """The distance from the first to the last value that the window reads, plus one."""
        return (self.size - 1) * self.dilation + 1

    @property
    def n_out(self) -> int:
        if self.padding is Padding.SAME:
            return -(-self.n_in // self.stride)
        n_in = self.n_in + sum(self.explicit)
        return max((n_in + self.stride - self.span) // self.stride, 0)

    @functools.cached_property
    def pads(self) -> tuple[int, int]:
        if self.padding is Padding.VALID:
            return self.explicit
        return window_padding(self.padding, self.n_in, self.size, self.stride, self.dilation)

    @property
    def is_whole(self) -> bool:
        """Whether the window has one position and reads every value there."""
        return self.n_out == 1 and self.size - self.pads[0] >= self.n_in and self.dilation == 1


Windows = tuple[Window, ...]


@dataclasses.dataclass(frozen=True)
class Spread:
    """One spatial dimension of a transposed convolution: where each value lands in the output."""

    n_in: int
    n_out: int
    size: int
    stride: int
    before: int  # how far before the output the first window starts
    dilation: int = 1

    @property
    def pads(self) -> tuple[int, int]:
        """Padding of the dilated input, so that a plain convolution has n_out results."""
        reach = (self.size - 1) * self.dilation
        low = reach - self.before
        return low, self.n_out + reach - low - ((self.n_in - 1) * self.stride + 1)

    @property
    def crop(self) -> tuple[int, int, int]:
        """lax.pad's edges from adjacent strides to the output."""
        return -self.before, self.n_out + self.before - self.n_in * self.stride, 0

    def edges(self, tap: int) -> tuple[int, int, int]:
        """lax.pad's edges from the input to what one tap adds to the output."""
        low = tap * self.dilation - self.before
        return low, self.n_out - low - ((self.n_in - 1) * self.stride + 1), self.stride - 1


Spreads = tuple[Spread, ...]


def why_not_windows(windows: Windows) -> str | None:
    """A reason for windows without size, stride or dilation, or that hardly overlap the input.

    XLA would pad an input of 4 values for a window over 2**31, or walk over all of them.
    """
    for w in windows:
        if min(w.size, w.stride, w.dilation) <= 0:
            return (
                f"a window of {w.size} values by stride {w.stride} and dilation {w.dilation}: "
                "all must be positive"
            )
        if w.span > 2 * w.n_in + _FAR:
            return f"a window over {w.span} values of which {w.n_in} exist: the host reads those"
    return None


def why_not_fit(windows: Windows) -> str | None:
    """A reason for VALID windows so much larger than the input that LiteRT refuses them."""
    for w in windows:
        n_in = w.n_in + sum(w.explicit)
        if w.padding is Padding.VALID and n_in + w.stride - w.span <= -w.stride:
            return f"a VALID window over {w.span} values does not fit into {n_in}"
    return None


def pad_windows(x: Array, windows: Windows, value: ArrayLike) -> jax.Array:
    """Pad the spatial dimensions of [N, *spatial, ...] for the windows."""
    rest = x.ndim - 1 - len(windows)
    edges = [(0, 0, 0), *((*w.pads, 0) for w in windows), *[(0, 0, 0)] * rest]
    return lax.pad(x, jnp.asarray(value, x.dtype), edges)


def taps(windows: Windows) -> Iterator[tuple[int, ...]]:
    """Every position in the window, in row-major order."""
    return iter(np.ndindex(*(w.size for w in windows)))


def read_tap(padded: jax.Array, windows: Windows, tap: Sequence[int]) -> jax.Array:
    """The values that windows read at one tap: [N, *padded, ...] -> [N, *out, ...], a slice."""
    rest = padded.ndim - 1 - len(windows)
    first = [t * w.dilation for t, w in zip(tap, windows, strict=True)]
    past = [i + (w.n_out - 1) * w.stride + 1 for i, w in zip(first, windows, strict=True)]
    return lax.slice(
        padded,
        [0, *first, *[0] * rest],
        [padded.shape[0], *past, *padded.shape[padded.ndim - rest :]],
        [1, *(w.stride for w in windows), *[1] * rest],
    )
