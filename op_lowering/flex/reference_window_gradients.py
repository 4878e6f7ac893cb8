"""Gradients of convolutions and pools over images and volumes (core/kernels/*grad*.cc)."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.flex.options import FlexWindowGradientOptions
from jaxdelegate.op_lowering.flex.reference_named import named
from jaxdelegate.op_lowering.records.enums import Padding
from jaxdelegate.op_lowering.records.flex import FLEX
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.reference.kernel import Array, Kernel
from jaxdelegate.reference.movement import ints
from jaxdelegate.reference.pointwise import widen
from jaxdelegate.reference.window import pad_before, size_out

_Shapes = tuple[Shape | None, ...]
_O = FlexWindowGradientOptions
_FORMATS = {4: "NHWC", 5: "NDHWC"}  # by rank


def _checked(o: _O, x: Shape, window: Shape, dy: Shape) -> None:
    """A window has the sizes between the first and the last dimension of x."""
    rank, edges = len(x), list(o.explicit_paddings)
    known = o.padding in Padding.__members__ or (o.padding == "EXPLICIT" and len(edges) == 2 * rank)
    if o.data_format != _FORMATS.get(rank) or not known:
        raise ValueError(f"{o.data_format!r} of rank {rank} with the padding {o.padding!r} {edges}")
    lists = o.strides, o.dilations
    if any(len(sizes) != rank or sizes[0] != 1 or sizes[-1] != 1 for sizes in lists):
        raise ValueError(f"strides {list(o.strides)}, dilations {list(o.dilations)}")
    if len(dy) != rank or len(window) != rank - 2 or min(*window, x[-1]) < 1:
        raise ValueError(f"x {list(x)}, window {list(window)}, gradient {list(dy)}")
    wanted = (x[0], *(out for _, out in _dims(o, x, window)))
    if dy[:-1] != wanted:
        raise ValueError(f"a gradient {list(dy)} of a result {list(wanted)}")


def _dims(o: _O, x: Shape, window: Shape) -> list[tuple[int, int]]:
    """How far the first window starts before the values, and how many windows there are."""
    found = []
    for i, size in enumerate(window, 1):
        n, stride, rate = x[i], o.strides[i], o.dilations[i]
        if o.padding == "EXPLICIT":
            before, after = o.explicit_paddings[2 * i : 2 * i + 2]
            out = size_out(Padding.VALID, n + before + after, size, stride, rate)
        else:
            out = size_out(Padding[o.padding], n, size, stride, rate)
            before = pad_before(Padding[o.padding], n, size, stride, out, rate)
        found.append((before, out))
    return found


_Place = tuple[int, ...]


def _at(*entries: Any) -> tuple[Any, ...]:
    """An index of numpy: all items, a place, channels."""
    return entries


def _places(o: _O, x: Shape, window: Shape) -> Iterator[tuple[_Place, _Place, _Place]]:
    """Each place of a result, with each place of x that it reads, and where in the window."""
    dims, rank = _dims(o, x, window), len(window)
    for found in np.ndindex(*(out for _, out in dims), *window):
        out, tap = found[:rank], found[rank:]
        at = tuple(
            i * o.strides[d] - before + t * o.dilations[d]
            for d, (i, t, (before, _)) in enumerate(zip(out, tap, dims, strict=True), 1)
        )
        if all(0 <= place < n for place, n in zip(at, x[1:-1], strict=True)):
            yield out, at, tap


# ---- gradients of convolutions


def _groups(channels: int, w: Shape) -> list[tuple[slice, slice]]:
    """The channels of x and of the result that belong together."""
    n = channels // w[-2]
    if channels % w[-2] or w[-1] % n:
        raise ValueError(f"{channels} input channels for a filter {list(w)}")
    depth, units = w[-2], w[-1] // n
    return [
        (slice(g * depth, (g + 1) * depth), slice(g * units, (g + 1) * units)) for g in range(n)
    ]


def _constant(sizes: TensorSpec) -> Shape | None:
    return None if sizes.const is None else tuple(ints(np.asarray(sizes.const)))


def _plain(x: Shape, w: Shape, *, depthwise: bool) -> Shape:
    """The filter's shape as one of a convolution in groups."""
    if len(w) != len(x) or min(w) < 1 or (depthwise and w[-2] != x[-1]):
        raise ValueError(f"x {list(x)}, a filter {list(w)}")
    return (*w[:-2], 1, w[-2] * w[-1]) if depthwise else w


def _input_gradient(*, depthwise: bool = False) -> Kernel:
    def shapes(o: _O, inputs: Specs) -> _Shapes:
        x, w, dy = _constant(inputs[0]), inputs[1].shape, inputs[2].shape
        if x is not None:
            _groups(x[-1], _plain(x, w, depthwise=depthwise))
            _checked(o, x, w[:-2], dy)
        return (x,)

    def run(
        o: _O, _inputs: Specs, outputs: Specs, sizes: Array, w: Array, dy: Array
    ) -> tuple[Array]:
        shape = tuple(ints(sizes))
        w = w.reshape(_plain(shape, w.shape, depthwise=depthwise)).astype(np.float64)
        _checked(o, shape, w.shape[:-2], dy.shape)
        dx, dy, groups = np.zeros(shape), dy.astype(np.float64), _groups(shape[-1], w.shape)
        for out, at, tap in _places(o, shape, w.shape[:-2]):
            for depth, units in groups:
                taken = w[_at(*tap, slice(None), units)]
                dx[_at(slice(None), *at, depth)] += dy[_at(slice(None), *out, units)] @ taken.T
        return (dx.astype(outputs[0].dtype),)

    return Kernel(run, shapes)


