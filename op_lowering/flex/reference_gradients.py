"""Gradients of windows and slices, and of softmax with its loss (core/kernels/)."""

import itertools
from collections.abc import Iterator

import numpy as np

from jaxdelegate.op_lowering.flex.options import FlexSliceOptions, FlexWindowGradientOptions
from jaxdelegate.op_lowering.flex.reference_named import named
from jaxdelegate.op_lowering.records.enums import Padding
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel
from jaxdelegate.reference.movement import ints
from jaxdelegate.reference.pointwise import widen
from jaxdelegate.reference.window import pad_before, size_out

_Shapes = tuple[Shape | None, ...]
_O = FlexWindowGradientOptions


# ---- StridedSliceGrad


def slice_shape(_o: FlexSliceOptions, inputs: Specs) -> _Shapes:
    shape = inputs[0].const
    return (None if shape is None else tuple(ints(np.asarray(shape))),)


def slice_gradient(
    o: FlexSliceOptions, _inputs: Specs, outputs: Specs, *arrays: Array
) -> tuple[Array]:
    """Zeros, except where the slice read."""
    shape, *entries = map(ints, arrays[:4])
    y, index = np.zeros(shape, outputs[0].dtype), o.index(*entries)
    if y[index].shape != arrays[4].shape:
        given = list(arrays[4].shape)
        raise ValueError(f"StridedSliceGrad: a slice is {list(y[index].shape)}, not {given}")
    y[index] = arrays[4]
    return (y,)


# ---- Conv2DBackpropInput, Conv2DBackpropFilter, MaxPoolGrad


def _checked(name: str, o: _O, x: Shape, w: Shape, dy: Shape) -> None:
    edges = list(o.explicit_paddings)
    known = o.padding in Padding.__members__ or (o.padding == "EXPLICIT" and len(edges) == 8)
    if o.data_format != "NHWC" or not known:
        raise ValueError(f"{name}: {o.data_format!r} with the padding {o.padding!r} {edges}")
    lists = o.strides, o.dilations
    if any(len(sizes) != 4 or sizes[0] != 1 or sizes[3] != 1 for sizes in lists):
        raise ValueError(f"{name}: strides {list(o.strides)}, dilations {list(o.dilations)}")
    if not len(x) == len(w) == len(dy) == 4 or min(*w, x[3]) < 1:
        raise ValueError(f"{name}: x {list(x)}, window {list(w)}, gradient {list(dy)}")
    wanted = (x[0], *(out for _, out in _dims(o, x, w)))
    if dy[:3] != wanted:
        raise ValueError(f"{name}: a gradient {list(dy)} of a result {list(wanted)}")


def _dims(o: _O, x: Shape, w: Shape) -> list[tuple[int, int]]:
    """How far the first window starts before the values, and how many windows there are."""
    found = []
    for i in (1, 2):
        n, size, stride, rate = x[i], w[i - 1], o.strides[i], o.dilations[i]
        if o.padding == "EXPLICIT":
            before, after = o.explicit_paddings[2 * i : 2 * i + 2]
            out = size_out(Padding.VALID, n + before + after, size, stride, rate)
        else:
            out = size_out(Padding[o.padding], n, size, stride, rate)
            before = pad_before(Padding[o.padding], n, size, stride, out, rate)
        found.append((before, out))
    return found


def _places(
    o: _O, x: Shape, w: Shape
) -> Iterator[tuple[tuple[int, int], tuple[int, int, int, int]]]:
    """Each place (i, j) of a result, with each (row, column, in the window) that it reads."""
    (above, rows), (before, columns) = _dims(o, x, w)
    for i, j, a, b in np.ndindex(rows, columns, *w[:2]):
        row = i * o.strides[1] - above + a * o.dilations[1]
        column = j * o.strides[2] - before + b * o.dilations[2]
        if 0 <= row < x[1] and 0 <= column < x[2]:
            yield (i, j), (row, column, a, b)


def _groups(x: int, w: Shape) -> list[tuple[slice, slice]]:
    """The channels of x and of the result that belong together."""
    n = x // w[2]
    if x % w[2] or w[3] % n:
        raise ValueError(f"{x} input channels for a filter {list(w)}")
    depth, units = w[2], w[3] // n
    return [
        (slice(g * depth, (g + 1) * depth), slice(g * units, (g + 1) * units)) for g in range(n)
    ]


def input_shape(o: _O, inputs: Specs) -> _Shapes:
    sizes, w, dy = inputs
    if sizes.const is None:
        return (None,)
    shape = tuple(ints(np.asarray(sizes.const)))
    _checked("Conv2DBackpropInput", o, shape, w.shape, dy.shape)
    return (shape,)


def input_gradient(
    o: _O, _inputs: Specs, outputs: Specs, sizes: Array, w: Array, dy: Array
) -> tuple[Array]:
    shape = tuple(ints(sizes))
    _checked("Conv2DBackpropInput", o, shape, w.shape, dy.shape)
    dx, w, dy = np.zeros(shape), w.astype(np.float64), dy.astype(np.float64)
    groups = _groups(shape[3], w.shape)
    for (i, j), (row, column, a, b) in _places(o, shape, w.shape):
        for depth, units in groups:
            dx[:, row, column, depth] += dy[:, i, j, units] @ w[a, b, :, units].T
    return (dx.astype(outputs[0].dtype),)


