"""DOT_GENERAL and CONVOLUTION, as the StableHLO specification defines them."""

import dataclasses
import string
from collections.abc import Sequence

import numpy as np

from jaxdelegate.op_lowering.dtypes import HALVES
from jaxdelegate.op_lowering.spec import Specs
from jaxdelegate.op_lowering.stablehlo.options import (
    StablehloConvolutionOptions,
    StablehloDotGeneralOptions,
)
from jaxdelegate.op_lowering.stablehlo.reference_shape import check, check_dims, padded
from jaxdelegate.reference.kernel import Array, Kernel, ResultShapes
from jaxdelegate.reference.pointwise import reject_quantized


def _factor(x: Array, dtype: np.dtype) -> Array:
    """A factor in the dtype of sums: the result's, but float32 for half precision."""
    wide = np.dtype(np.float32) if dtype in HALVES else dtype
    return x.astype(wide if wide.itemsize >= x.dtype.itemsize else x.dtype)


# ---- DOT_GENERAL


def dot_general_shape(o: StablehloDotGeneralOptions, inputs: Specs) -> ResultShapes:
    """Batch dimensions, then the other dimensions of the first input, then of the second."""
    x, w = inputs[0].shape, inputs[1].shape
    lhs = (*o.lhs_batching_dimensions, *o.lhs_contracting_dimensions)
    rhs = (*o.rhs_batching_dimensions, *o.rhs_contracting_dimensions)
    check_dims("lhs dimensions", lhs, len(x))
    check_dims("rhs dimensions", rhs, len(w))
    paired = len(o.lhs_batching_dimensions) == len(o.rhs_batching_dimensions)
    fits = paired and [x[d] for d in lhs] == [w[d] for d in rhs]
    check(fits, f"{x} and {w} do not match in {lhs}, {rhs}")
    left, right = (_others(n, dims) for n, dims in ((len(x), lhs), (len(w), rhs)))
    batch = (x[d] for d in o.lhs_batching_dimensions)
    return ((*batch, *(x[d] for d in left), *(w[d] for d in right)),)


def _others(rank: int, dims: Sequence[int]) -> list[int]:
    return [d for d in range(rank) if d not in dims]


def dot_general(
    o: StablehloDotGeneralOptions, inputs: Specs, outputs: Specs, x: Array, w: Array
) -> tuple[Array]:
    """For booleans, the sum is any and the product is all."""
    reject_quantized(inputs)
    letters = iter(string.ascii_letters)
    left, right = ([""] * a.ndim for a in (x, w))
    batch = list(zip(o.lhs_batching_dimensions, o.rhs_batching_dimensions, strict=True))
    contract = zip(o.lhs_contracting_dimensions, o.rhs_contracting_dimensions, strict=True)
    for i, j in (*batch, *contract):
        left[i] = right[j] = next(letters)
    lhs = (*o.lhs_batching_dimensions, *o.lhs_contracting_dimensions)
    rhs = (*o.rhs_batching_dimensions, *o.rhs_contracting_dimensions)
    result = [left[i] for i, _ in batch]
    for names, free in ((left, _others(x.ndim, lhs)), (right, _others(w.ndim, rhs))):
        for d in free:
            names[d] = next(letters)
            result.append(names[d])
    dtype = outputs[0].dtype
    terms = f"{''.join(left)},{''.join(right)}->{''.join(result)}"
    with np.errstate(all="ignore"):
        y = np.einsum(terms, _factor(x, dtype), _factor(w, dtype))
        return (np.asarray(y).astype(dtype),)


# ---- CONVOLUTION


@dataclasses.dataclass(frozen=True)
class _Axis:
    stride: int
    low: int
    high: int
    base_dilation: int
    dilation: int
    reversed: bool

    def padded(self, n: int) -> int:
        """The length of the dilated and padded input."""
        return max((n - 1) * self.base_dilation + 1, 0) + self.low + self.high

    def n_out(self, n: int, size: int) -> int:
        span = (size - 1) * self.dilation + 1 if size else 0
        room = self.padded(n) - span
        return room // self.stride + 1 if room >= 0 and self.padded(n) > 0 else 0


def _axes(o: StablehloConvolutionOptions) -> list[_Axis]:
    """Absent attributes are neutral."""
    rank = len(o.input_spatial_dimensions)
    padding = o.padding or (0, 0) * rank
    ones = (1,) * rank
    columns = (
        o.window_strides or ones,
        padding[::2],
        padding[1::2],
        o.lhs_dilation or ones,
        o.rhs_dilation or ones,
        o.window_reversal or (False,) * rank,
    )
    axes = [_Axis(*row) for row in zip(*columns, strict=False)]
    fits = all(len(column) == rank for column in columns)
    fits = fits and all(min(a.stride, a.base_dilation, a.dilation) > 0 for a in axes)
    check(fits, f"window attributes of {o} do not fit {rank} dimensions")
    return axes


