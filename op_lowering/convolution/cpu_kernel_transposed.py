"""Transposed convolutions of float32 and int8 by this package's CPU kernel.

The results at a distance of the strides read the image through the same taps: each such phase is a
product of matrices. XLA multiplies by the zeros between the pixels of the image as well, and only
its runtime can run its convolution.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.kernels.library import PANEL, TRANSPOSED, TRANSPOSED_INT8
from jaxdelegate.op_lowering.common.basics import Array, concatenated, pad
from jaxdelegate.op_lowering.common.native_call import native_call
from jaxdelegate.op_lowering.common.quantization import zero_point_of
from jaxdelegate.op_lowering.common.quantized_products import INT8, INT32, Epilogue, Tensors
from jaxdelegate.op_lowering.common.window import Spread, Spreads
from jaxdelegate.op_lowering.convolution.cpu_kernel import NATIVE, RANGES, call, panels
from jaxdelegate.op_lowering.convolution.cpu_kernel_integer import QUAD, epilogue_scales, steps
from jaxdelegate.op_lowering.convolution.integer import filter_sums
from jaxdelegate.op_lowering.precision import FLOAT32
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.rule import Function, LoweringContext, Prepare
from jaxdelegate.op_lowering.spec import Shape

# Columns with which it is faster than XLA in floats: on a Zen 4 6 took as long, 8 0.5 to 0.8 of the
# time, and 4 1.3 to 2 times as long.
_LEAST_COLUMNS = 6


def algorithms(context: LoweringContext, spreads: Spreads, tensors: Tensors) -> tuple[str, ...]:
    w, policy = tensors.w, context.precision
    specs = [spec for spec in tensors if spec is not None]
    is_float32 = all(spec.dtype == np.float32 and not spec.is_quantized for spec in specs)
    is_asked = context.kernels.cpu and is_float32 and w.const is not None and takes(spreads)
    if not is_asked or policy.storage != FLOAT32:
        return ()
    return (NATIVE,) if policy.convolved(w.dtype, w.const) == FLOAT32 else ()


def takes(spreads: Spreads) -> bool:
    """Whether the kernel supports this geometry: no value of the output is without a tap."""
    return len(spreads) == 2 and all(
        s.dilation == 1 and s.stride <= s.size and s.before >= 0 for s in spreads
    )


def is_chosen(context: LoweringContext, spreads: Spreads, tensors: Tensors) -> bool:
    if not algorithms(context, spreads, tensors):
        return False
    return context.algorithm == NATIVE or (context.algorithm is None and pays(spreads, tensors))


def pays(spreads: Spreads, tensors: Tensors) -> bool:
    """Whether it is the default: products have several rows, and panels are not nearly empty."""
    _, width = _along_width(spreads)
    output_channels = tensors.y.shape[-1]
    return width.n_in > 1 and _times(width, output_channels) * output_channels >= _LEAST_COLUMNS


@dataclasses.dataclass(frozen=True)
class _Call:
    """How the kernel computes a transposed convolution."""

    spreads: tuple[Spread, Spread]  # of the kernel, along the height and the width
    is_turned: bool  # whether these are the operator's width and height
    times: int  # how many adjacent results along the width are one result of the kernel
    width: Spread  # of the operator, or its height if the kernel's spreads are turned
    x: Shape  # the shape of the input
    y: Shape  # of the output

    @classmethod
    def of(cls, spreads: Spreads, tensors: Tensors) -> Self:
        height, width = _along_width(spreads)
        channels = tensors.y.shape[-1]
        y = (tensors.x.shape[0], *(s.n_out for s in spreads), channels)
        times = _times(width, channels)
        turned = height, width if times == 1 else _folded(width)
        return cls(turned, (height, width) != spreads, times, width, tensors.x.shape, y)

    @property
    def out(self) -> Shape:
        """The shape of the kernel's result."""
        return (self.y[0], *(s.n_out for s in self.spreads), self.times * self.y[-1])

    @property
    def geometry(self) -> tuple[int, ...]:
        """`Geometry` of kernels.h: the windows slide over the output."""
        height, width = self.spreads
        image = (self.x[0], height.n_in, width.n_in, self.x[-1])
        sizes = (*image, *self.out[1:], 1, 1, height.size, width.size)
        steps = (height.stride, width.stride, 1, 1, height.before, width.before)
        return (*sizes, *steps)

    def result(self, y: jax.Array) -> tuple[jax.Array]:
        """The operator's result from the kernel's."""
        rows = y.reshape(self.y[0], self.out[1], -1, self.y[-1])
        return (rows[:, :, : self.width.n_out].reshape(self.y),)

    def phases(self, w: Array) -> Iterator[Array]:
        """A filter [*spatial, I, O] -> the mirrored taps, likewise, of each pair of phases."""
        w = w.swapaxes(0, 1) if self.is_turned else w
        w = w if self.times == 1 else _folded_filter(w, self.width)
        for pair in itertools.product(*(range(s.stride) for s in self.spreads)):
            firsts = ((i + s.before) % s.stride for i, s in zip(pair, self.spreads, strict=True))
            steps = (slice(i, None, s.stride) for i, s in zip(firsts, self.spreads, strict=True))
            yield w[tuple(steps)][::-1, ::-1]


