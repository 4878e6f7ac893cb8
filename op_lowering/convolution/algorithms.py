"""The geometry of a convolution, and the algorithms that compute it.

The filter is first laid out as [*spatial, I, O]; I are the input channels of one group. For floats
a GPU and a TPU run XLA's convolution. XLA:CPU's is fast for deep sums only, so there are other
algorithms for a CPU, and for integers everywhere. The choices and their limits were measured on a
CPU, layer by layer, on the shapes of MobileNet, ResNet and ResNeXt.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaxdelegate.op_lowering.common.basics import Array
from jaxdelegate.op_lowering.common.fusion_barrier import fusion_barrier
from jaxdelegate.op_lowering.common.products import Arithmetic, Steps
from jaxdelegate.op_lowering.common.window import Windows, pad_windows, read_tap, taps
from jaxdelegate.op_lowering.spec import Shape

# Limits of the CPU's algorithms. Products that one output value sums:
_DEPTHWISE_TAPS = 256  # beyond, the unrolled sum takes seconds to compile
_GROUPED_TAPS = 40  # up to here a sum of taps beats products of patches
_TAPS = 32  # the limit without groups
_SHALLOW = 160  # up to here XLA:CPU's convolution is slow, if it has few output channels:
_NARROW, _NARROW_FROM_RGB = 16, 32
# Groups that deserve a convolution each: few of many channels.
_DEEP_GROUP, _FEW_GROUPS = 32, 16
_PATCHES = 1 << 28  # bytes of one image's patches, beyond which they are not worth writing
# A window of one pixel that takes longer to write than to compute: few channels, many results.
_SHORT, _MANY_RESULTS = 8, 1 << 19
# Depthwise filters of more bytes do not stay in the first-level cache.
_CACHED_FILTER = 1 << 15
# A GPU's depthwise convolution of up to this many products is a sum of taps: XLA's loop takes about
# ten instructions for each (SASS for an H100), together as long as another kernel's launch. With
# few taps it always is: its instructions take as long as cuDNN's passes over memory.
_SHORT_ON_GPU = 1 << 23
_FEW_TAPS = 9
# A product's rows or columns of one tile on a GPU with as many processors, the most programs that
# share a tile, and the least depth of each.
_TILE, _PROCESSORS, _MOST_SHARES, _LEAST_DEPTH = 64, 132, 8, 256
_BLOCK, _VECTOR = 96, 16  # the most channels of a block, and a divisor of their number


@dataclasses.dataclass(frozen=True)
class Convolution:
    """The geometry of one convolution, of any operator."""

    windows: Windows
    channels: int
    depth: int  # input channels of one group
    output_channels: int
    batch: int = 1

    @property
    def groups(self) -> int:
        return self.channels // self.depth

    @property
    def is_pointwise(self) -> bool:
        return all(w.size == 1 for w in self.windows) and not self.is_padded

    @property
    def is_matrix_product(self) -> bool:
        return self.groups == 1 and self.is_pointwise and all(w.stride == 1 for w in self.windows)

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.depth == 1

    @property
    def is_padded(self) -> bool:
        return any(any(w.pads) for w in self.windows)

    @property
    def products(self) -> int:
        """The number of products that one output value sums."""
        return math.prod(w.size for w in self.windows) * self.depth

    @property
    def results(self) -> int:
        return self.batch * math.prod(self.out) * self.output_channels

    @property
    def out(self) -> Shape:
        return tuple(w.n_out for w in self.windows)


# A filter [*spatial, I, O] -> what the algorithm reads; x and that -> [N, *out, O].
Layout = Callable[[Convolution, Array], Array]
Run = Callable[[Arithmetic, Convolution, jax.Array, jax.Array], jax.Array]


def algorithm(platform: str, c: Convolution, *, is_clamped: bool = False) -> tuple[Layout, Run]:
    """The default for floats: a filter layout, and the function that reads it.

    `is_clamped`: a clamp with an upper bound follows, if only that of float16's range.
    """
    if platform == "gpu":
        return _gpu_algorithm(c, is_clamped=is_clamped)
    if platform != "cpu":
        return by_library(platform)
    if c.groups > 1:
        return _grouped_algorithm(c)
    if c.is_pointwise:
        is_mostly_writing = c.products <= _SHORT and c.results >= _MANY_RESULTS
        return (by_tap, tap_sum) if is_mostly_writing else (as_matrix, dot)
    few = _NARROW_FROM_RGB if c.depth == 3 else _NARROW
    if c.products > _SHALLOW or c.output_channels > few:
        return as_stored, xla
    return (by_tap, tap_sum) if _is_few(c) else (by_group, grouped_dot)


def _gpu_algorithm(c: Convolution, *, is_clamped: bool) -> tuple[Layout, Run]:
    """XLA lets cuDNN fuse bias and RELU into a convolution without groups.

    Triton fuses any clamp into matrix products, but XLA writes those of one row as float32 first.
    A sum of taps is one kernel with everything that follows.
    """
    if is_clamped and c.is_matrix_product and c.results > c.output_channels:
        return as_matrix, dot
    if _is_unrolled_depthwise(c) and (c.products <= _FEW_TAPS or is_short_on_gpu(c)):
        return by_tap, tap_sum
    return by_library("gpu")


def is_short_on_gpu(c: Convolution) -> bool:
    """Whether any kernel computes it within the time that a GPU needs to launch one."""
    return c.results * c.products <= _SHORT_ON_GPU


def _grouped_algorithm(c: Convolution) -> tuple[Layout, Run]:
    if has_blocks(c) and 4 * c.products * c.output_channels >= _CACHED_FILTER:
        return by_block, tap_sum_by_block
    if _is_few(c) or _is_unrolled_depthwise(c):
        return by_tap, tap_sum
    if c.depth >= _DEEP_GROUP and c.groups <= _FEW_GROUPS:
        return as_stored, group_by_group
    return by_group, grouped_dot


def integer_algorithm(platform: str, c: Convolution) -> tuple[Layout, Run]:
    """The default for int8, summed in int32: products of patches, or sums of taps.

    They are faster than XLA's convolution on a CPU, and a GPU has int8 units for matrices.
    """
    patches = math.prod(c.out) * c.groups * c.products
    if c.groups == 1 and c.is_pointwise:
        return as_matrix, dot
    if _is_unrolled_depthwise(c) or (platform == "cpu" and c.is_padded and _is_few(c)):
        return by_tap, tap_sum
    if platform == "cpu" and c.groups == 1 and patches > _PATCHES:
        return as_stored, xla
    return by_group, grouped_dot


def _is_few(c: Convolution) -> bool:
    """Whether a sum of taps is faster than products of patches on a CPU."""
    return c.products <= (_GROUPED_TAPS if c.groups > 1 else _TAPS)


def _is_unrolled_depthwise(c: Convolution) -> bool:
    return c.is_depthwise and c.products <= _DEPTHWISE_TAPS


def has_blocks(c: Convolution) -> bool:
    return _is_unrolled_depthwise(c) and c.output_channels == c.channels and _block(c) > 0


def _block(c: Convolution) -> int:
    """The channels of a block; 0 if they do not divide evenly."""
    return next((n for n in range(_BLOCK, 0, -_VECTOR) if c.channels % n == 0), 0)


def by_library(platform: str) -> tuple[Layout, Run]:
    """XLA's convolution, with the platform's layout of filters for images [N, *spatial, C].

    XLA:GPU would transpose a filter with another layout in every run of the program.
    """
    return (units_first, xla_units_first) if platform == "gpu" else (as_stored, xla)


def as_stored(_c: Convolution, w: Array) -> Array:
    """[*spatial, I, O], unchanged."""
    return w


def xla(
    a: Arithmetic, c: Convolution, x: jax.Array, w: jax.Array, *, has_units_first: bool = False
) -> jax.Array:
    """XLA's convolution; `w` is [*spatial, I, O]."""
    steps = Steps(
        [d.stride for d in c.windows],
        [d.pads for d in c.windows],
        [d.dilation for d in c.windows],
    )
    return a.convolution(x, w, steps, groups=c.groups, units_first=has_units_first)