def _input_dims(o: StablehloConvolutionOptions) -> tuple[int, ...]:
    return (o.input_batch_dimension, *o.input_spatial_dimensions, o.input_feature_dimension)


def _kernel_dims(o: StablehloConvolutionOptions) -> tuple[int, ...]:
    return (
        *o.kernel_spatial_dimensions,
        o.kernel_input_feature_dimension,
        o.kernel_output_feature_dimension,
    )


def _output_dims(o: StablehloConvolutionOptions) -> tuple[int, ...]:
    return (o.output_batch_dimension, *o.output_spatial_dimensions, o.output_feature_dimension)


def convolution_shape(o: StablehloConvolutionOptions, inputs: Specs) -> ResultShapes:
    """Batch / groups, places of the window, output features, in the output's layout."""
    x, w = inputs[0].shape, inputs[1].shape
    for dims, shape in ((_input_dims(o), x), (_kernel_dims(o), w), (_output_dims(o), x)):
        check(sorted(dims) == list(range(len(shape))), f"{dims} are not the dimensions of {shape}")
    groups, batch_groups = o.feature_group_count or 1, o.batch_group_count or 1
    n, *spatial, c = (x[d] for d in _input_dims(o))
    *window, c_in, c_out = (w[d] for d in _kernel_dims(o))
    check(c == c_in * groups, f"{c} features, not {groups} groups of {c_in}")
    check(c_out % groups == c_out % batch_groups == n % batch_groups == 0, f"{o}: odd groups")
    check(min(groups, batch_groups) == 1, f"{o}: groups of both kinds, or fewer than one")
    places = [a.n_out(m, k) for a, m, k in zip(_axes(o), spatial, window, strict=True)]
    sizes = dict(zip(_output_dims(o), (n // batch_groups, *places, c_out), strict=True))
    return (tuple(sizes[d] for d in range(len(x))),)


def convolution(
    o: StablehloConvolutionOptions, inputs: Specs, outputs: Specs, x: Array, w: Array
) -> tuple[Array]:
    """For booleans, the sum is any and the product is all."""
    reject_quantized(inputs)
    dtype = outputs[0].dtype
    x = _factor(x.transpose(_input_dims(o)), dtype)  # [N, *spatial, C]
    w = _factor(w.transpose(_kernel_dims(o)), dtype)  # [*window, I, O]
    groups, batch_groups = o.feature_group_count or 1, o.batch_group_count or 1
    parts = zip(
        np.split(x, batch_groups, 0) if batch_groups > 1 else np.split(x, groups, -1),
        np.split(w, max(groups, batch_groups), -1),
        strict=True,
    )
    with np.errstate(all="ignore"):
        y = np.concatenate([_convolve(a, b, _axes(o)) for a, b in parts], -1)
        y = y.transpose(np.argsort(_output_dims(o)))
        return (np.ascontiguousarray(y).astype(dtype).reshape(outputs[0].shape),)


def _convolve(x: Array, w: Array, axes: Sequence[_Axis]) -> Array:
    """[N, *spatial, C] by [*window, C, O] -> [N, *places, O], without groups."""
    spatial, window = x.shape[1:-1], w.shape[:-2]
    places = [a.n_out(n, k) for a, n, k in zip(axes, spatial, window, strict=True)]
    y = np.zeros((x.shape[0], *places, w.shape[-1]), x.dtype)
    if 0 in y.shape:
        return y
    widths = [(a.low, a.high, a.base_dilation - 1) for a in axes]
    base = padded(x, np.zeros(()), [(0, 0, 0), *widths, (0, 0, 0)])
    for tap in np.ndindex(*window):
        starts = [t * a.dilation for t, a in zip(tap, axes, strict=True)]
        reads = tuple(
            slice(i, i + (n - 1) * a.stride + 1, a.stride)
            for i, n, a in zip(starts, places, axes, strict=True)
        )
        at = tuple(
            k - 1 - t if a.reversed else t for t, k, a in zip(tap, window, axes, strict=True)
        )
        y = y + np.einsum("...i,io->...o", base[(slice(None), *reads)], w[at])
    return y


KERNELS = {
    "STABLEHLO_DOT_GENERAL": Kernel(dot_general, dot_general_shape),
    "STABLEHLO_CONVOLUTION": Kernel(convolution, convolution_shape),
}