def transposed(spreads: Spreads, activation: Act, tensors: Tensors) -> tuple[Function, Prepare]:
    """(x, laid out filter, bias) -> ([N, *out, O],), and the layout from [*spatial, I, O]."""
    form = _Call.of(spreads, tensors)
    run = call(TRANSPOSED, form.geometry, RANGES[activation], form.out)

    def whole(x: jax.Array, w: jax.Array, bias: jax.Array | None) -> tuple[jax.Array]:
        (y,) = run(x, w, None if bias is None else jnp.tile(bias.reshape(-1), form.times))
        return form.result(y)

    def layout(w: Array) -> Array:
        return _joined(panels(f.reshape(-1, form.out[-1])) for f in form.phases(w))

    return whole, layout


def takes_int8(context: LoweringContext, spreads: Spreads, tensors: Tensors) -> bool:
    x, w, bias, y = tensors
    are_int8 = x.dtype == w.dtype == y.dtype == INT8 and (bias is None or bias.dtype == INT32)
    return context.kernels.cpu and are_int8 and w.const is not None and takes(spreads)


def transposed_int8(
    spreads: Spreads, spatial_io: Prepare, tensors: Tensors, end: Epilogue
) -> tuple[Function, Prepare]:
    """Likewise; `spatial_io` transposes the file's filter to [*spatial, I, O]."""
    form = _Call.of(spreads, tensors)
    columns = form.out[-1]
    edges = [(0, 0), (0, -columns % PANEL)]
    # What the kernel's unsigned x adds to the sums, other taps in each phase.
    filters = form.phases(spatial_io(np.asarray(tensors.w.const)))
    sums = np.stack([filter_sums(f, 0) for f in filters])
    offset = -(zero_point_of(tensors.x) + 128) * sums
    scales = np.pad(np.tile(epilogue_scales(end, form.y[-1]), form.times), edges, mode="edge")
    scales = np.tile(scales, len(sums))
    fields = {
        "geometry": form.geometry,
        "integers": (zero_point_of(tensors.x), 0, end.zero_point, *end.bounds),
    }
    attributes = {name: np.array(values, np.int64) for name, values in fields.items()}
    kernel = native_call(TRANSPOSED_INT8, form.out, end.dtype, **attributes)

    def run(x: jax.Array, w: jax.Array, bias: jax.Array | None) -> tuple[jax.Array]:
        total = jnp.asarray(offset)
        if bias is not None:
            total = total + jnp.tile(bias.reshape(-1).astype(INT32), form.times)[None]
        return form.result(kernel(x, w, jnp.pad(total, edges).reshape(-1), scales))

    def layout(w: Array) -> Array:
        return _joined(steps(f, QUAD) for f in form.phases(w))

    return run, layout


def _along_width(spreads: Spreads) -> tuple[Spread, Spread]:
    """An image of one column as one of one row, which the kernel computes at once."""
    height, width = spreads
    is_column = (width.n_in, width.n_out, width.size, width.stride) == (1, 1, 1, 1)
    return (width, height) if is_column else (height, width)


def _times(s: Spread, output_channels: int) -> int:
    """How many adjacent results to compute as one of more channels: all of a stride, or one.

    Few output channels leave most of a panel empty; but all results of a stride read all pixels
    that one of them reads.
    """
    apart = -(-output_channels // PANEL) * s.size
    together = -(-s.stride * output_channels // PANEL) * _folded(s).size
    return s.stride if together < apart else 1


def _folded(s: Spread) -> Spread:
    """The dimension with all results of a stride as one."""
    phases_of = [_phase(s, i) for i in range(s.stride)]
    end = max(end for _, end in phases_of)
    begin = min(end - taps for taps, end in phases_of)
    return Spread(s.n_in, -(-s.n_out // s.stride), end - begin, 1, end - 1)


def _folded_filter(w: Array, s: Spread) -> Array:
    """[h, w, I, O] -> [h, size, I, stride * O], of which the kernel mirrors the taps."""
    one = _folded(s)
    parts = []
    for i in range(s.stride):
        taps, end = _phase(s, i)
        taps_of_phase = w[:, (i + s.before) % s.stride :: s.stride]
        missing = one.before + 1 - end
        edges = [(0, 0), (missing, one.size - taps - missing), (0, 0), (0, 0)]
        parts.append(pad(taps_of_phase, edges))
    return concatenated(parts, -1)


def _phase(s: Spread, phase: int) -> tuple[int, int]:
    """Result i * stride + phase reads `taps` pixels before i + end: (taps, end)."""
    first = (phase + s.before) % s.stride
    return -((first - s.size) // s.stride), (phase + s.before) // s.stride + 1


def _joined(parts: Iterable[Array]) -> Array:
    return concatenated([part.reshape(-1) for part in parts], 0)
