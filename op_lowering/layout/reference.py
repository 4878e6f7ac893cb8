"""Data movement, each operator as LiteRT's kernels/<operator>.cc computes it."""

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.layout.options import (
    ConcatenationOptions,
    DepthToSpaceOptions,
    PackOptions,
    SpaceToDepthOptions,
)
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.quant.affine import block_parameters, round_half_away, spread
from jaxdelegate.quant.params import Blockwise, integer_range, tensor_scale, tensor_zero_point
from jaxdelegate.reference.kernel import Array, Kernel, same_shape, without_specs
from jaxdelegate.reference.movement import ints, known, require_one_scaling, resolved_axis, scaling
from jaxdelegate.reference.quantization import quantization_of

# ---- CONCATENATION of uint8, EMBEDDING_LOOKUP: the stored numbers change

_TABLES = (np.int8, np.uint8, ml_dtypes.int4, ml_dtypes.int2)


@np.errstate(all="ignore")
def rescaled(x_spec: TensorSpec, y_spec: TensorSpec, x: Array) -> Array:
    """An input of CONCATENATION as integers of the output's scale, rounded in float32.

    As ConcatenationWithScaling of kernels/internal/reference/concatenation.h.
    """
    source = quantization_of("CONCATENATION", x_spec, np.uint8)
    target = quantization_of("CONCATENATION", y_spec, np.uint8)
    inverse = np.float32(1) / np.float32(tensor_scale(target))
    scale = np.float32(tensor_scale(source)) * inverse
    bias = np.float32(-tensor_zero_point(source)) * scale
    y = round_half_away(x.astype(np.float32) * scale + bias).astype(np.float64)
    low, high = integer_range(y_spec.dtype)
    return np.clip(y + tensor_zero_point(target), low, high).astype(y_spec.dtype)


def dequantized_rows(table: TensorSpec, y: TensorSpec, rows: Array, ids: Array) -> Array:
    """The rows `ids` of a table with one scale, or one for each row or block, as floats.

    As EvalHybrid and EvalBlockwise of kernels/embedding_lookup.cc: uint8 is read as int8. Unlike
    that kernel, it applies the zero points of blocks.
    """
    if y.dtype not in (np.float32, np.float16):
        raise TypeError(
            f"EMBEDDING_LOOKUP: {table.name!r} is {table.dtype} and {y.name!r} {y.dtype}"
        )
    if table.blocks is not None:
        return _dequantized_blocks(table.blocks, rows, ids).astype(y.dtype)
    quantization = quantization_of("EMBEDDING_LOOKUP", table, *_TABLES)
    scales, points = quantization.scale, quantization.zero_point
    if scales.size > 1 and (quantization.quantized_dimension or scales.size != len(rows)):
        raise ValueError(f"EMBEDDING_LOOKUP: {scales.size} scales for {len(rows)} rows")
    if np.any(points[ids] if len(points) == len(rows) else points):  # not of the whole table
        raise ValueError(f"EMBEDDING_LOOKUP: {table.name!r} must have zero points of 0")
    of_row = np.broadcast_to(scales, (len(rows),))[ids].astype(np.float32)
    values = rows[ids].astype(np.int8).astype(np.float32)
    return np.asarray(values * of_row.reshape(-1, *[1] * (values.ndim - 1)), y.dtype)


def _dequantized_blocks(blocks: Blockwise, rows: Array, ids: Array) -> Array:
    taken = rows[ids].astype(np.int32)
    parameters = block_parameters(blocks, rows.shape, ids)
    scale, points = (spread(values, taken.shape) for values in parameters)
    return np.asarray((taken - points).astype(np.float32) * scale)


# ---- the stored numbers move