def _filter_gradient(*, depthwise: bool = False) -> Kernel:
    def shapes(o: _O, inputs: Specs) -> _Shapes:
        x, w, dy = inputs[0].shape, _constant(inputs[1]), inputs[2].shape
        if w is not None:
            _groups(x[-1], _plain(x, w, depthwise=depthwise))
            _checked(o, x, w[:-2], dy)
        return (w,)

    def run(
        o: _O, _inputs: Specs, outputs: Specs, x: Array, sizes: Array, dy: Array
    ) -> tuple[Array]:
        shape = tuple(ints(sizes))
        dw = np.zeros(_plain(x.shape, shape, depthwise=depthwise))
        _checked(o, x.shape, shape[:-2], dy.shape)
        x, dy, groups = x.astype(np.float64), dy.astype(np.float64), _groups(x.shape[-1], dw.shape)
        for out, at, tap in _places(o, x.shape, shape[:-2]):
            for depth, units in groups:
                taken = x[_at(slice(None), *at, depth)]
                dw[_at(*tap, slice(None), units)] += taken.T @ dy[_at(slice(None), *out, units)]
        return (dw.reshape(shape).astype(outputs[0].dtype),)

    return Kernel(run, shapes)


# ---- gradients of pools


def _pooled(o: _O, x: Shape, dy: Shape) -> Shape:
    if len(o.ksize) != len(x) or o.ksize[0] != 1 or o.ksize[-1] != 1:
        raise ValueError(f"windows {list(o.ksize)} over {list(x)}")
    _checked(o, x, o.ksize[1:-1], dy)
    if dy[-1] != x[-1]:
        raise ValueError(f"a gradient {list(dy)} of a pool over {list(x)}")
    return o.ksize[1:-1]


def max_pool_shape(o: _O, inputs: Specs) -> _Shapes:
    _pooled(o, inputs[0].shape, inputs[2].shape)
    return (inputs[0].shape,)


def max_pool_gradient(
    o: _O, _inputs: Specs, outputs: Specs, x: Array, _y: Array, dy: Array
) -> tuple[Array]:
    """The first of equal values gets the gradient."""
    window = _pooled(o, x.shape, dy.shape)
    dx = np.zeros(x.shape, widen(dy).dtype)
    by_result = itertools.groupby(_places(o, x.shape, window), key=lambda found: found[0])
    for out, group in by_result:
        places = [at for _, at, _ in group]
        values = np.stack([x[_at(slice(None), *at)] for at in places])  # [places, N, C]
        first = np.argmax(values, axis=0)
        for k, at in enumerate(places):
            dx[_at(slice(None), *at)] += np.where(first == k, dy[_at(slice(None), *out)], 0)
    return (dx.astype(outputs[0].dtype),)


def max_pool_3d_gradient(
    o: _O, _inputs: Specs, outputs: Specs, x: Array, y: Array, dy: Array
) -> tuple[Array]:
    """Each value that equals the pool's result gets the gradient."""
    dx = np.zeros(x.shape, widen(dy).dtype)
    for out, at, _ in _places(o, x.shape, _pooled(o, x.shape, dy.shape)):
        place, result = _at(slice(None), *at), _at(slice(None), *out)
        dx[place] += np.where(x[place] == y[result], dy[result], 0)
    return (dx.astype(outputs[0].dtype),)


def average_pool_shape(o: _O, inputs: Specs) -> _Shapes:
    shape = _constant(inputs[0])
    if shape is not None:
        _pooled(o, shape, inputs[1].shape)
    return (shape,)


def average_pool_gradient(
    o: _O, _inputs: Specs, outputs: Specs, sizes: Array, dy: Array
) -> tuple[Array]:
    """Each value of a window gets an equal part of the gradient."""
    shape = tuple(ints(sizes))
    window = _pooled(o, shape, dy.shape)
    dx = np.zeros(shape, widen(dy).dtype)
    by_result = itertools.groupby(_places(o, shape, window), key=lambda found: found[0])
    for out, group in by_result:
        places = [at for _, at, _ in group]
        for at in places:
            dx[_at(slice(None), *at)] += dy[_at(slice(None), *out)] / len(places)
    return (dx.astype(outputs[0].dtype),)


_AVERAGE_POOL = Kernel(average_pool_gradient, average_pool_shape)
KERNELS = named(
    {
        f"{FLEX}AvgPool3DGrad": _AVERAGE_POOL,
        f"{FLEX}AvgPoolGrad": _AVERAGE_POOL,
        f"{FLEX}Conv2DBackpropFilter": _filter_gradient(),
        f"{FLEX}Conv2DBackpropInput": _input_gradient(),
        f"{FLEX}Conv3DBackpropFilterV2": _filter_gradient(),
        f"{FLEX}DepthwiseConv2dNativeBackpropFilter": _filter_gradient(depthwise=True),
        f"{FLEX}DepthwiseConv2dNativeBackpropInput": _input_gradient(depthwise=True),
        f"{FLEX}MaxPool3DGrad": Kernel(max_pool_3d_gradient, max_pool_shape),
        f"{FLEX}MaxPoolGrad": Kernel(max_pool_gradient, max_pool_shape),
    }
)
