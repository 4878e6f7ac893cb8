"""StableHLO operators that move data, and the builtin DILATE.

Sources: the StableHLO specification, kernels/stablehlo_pad.cc, kernels/dilate.cc.
"""

import math
from collections.abc import Sequence

import numpy as np

from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.op_lowering.stablehlo import options
from jaxdelegate.reference.kernel import Array, Kernel, ResultShapes, as_run, undeclared_shapes


def check(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)


def check_dims(name: str, dims: Sequence[int], rank: int, *, ordered: bool = False) -> None:
    distinct = len(set(dims)) == len(dims) and all(0 <= d < rank for d in dims)
    in_order = not ordered or list(dims) == sorted(dims)
    check(distinct and in_order, f"{name} {list(dims)} do not fit rank {rank}")


# ---- RESHAPE, BROADCAST_IN_DIM, TRANSPOSE


def reshaped_shape(_infer: object, _options: object, inputs: Specs, outputs: Specs) -> ResultShapes:
    x, y = inputs[0].shape, outputs[0].shape
    check(math.prod(x) == math.prod(y), f"{list(x)} does not reshape to {list(y)}")
    return (y,)


def reshape(_options: object, _inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    return (x.reshape(outputs[0].shape),)


def broadcast_shape(
    _infer: object, o: options.StablehloBroadcastInDimOptions, inputs: Specs, outputs: Specs
) -> ResultShapes:
    _check_broadcast(inputs[0].shape, o.broadcast_dimensions, outputs[0].shape)
    return (outputs[0].shape,)


def _check_broadcast(x: Shape, dims: Sequence[int], y: Shape) -> None:
    what = f"{list(x)} does not broadcast to {list(y)} along {list(dims)}"
    check(len(dims) == len(x) and len(set(dims)) == len(dims), what)
    check(all(0 <= d < len(y) for d in dims), what)
    check(all(n in (1, y[d]) for n, d in zip(x, dims, strict=True)), what)


def broadcast_in_dim(
    o: options.StablehloBroadcastInDimOptions, _inputs: Specs, outputs: Specs, x: Array
) -> tuple[Array]:
    """Dimension i of x becomes dimension broadcast_dimensions[i]; the others repeat x."""
    shape, dims = outputs[0].shape, o.broadcast_dimensions
    _check_broadcast(x.shape, dims, shape)
    source = [dims.index(d) for d in sorted(dims)]
    expanded = x.transpose(source).reshape(
        [x.shape[dims.index(d)] if d in dims else 1 for d in range(len(shape))]
    )
    return (np.broadcast_to(expanded, shape).copy(),)


def transposed_shape(o: options.StablehloTransposeOptions, inputs: Specs) -> ResultShapes:
    shape, order = inputs[0].shape, o.permutation
    check(sorted(order) == list(range(len(shape))), f"{list(order)} does not permute {list(shape)}")
    return (tuple(shape[d] for d in order),)


def transpose(o: options.StablehloTransposeOptions, x: Array) -> Array:
    """Dimension i of the result is dimension permutation[i] of x."""
    return x.transpose(o.permutation).copy()


# ---- CONCATENATE


def concatenated_shape(o: options.StablehloConcatenateOptions, inputs: Specs) -> ResultShapes:
    first, axis = inputs[0].shape, o.dimension
    check(0 <= axis < len(first), f"dimension {axis} is outside of {list(first)}")
    others = {(*spec.shape[:axis], 0, *spec.shape[axis + 1 :]) for spec in inputs}
    check(len(others) == 1, f"shapes {[spec.shape for spec in inputs]} differ outside of {axis}")
    return ((*first[:axis], sum(s.shape[axis] for s in inputs), *first[axis + 1 :]),)


def concatenate(o: options.StablehloConcatenateOptions, *parts: Array) -> Array:
    return np.concatenate(parts, o.dimension)


# ---- SLICE, DYNAMIC_SLICE, DYNAMIC_UPDATE_SLICE


def sliced_shape(o: options.StablehloSliceOptions, inputs: Specs) -> ResultShapes:
    shape = inputs[0].shape
    bounds = list(zip(o.start_indices, o.limit_indices, o.strides, strict=True))
    check(len(bounds) == len(shape), f"{o} is not for {list(shape)}")
    inside = all(0 <= a <= b <= n and s > 0 for (a, b, s), n in zip(bounds, shape, strict=True))
    check(inside, f"{o} is not within {list(shape)}")
    return (tuple(-(-(b - a) // s) for a, b, s in bounds),)


def slice_(o: options.StablehloSliceOptions, x: Array) -> Array:
    bounds = zip(o.start_indices, o.limit_indices, o.strides, strict=True)
    return x[tuple(slice(a, b, s) for a, b, s in bounds)].copy()


def _check_window(shape: Shape, sizes: Sequence[int], n_starts: int) -> None:
    check(len(shape) == len(sizes) == n_starts, f"{n_starts} starts of {sizes} in {list(shape)}")
    fits = all(0 <= m <= n for m, n in zip(sizes, shape, strict=True))
    check(fits, f"{list(sizes)} does not fit into {list(shape)}")


def _window(x: Array, sizes: Sequence[int], starts: Sequence[Array]) -> tuple[slice, ...]:
    """Starts are clamped so that the slice is inside."""
    lasts = [n - m for n, m in zip(x.shape, sizes, strict=True)]
    first = [min(max(i.item(), 0), last) for i, last in zip(starts, lasts, strict=True)]
    return tuple(slice(i, i + m) for i, m in zip(first, sizes, strict=True))


def dynamic_sliced_shape(o: options.StablehloDynamicSliceOptions, inputs: Specs) -> ResultShapes:
    _check_window(inputs[0].shape, o.slice_sizes, len(inputs) - 1)
    return (o.slice_sizes,)


def dynamic_slice(o: options.StablehloDynamicSliceOptions, x: Array, *starts: Array) -> Array:
    return x[_window(x, o.slice_sizes, starts)].copy()


def updated_shape(_options: object, inputs: Specs) -> ResultShapes:
    x, update, *starts = inputs
    _check_window(x.shape, update.shape, len(starts))
    return (x.shape,)


def dynamic_update_slice(_options: object, x: Array, update: Array, *starts: Array) -> Array:
    y = x.copy()
    y[_window(x, update.shape, starts)] = update
    return y


# ---- PAD, DILATE

Widths = list[tuple[int, int, int]]  # low, high, between elements


def shape_of_padded(shape: Shape, widths: Widths) -> Shape:
    check(len(widths) == len(shape), f"{len(widths)} paddings for {list(shape)}")
    check(all(inner >= 0 for *_, inner in widths), "interior padding must not be negative")
    lengths = tuple(
        low + n + max(n - 1, 0) * inner + high
        for n, (low, high, inner) in zip(shape, widths, strict=True)
    )
    check(min(lengths, default=0) >= 0, f"padding {list(shape)} by {widths} leaves {lengths}")
    return lengths


def padded(x: Array, value: Array, widths: Widths) -> Array:
    """Element i moves to low + i * (between + 1), or is dropped if that is outside."""
    y = np.full(shape_of_padded(x.shape, widths), value.reshape(()), x.dtype)
    targets = [
        low + np.arange(n) * (inner + 1) for n, (low, _, inner) in zip(x.shape, widths, strict=True)
    ]
    inside = [(t >= 0) & (t < n) for t, n in zip(targets, y.shape, strict=True)]
    if x.ndim == 0:
        return x.copy()
    y[np.ix_(*(t[i] for t, i in zip(targets, inside, strict=True)))] = x[np.ix_(*inside)]
    return y


def _edges(o: options.StablehloPadOptions) -> Widths:
    return list(zip(o.edge_padding_low, o.edge_padding_high, o.interior_padding, strict=True))


def padded_shape(o: options.StablehloPadOptions, inputs: Specs) -> ResultShapes:
    """A negative edge crops."""
    return (shape_of_padded(inputs[0].shape, _edges(o)),)


def pad(o: options.StablehloPadOptions, x: Array, value: Array) -> Array:
    return padded(x, value, _edges(o))


def _gaps(dilations: Array) -> Widths:
    check(all(int(d) >= 1 for d in dilations), f"dilations {dilations.tolist()} must be positive")
    return [(0, 0, int(d) - 1) for d in dilations]


def dilated_shape(_options: object, inputs: Specs) -> ResultShapes:
    """None where the dilations are not constant."""
    x, dilations = inputs[0].shape, inputs[1].const
    check(inputs[1].shape == (len(x),), f"{list(inputs[1].shape)} dilations of {list(x)}")
    return (None if dilations is None else shape_of_padded(x, _gaps(dilations)),)


def dilate(_options: object, x: Array, dilations: Array, value: Array) -> Array:
    return padded(x, value, _gaps(dilations))


# ---- IOTA


def iota_shape(
    _infer: object, o: options.StablehloIotaOptions, _inputs: Specs, outputs: Specs
) -> ResultShapes:
    shape = outputs[0].shape
    check(0 <= o.iota_dimension < len(shape), f"dimension {o.iota_dimension} of {list(shape)}")
    return (shape,)


def iota(o: options.StablehloIotaOptions, _inputs: Specs, outputs: Specs) -> tuple[Array]:
    y = outputs[0]
    return (np.indices(y.shape)[o.iota_dimension].astype(y.dtype),)


KERNELS = {
    "STABLEHLO_RESHAPE": Kernel(reshape, undeclared_shapes, inferred_shapes=reshaped_shape),
    "STABLEHLO_BROADCAST_IN_DIM": Kernel(
        broadcast_in_dim, undeclared_shapes, inferred_shapes=broadcast_shape
    ),
    "STABLEHLO_TRANSPOSE": Kernel(as_run(transpose), transposed_shape),
    "STABLEHLO_CONCATENATE": Kernel(as_run(concatenate), concatenated_shape),
    "STABLEHLO_SLICE": Kernel(as_run(slice_), sliced_shape),
    "STABLEHLO_DYNAMIC_SLICE": Kernel(as_run(dynamic_slice), dynamic_sliced_shape),
    "STABLEHLO_DYNAMIC_UPDATE_SLICE": Kernel(as_run(dynamic_update_slice), updated_shape),
    "STABLEHLO_PAD": Kernel(as_run(pad), padded_shape),
    "DILATE": Kernel(as_run(dilate), dilated_shape),
    "STABLEHLO_IOTA": Kernel(iota, undeclared_shapes, inferred_shapes=iota_shape),
}