def filter_shape(o: _O, inputs: Specs) -> _Shapes:
    x, sizes, dy = inputs
    if sizes.const is None:
        return (None,)
    shape = tuple(ints(np.asarray(sizes.const)))
    _checked("Conv2DBackpropFilter", o, x.shape, shape, dy.shape)
    return (shape,)


def filter_gradient(
    o: _O, _inputs: Specs, outputs: Specs, x: Array, sizes: Array, dy: Array
) -> tuple[Array]:
    shape = tuple(ints(sizes))
    _checked("Conv2DBackpropFilter", o, x.shape, shape, dy.shape)
    dw, x, dy = np.zeros(shape), x.astype(np.float64), dy.astype(np.float64)
    groups = _groups(x.shape[3], shape)
    for (i, j), (row, column, a, b) in _places(o, x.shape, shape):
        for depth, units in groups:
            dw[a, b, :, units] += x[:, row, column, depth].T @ dy[:, i, j, units]
    return (dw.astype(outputs[0].dtype),)


def _pooled(o: _O, x: Shape, dy: Shape) -> Shape:
    if len(o.ksize) != 4 or o.ksize[0] != 1 or o.ksize[3] != 1:
        raise ValueError(f"MaxPoolGrad: windows {list(o.ksize)}")
    window = (*o.ksize[1:3], 1, 1)
    _checked("MaxPoolGrad", o, x, window, dy)
    return window


def pool_shape(o: _O, inputs: Specs) -> _Shapes:
    _pooled(o, inputs[0].shape, inputs[2].shape)
    return (inputs[0].shape,)


def pool_gradient(
    o: _O, _inputs: Specs, outputs: Specs, x: Array, _y: Array, dy: Array
) -> tuple[Array]:
    """The first of equal values gets the gradient."""
    window = _pooled(o, x.shape, dy.shape)
    dx = np.zeros(x.shape, widen(dy).dtype)
    by_result = itertools.groupby(_places(o, x.shape, window), key=lambda found: found[0])
    for (i, j), group in by_result:
        places = [place[:2] for _, place in group]
        values = np.stack([x[:, row, column] for row, column in places])  # [places, N, C]
        first = np.argmax(values, axis=0)
        for k, (row, column) in enumerate(places):
            dx[:, row, column] += np.where(first == k, dy[:, i, j], 0)
    return (dx.astype(outputs[0].dtype),)


# ---- SoftmaxCrossEntropyWithLogits, SparseSoftmaxCrossEntropyWithLogits


def soft_shape(_o: FlexOptions, inputs: Specs) -> _Shapes:
    shape = np.broadcast_shapes(inputs[0].shape, inputs[1].shape)
    if len(shape) != 2:
        raise ValueError(f"logits {list(inputs[0].shape)} are not a matrix")
    return shape[:1], shape


def sparse_shape(_o: FlexOptions, inputs: Specs) -> _Shapes:
    logits, labels = inputs[0].shape, inputs[1].shape
    if len(logits) != 2 or labels != logits[:1]:
        raise ValueError(f"{list(labels)} labels for logits {list(logits)}")
    return labels, logits


def soft_loss(
    _o: FlexOptions, _inputs: Specs, outputs: Specs, logits: Array, labels: Array
) -> tuple[Array, Array]:
    """The loss of each row, and its gradient."""
    logits = np.broadcast_to(logits, outputs[1].shape).astype(np.float64)
    labels = np.broadcast_to(labels, outputs[1].shape).astype(np.float64)
    with np.errstate(all="ignore"):
        shifted = logits - logits.max(axis=1, keepdims=True, initial=-np.inf)
        total = np.exp(shifted).sum(axis=1, keepdims=True)
        terms = np.where(labels == 0, 0, labels * (np.log(total) - shifted))
        results = terms.sum(axis=1), np.exp(shifted) / total - labels
    return results[0].astype(outputs[0].dtype), results[1].astype(outputs[1].dtype)


def sparse_loss(
    o: FlexOptions, inputs: Specs, outputs: Specs, logits: Array, labels: Array
) -> tuple[Array, Array]:
    n = logits.shape[1]
    if ((labels < 0) | (labels >= n)).any():
        raise ValueError(f"a label of {labels.tolist()} is not one of {n} classes")
    return soft_loss(o, inputs, outputs, logits, np.eye(n)[labels])


KERNELS = named(
    {
        f"{FLEX}Conv2DBackpropFilter": Kernel(filter_gradient, filter_shape),
        f"{FLEX}Conv2DBackpropInput": Kernel(input_gradient, input_shape),
        f"{FLEX}MaxPoolGrad": Kernel(pool_gradient, pool_shape),
        f"{FLEX}SoftmaxCrossEntropyWithLogits": Kernel(soft_loss, soft_shape),
        f"{FLEX}SparseSoftmaxCrossEntropyWithLogits": Kernel(sparse_loss, sparse_shape),
        f"{FLEX}StridedSliceGrad": Kernel(slice_gradient, slice_shape),
    }
)