def transposed_shape(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    x, perm = inputs[:2]
    if perm.const is None:
        return (None,)
    return (tuple(x.shape[i] for i in _order(perm.const, len(x.shape))),)


def transpose(_o: Options, x: Array, perm: Array) -> Array:
    """Dimension i of the result is dimension perm[i]."""
    return np.transpose(x, _order(perm, x.ndim))


def _order(perm: Array, rank: int) -> list[int]:
    order = [resolved_axis(i, rank, "TRANSPOSE") for i in ints(perm)]
    if sorted(order) != list(range(rank)):
        raise ValueError(f"TRANSPOSE: {ints(perm)} does not permute {rank} dimensions")
    return order


def concatenated_shape(o: ConcatenationOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    shapes = [spec.shape or (1,) for spec in inputs]  # scalars join to a vector
    axis = resolved_axis(o.axis, len(shapes[0]), "CONCATENATION")
    others = {(*shape[:axis], None, *shape[axis + 1 :]) for shape in shapes}
    if len(others) != 1 or len({len(shape) for shape in shapes}) != 1:
        raise ValueError(f"CONCATENATION: {shapes} differ in a dimension other than axis {axis}")
    n = sum(shape[axis] for shape in shapes)
    return ((*shapes[0][:axis], n, *shapes[0][axis + 1 :]),)


def concatenation(
    o: ConcatenationOptions, inputs: Specs, outputs: Specs, *xs: Array
) -> tuple[Array]:
    """LiteRT's kernel applies no activation; TFLite's GPU delegate does."""
    parts = [
        x if scaling(spec) == scaling(outputs[0]) else rescaled(spec, outputs[0], x)
        for spec, x in zip(inputs, xs, strict=True)
    ]
    y = np.concatenate([np.atleast_1d(x) for x in parts], o.axis)
    return (_ACTIVATIONS[o.fused_activation_function](y).astype(outputs[0].dtype, copy=False),)


_ACTIVATIONS: dict[ActivationFunctionType, Callable[[Array], Array]] = {
    ActivationFunctionType.NONE: lambda y: y,
    ActivationFunctionType.RELU: lambda y: np.clip(y, 0, None),
    ActivationFunctionType.RELU_N1_TO_1: lambda y: np.clip(y, -1, 1),
    ActivationFunctionType.RELU6: lambda y: np.clip(y, 0, 6),
    ActivationFunctionType.TANH: np.tanh,
}


def packed_shape(o: PackOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    shape = inputs[0].shape
    axis = resolved_axis(o.axis, len(shape) + 1, "PACK")
    return ((*shape[:axis], len(inputs), *shape[axis:]),)


def pack(o: PackOptions, inputs: Specs, outputs: Specs, *xs: Array) -> tuple[Array]:
    require_one_scaling("PACK", outputs[0], *inputs)
    return (np.stack(xs, resolved_axis(o.axis, xs[0].ndim + 1, "PACK")),)


def tiled_shape(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    x, times = inputs[:2]
    if times.const is None:
        return (None,)
    return (tuple(n * m for n, m in zip(x.shape, _multiples(times.const), strict=True)),)


def tile(_o: Options, x: Array, times: Array) -> Array:
    return np.tile(x, _multiples(times))


def _multiples(times: Array) -> list[int]:
    if min(ints(times), default=0) < 0:
        raise ValueError(f"TILE: multiples must not be negative, got {ints(times)}")
    return ints(times)


def reverse_v2(_o: Options, x: Array, axes: Array) -> Array:
    """LiteRT's kernel requires contiguous axes, TensorFlow's does not."""
    dimensions = {resolved_axis(axis, x.ndim, "REVERSE_V2") for axis in ints(axes)}
    return np.flip(x, tuple(dimensions))


def roll(_o: Options, x: Array, shift: Array, axis: Array) -> Array:
    """TensorFlow's Roll; several shifts of one dimension add up."""
    for by, along in zip(ints(shift), ints(axis), strict=True):
        x = np.roll(x, by, resolved_axis(along, x.ndim, "Roll"))
    return x


def space_to_batch_shape(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    """[N, spatial..., rest...] -> [N * blocks, padded spatial / block..., rest...]."""
    x, block, paddings = inputs[:3]
    values = known(block, paddings)
    if values is None:
        return (None,)
    sides = _padded_sides(x.shape, *values)
    m = len(values[0])
    small = [n // b for n, b in zip(sides, values[0], strict=True)]
    return ((x.shape[0] * math.prod(values[0]), *small, *x.shape[m + 1 :]),)


def _padded_sides(shape: Shape, block: list[int], paddings: list[int]) -> list[int]:
    m = len(block)
    sums = [a + b for a, b in zip(paddings[::2], paddings[1::2], strict=True)]
    sides = [n + s for n, s in zip(shape[1 : m + 1], sums, strict=True)]
    if min(block, default=1) < 1 or any(n % b for n, b in zip(sides, block, strict=True)):
        raise ValueError(f"SPACE_TO_BATCH_ND: padded {sides} do not divide into {block}")
    return sides


def space_to_batch_nd(
    _o: Options, inputs: Specs, outputs: Specs, x: Array, block: Array, paddings: Array
) -> tuple[Array]:
    """Each position within a block becomes a batch, in row-major order."""
    require_one_scaling("SPACE_TO_BATCH_ND", inputs[0], outputs[0])
    steps, y = ints(block), outputs[0]
    sides = _padded_sides(x.shape, steps, ints(paddings))
    points = y.quantization.zero_point if y.quantization is not None else np.zeros(0)
    zero = points[0] if points.size else 0
    padded = np.full((x.shape[0], *sides, *x.shape[len(steps) + 1 :]), zero, x.dtype)
    corner = [slice(a, a + n) for a, n in zip(ints(paddings)[::2], x.shape[1:], strict=False)]
    padded[:, *corner] = x
    return (np.concatenate([padded[:, *every] for every in _every(steps)]),)


def _every(block: list[int]) -> list[list[slice]]:
    """The elements at each position within a block, row by row."""
    return [
        [slice(i, None, b) for i, b in zip(position, block, strict=True)]
        for position in np.ndindex(*block)
    ]


def batch_to_space_shape(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    """[N * blocks, spatial..., rest...] -> [N, cropped spatial * block..., rest...]."""
    x, block, crops = inputs[:3]
    values = known(block, crops)
    if values is None:
        return (None,)
    n, sides = _joined(x.shape, values[0])
    kept = [end - start for start, end in _kept(sides, values[1])]
    return ((n, *kept, *x.shape[len(sides) + 1 :]),)


def _joined(shape: Shape, block: list[int]) -> tuple[int, list[int]]:
    if min(block, default=1) < 1 or shape[0] % math.prod(block):
        raise ValueError(f"BATCH_TO_SPACE_ND: a batch of {shape[0]} does not divide into {block}")
    sides = [n * b for n, b in zip(shape[1:], block, strict=False)]
    return shape[0] // math.prod(block), sides


def _kept(sides: list[int], crops: list[int]) -> list[tuple[int, int]]:
    bounds = [(a, n - b) for n, a, b in zip(sides, crops[::2], crops[1::2], strict=True)]
    if min(crops, default=0) < 0 or any(start > end for start, end in bounds):
        raise ValueError(f"BATCH_TO_SPACE_ND: crops {crops} do not fit {sides}")
    return bounds


def batch_to_space_nd(
    _o: Options, inputs: Specs, outputs: Specs, x: Array, block: Array, crops: Array
) -> tuple[Array]:
    """The inverse of SPACE_TO_BATCH_ND, then a crop."""
    require_one_scaling("BATCH_TO_SPACE_ND", inputs[0], outputs[0])
    n, sides = _joined(x.shape, ints(block))
    whole = np.empty((n, *sides, *x.shape[len(sides) + 1 :]), x.dtype)
    for i, every in enumerate(_every(ints(block))):
        whole[:, *every] = x[i * n : (i + 1) * n]
    return (whole[:, *(slice(start, end) for start, end in _kept(sides, ints(crops)))],)


def space_to_depth_shape(o: SpaceToDepthOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """[N, H, W, C] -> [N, H / block, W / block, C * block * block]."""
    n, h, w, c = inputs[0].shape
    b = o.block_size
    if b < 1 or h % b or w % b:
        raise ValueError(f"SPACE_TO_DEPTH: [{h}, {w}] does not divide into blocks of {b}")
    return ((n, h // b, w // b, c * b * b),)


def space_to_depth(o: SpaceToDepthOptions, x: Array) -> Array:
    """Each position within a block becomes a group of channels."""
    b = o.block_size
    return np.concatenate([x[:, i::b, j::b] for i, j in np.ndindex(b, b)], 3)


def depth_to_space_shape(o: DepthToSpaceOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """[N, H, W, C * block * block] -> [N, H * block, W * block, C]."""
    n, h, w, c = inputs[0].shape
    b = o.block_size
    if b < 1 or c % (b * b):
        raise ValueError(f"DEPTH_TO_SPACE: {c} channels do not divide into blocks of {b}")
    return ((n, h * b, w * b, c // (b * b)),)


def depth_to_space(o: DepthToSpaceOptions, x: Array) -> Array:
    """Groups of channels become the positions of a block."""
    b = o.block_size
    n, h, w, c = x.shape
    group = c // (b * b)
    y = np.empty((n, h * b, w * b, group), x.dtype)
    for k, (i, j) in enumerate(np.ndindex(b, b)):
        y[:, i::b, j::b] = x[..., k * group : (k + 1) * group]
    return y


KERNELS = {
    "TRANSPOSE": Kernel(without_specs(transpose), transposed_shape),
    "CONCATENATION": Kernel(concatenation, concatenated_shape),
    "PACK": Kernel(pack, packed_shape),
    "TILE": Kernel(without_specs(tile), tiled_shape),
    "REVERSE_V2": Kernel(without_specs(reverse_v2), same_shape),
    "Roll": Kernel(without_specs(roll), same_shape),
    "SPACE_TO_BATCH_ND": Kernel(space_to_batch_nd, space_to_batch_shape),
    "BATCH_TO_SPACE_ND": Kernel(batch_to_space_nd, batch_to_space_shape),
    "SPACE_TO_DEPTH": Kernel(without_specs(space_to_depth), space_to_depth_shape),
    "DEPTH_TO_SPACE": Kernel(without_specs(depth_to_space), depth_to_space_shape),
}