def units_first(_c: Convolution, w: Array) -> Array:
    """[O, *spatial, I], cuDNN's layout of filters."""
    return w.transpose(w.ndim - 1, *range(w.ndim - 1))


def xla_units_first(a: Arithmetic, c: Convolution, x: jax.Array, w: jax.Array) -> jax.Array:
    """XLA's convolution; `w` is [O, *spatial, I]."""
    return xla(a, c, x, w, has_units_first=True)


def as_matrix(c: Convolution, w: Array) -> Array:
    """[I, O], for a window of one pixel without groups."""
    return w.reshape(c.depth, c.output_channels)


def dot(a: Arithmetic, c: Convolution, x: jax.Array, w: jax.Array) -> jax.Array:
    """A matrix product over the pixels that the strides select, for a window of one pixel."""
    x = read_tap(x, c.windows, [0] * len(c.windows))
    y = a.dot(x.reshape(-1, c.channels), w, ((1,), (0,)))
    return y.reshape(*x.shape[:-1], c.output_channels)


def shares(c: Convolution) -> int:
    """Among how many programs of a GPU `split_dot` divides the depth; 1: not at all.

    They are a power of two, as many as processors have no tile of their own otherwise.
    """
    if not (c.groups == 1 and c.is_pointwise):
        return 1
    rows = c.batch * math.prod(c.out)
    tiles = -(-rows // _TILE) * -(-c.output_channels // _TILE)
    most = min(_MOST_SHARES, _PROCESSORS // tiles, c.depth // _LEAST_DEPTH)
    divisors = (n for n in (8, 4, 2) if n <= most and c.depth % n == 0)
    return next(divisors, 1)


def split_dot(a: Arithmetic, c: Convolution, x: jax.Array, w: jax.Array) -> jax.Array:
    """`dot`, whose sums several programs share; a second kernel adds them, with what follows."""
    x, count = read_tap(x, c.windows, [0] * len(c.windows)), shares(c)
    parts = x.reshape(-1, count, c.depth // count), w.reshape(count, -1, c.output_channels)
    sums = a.dot(*parts, ((2,), (1,)), ((1,), (0,)))
    # Without the barrier XLA would make it one product again.
    apart: jax.Array = lax.optimization_barrier(sums)  # type: ignore[no-untyped-call]
    y = apart.sum(0, dtype=sums.dtype)
    return y.reshape(*x.shape[:-1], c.output_channels)


def by_tap(c: Convolution, w: Array) -> Array:
    """[*spatial, I, groups, O / groups]."""
    return w.reshape(*w.shape[:-1], c.groups, c.output_channels // c.groups)


def tap_sum(a: Arithmetic, c: Convolution, x: jax.Array, w: jax.Array) -> jax.Array:
    """Shifted inputs times filter rows, for each tap and channel of a group, in one fused loop.

    `w` is [*spatial, I, groups, O / groups]; depthwise has I = 1.
    """
    # In memory, or XLA:CPU would compute it again for every tap; and padded before the reshape to
    # channels of groups, which XLA:CPU pads slowly.
    padded = fusion_barrier(pad_windows(x, c.windows, 0))
    padded = padded.reshape(*padded.shape[:-1], c.groups, c.depth)
    rows = w.astype(a.accumulator).reshape(-1, *[1] * len(c.windows), *w.shape[-2:])
    terms: list[jax.Array] = []
    for tap in taps(c.windows):
        shifted = read_tap(padded, c.windows, tap)  # [N, *out, groups, I]
        for i in range(c.depth):
            pixels = shifted if c.depth == 1 else lax.slice_in_dim(shifted, i, i + 1, axis=-1)
            row = lax.slice_in_dim(rows, len(terms), len(terms) + 1)
            terms.append(pixels.astype(a.accumulator) * row)
    y: jax.Array = functools.reduce(operator.add, terms)
    return y.reshape(*y.shape[:-2], c.output_channels)


def by_block(c: Convolution, w: Array) -> Array:
    """[*spatial, blocks, channels of a block], of a depthwise filter."""
    return w.reshape(*w.shape[:-2], -1, _block(c))


def tap_sum_by_block(a: Arithmetic, c: Convolution, x: jax.Array, w: jax.Array) -> jax.Array:
    """Depthwise sums of taps, block by block of channels, whose filter stays in the cache.

    `w` is [*spatial, blocks, channels of a block].
    """
    n_blocks, block = w.shape[-2:]
    padded = pad_windows(x, c.windows, 0)
    padded = padded.reshape(*padded.shape[:-1], n_blocks, block)
    padded = fusion_barrier(jnp.moveaxis(padded, -2, 0))  # [blocks, N, *padded, block]
    images = padded.reshape(-1, *padded.shape[2:])
    ones = (1,) * (1 + len(c.windows))
    terms = []
    for tap in taps(c.windows):
        shifted = read_tap(images, c.windows, tap).reshape(n_blocks, -1, *c.out, block)
        row = w[tap].astype(a.accumulator).reshape(n_blocks, *ones, block)
        terms.append(shifted.astype(a.accumulator) * row)
    # In memory before and after it is moved: the next loop would divide every index.
    y = fusion_barrier(functools.reduce(operator.add, terms))  # [blocks, N, *out, block]
    return fusion_barrier(jnp.moveaxis(y, 0, -2)).reshape(-1, *c.out, c.output_channels)


def by_group(c: Convolution, w: Array) -> Array:
    """[groups, taps * I, O / groups]."""
    return w.reshape(c.products, c.groups, -1).transpose(1, 0, 2)


def grouped_dot(a: Arithmetic, c: Convolution, x: jax.Array, w: jax.Array) -> jax.Array:
    """Patches of each group side by side, then one batched product.

    `w` is [groups, taps * I, O / groups].
    """
    padded = pad_windows(x, c.windows, 0)
    padded = padded.reshape(*padded.shape[:-1], c.groups, c.depth)
    padded = jnp.moveaxis(padded, -2, 0).reshape(-1, *padded.shape[1:-2], c.depth)
    patches = _patches(fusion_barrier(padded), c.windows)  # or every loop would compute it again
    y = a.dot(patches.reshape(c.groups, -1, c.products), w, ((2,), (1,)), ((0,), (0,)))
    return y.transpose(1, 0, 2).reshape(-1, *c.out, c.output_channels)


def _patches(x: jax.Array, windows: Windows) -> jax.Array:
    """[N, *in, C] -> [N, *out, taps * C]: all values that each window reads.

    Dimension by dimension, because XLA:CPU compiles a kernel for each slice: two times three slices
    compile in half the time of nine.
    """
    for i, d in reversed([*enumerate(windows, 1)]):
        starts = range(0, d.span, d.dilation)
        last = (d.n_out - 1) * d.stride + 1
        rows = [lax.slice_in_dim(x, s, s + last, d.stride, i) for s in starts]
        x = lax.concatenate(rows, x.ndim - 1)
    return x


def group_by_group(a: Arithmetic, c: Convolution, x: jax.Array, w: jax.Array) -> jax.Array:
    """A convolution for each group; `w` is [*spatial, I, O]."""
    one = dataclasses.replace(c, channels=c.depth, output_channels=c.output_channels // c.groups)
    parts = zip(jnp.split(x, c.groups, -1), jnp.split(w, c.groups, -1), strict=True)
    return jnp.concatenate([xla(a, one, x_group, w_group) for x_group, w_group in parts], -1)
