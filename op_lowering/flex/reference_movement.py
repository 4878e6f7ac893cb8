"""Values that move: copies, rolls, concatenations, gradients of slices, diagonals.

Sources: core/kernels/{concat_op,ensure_shape_op,identity_op,inverse_permutation...}.cc, roll_op.cc,
strided_slice_op.cc, core/kernels/linalg/matrix_{diag,set_diag}_op.cc.
"""

import numpy as np

from jaxdelegate.op_lowering.flex.reference_kernels import constant, kernels
from jaxdelegate.op_lowering.layout.options import ConcatenationOptions
from jaxdelegate.op_lowering.layout.reference import concatenated_shape
from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.reference.kernel import Array, Kernel, ResultShapes, as_run, same_shape
from jaxdelegate.reference.movement import ints, resolved_axis
from jaxdelegate.wire import Message


def identity(_o: FlexOptions, x: Array) -> Array:
    return x


# ---- EnsureShape


def ensured_shape(o: FlexOptions, inputs: Specs) -> ResultShapes:
    _check_shape(o, inputs[0].shape)
    return same_shape(o, inputs)


def settled_shape(o: FlexOptions, _inputs: Specs) -> ResultShapes:
    sizes = _ensured(o)
    return (None if sizes is None or -1 in sizes else sizes,)


def ensure_shape(o: FlexOptions, x: Array) -> Array:
    """The input, whose shape must be the one that the operator names."""
    _check_shape(o, x.shape)
    return x


def sizes_of(shape: Message) -> Shape:
    """The sizes in a TensorShapeProto; -1 is any size."""
    return tuple((dimension.integers(1) or [0])[-1] for dimension in shape.messages(2))


def _ensured(o: FlexOptions) -> Shape | None:
    shape = Message(o.shape)
    return None if shape.integer(3) else sizes_of(shape)


def _check_shape(o: FlexOptions, shape: Shape) -> None:
    sizes = _ensured(o)
    if sizes is None:
        return
    pairs = zip(sizes, shape, strict=False)
    if len(sizes) != len(shape) or any(size not in (-1, n) for size, n in pairs):
        raise ValueError(f"FlexEnsureShape: expected the shape {list(sizes)}, got {list(shape)}")


# ---- Roll, InvertPermutation


def roll(_o: FlexOptions, x: Array, shift: Array, axis: Array) -> Array:
    if shift.shape != axis.shape or shift.ndim > 1:
        raise ValueError(f"Roll by {shift.tolist()} along {axis.tolist()}")
    axes = [resolved_axis(int(a), x.ndim, "Roll") for a in axis.reshape(-1)]
    return np.roll(x, shift.reshape(-1).tolist(), axes)


def invert_permutation(_o: FlexOptions, x: Array) -> Array:
    if x.ndim != 1 or sorted(x.tolist()) != list(range(len(x))):
        raise ValueError("InvertPermutation: it is not a permutation")
    return np.argsort(x)


# ---- ConcatV2: values, axis


def concat_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    *values, axis = inputs
    if axis.const is None:
        return (None,)
    return concatenated_shape(ConcatenationOptions(_axis(np.asarray(axis.const))), tuple(values))


def _axis(axis: Array) -> int:
    if axis.size != 1:
        raise ValueError(f"axes {ints(axis)}: expected one")
    return ints(axis)[0]


def concat(_o: FlexOptions, *arrays: Array) -> Array:
    return np.concatenate(arrays[:-1], _axis(arrays[-1]))


# ---- StridedSliceGrad: shape, begin, end, strides, gradient


def slice_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    return (constant(inputs[0]),)


def slice_gradient(o: FlexOptions, *arrays: Array) -> Array:
    """Zeros, except where the slice read."""
    (shape, *entries), dy = map(ints, arrays[:4]), arrays[4]
    y, index = np.zeros(shape, dy.dtype), o.index(*entries)
    if y[index].shape != dy.shape:
        sizes = f"a slice is {list(y[index].shape)}, not {list(dy.shape)}"
        raise ValueError(f"StridedSliceGrad: {sizes}")
    y[index] = dy
    return y


# ---- MatrixDiagPart, MatrixDiag, MatrixSetDiag


def matrix_shape(spec: TensorSpec) -> Shape:
    if len(spec.shape) < 2:
        raise ValueError(f"{spec.name!r} {list(spec.shape)} is not of matrices")
    return spec.shape


def diagonals_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    *batch, rows, columns = matrix_shape(inputs[0])
    if inputs[1].const is None:
        return (None,)
    return ((*batch, *_of_band(*_band(np.asarray(inputs[1].const), rows, columns), rows, columns)),)


def _of_band(first: int, last: int, rows: int, columns: int) -> Shape:
    """The shape of the diagonals of one matrix."""
    longest = max(_length(k, rows, columns) for k in range(first, last + 1))
    return (last - first + 1, longest) if first < last else (longest,)


def _band(k: Array, rows: int, columns: int) -> tuple[int, int]:
    band = ints(k)
    if len(band) not in (1, 2) or not -rows < band[0] <= band[-1] < columns:
        raise ValueError(f"diagonals {band} of [{rows}, {columns}]")
    return band[0], band[-1]


def _length(k: int, rows: int, columns: int) -> int:
    return min(rows + min(k, 0), columns - max(k, 0))


def diagonals(o: FlexOptions, x: Array, k: Array, padding: Array) -> Array:
    """Upper diagonals first; shorter ones are padded on the side that `align` leaves."""
    first, last = _band(k, *x.shape[-2:])
    shape = _of_band(first, last, *x.shape[-2:])
    y = np.full((*x.shape[:-2], last - first + 1, shape[-1]), padding.reshape(()), x.dtype)
    for i, offset in enumerate(range(last, first - 1, -1)):
        values = np.diagonal(x, offset, -2, -1)
        y[..., i, _part(o, offset, values.shape[-1], shape[-1])] = values
    return y.reshape(*x.shape[:-2], *shape)


def _part(o: FlexOptions, offset: int, size: int, longest: int) -> slice:
    """The values of a diagonal among those of the longest."""
    above, below = (side == "RIGHT" for side in o.align.split("_"))
    start = longest - size if (above if offset >= 0 else below) else 0
    return slice(start, start + size)


def matrices_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    """The smallest matrices that have the diagonals, or of the sizes that are not -1."""
    if any(spec.const is None for spec in inputs[1:4]):
        return (None,)
    k, (rows,), (columns,) = (ints(np.asarray(spec.const)) for spec in inputs[1:4])
    return (_matrices_shape(inputs[0].shape, k, rows, columns),)


def _matrices_shape(shape: Shape, k: list[int], rows: int, columns: int) -> Shape:
    least_rows, least_columns = shape[-1] - min(k[-1], 0), shape[-1] + max(k[0], 0)
    if rows == columns == -1:
        rows = columns = max(least_rows, least_columns)
    rows, columns = (m if n == -1 else n for m, n in ((least_rows, rows), (least_columns, columns)))
    first, last = _band(np.asarray(k), rows, columns)
    if shape[-2 if first < last else -1 :] != _of_band(first, last, rows, columns):
        raise ValueError(f"diagonals {list(shape)} for {k} of [{rows}, {columns}]")
    return (*shape[: -2 if first < last else -1], rows, columns)


def matrices_of(
    o: FlexOptions, x: Array, k: Array, rows: Array, columns: Array, padding: Array
) -> Array:
    """Matrices with these diagonals, and the padding around them."""
    shape = _matrices_shape(x.shape, ints(k), int(rows.reshape(())), int(columns.reshape(())))
    return with_diagonals(o, np.full(shape, padding.reshape(()), x.dtype), x, k)


def with_diagonals_shape(o: FlexOptions, inputs: Specs) -> ResultShapes:
    x, diagonal, k = inputs[:3]
    (shape,) = diagonals_shape(o, (x, k))
    if shape not in (None, diagonal.shape):
        raise ValueError(f"diagonals {list(diagonal.shape)} for {list(shape)}")
    return (x.shape,)


def with_diagonals(o: FlexOptions, x: Array, diagonal: Array, k: Array) -> Array:
    """The values of `x`, except on these diagonals."""
    y, (first, last) = x.copy(), _band(k, *x.shape[-2:])
    each = diagonal if first < last else diagonal[..., None, :]
    for i, offset in enumerate(range(last, first - 1, -1)):
        n = np.arange(_length(offset, *x.shape[-2:]))
        part = _part(o, offset, len(n), diagonal.shape[-1])
        y[..., n + max(-offset, 0), n + max(offset, 0)] = each[..., i, part]
    return y


KERNELS = kernels(
    {
        "ConcatV2": (concat, concat_shape),
        "EnsureShape": Kernel(as_run(ensure_shape), ensured_shape, settled=settled_shape),
        "Identity": (identity, same_shape),
        "InvertPermutation": (invert_permutation, same_shape),
        "Roll": (roll, same_shape),
        "StridedSliceGrad": (slice_gradient, slice_shape),
        **{
            f"Matrix{kind}{version}": row
            for kind, row in (
                ("Diag", (matrices_of, matrices_shape)),
                ("DiagPart", (diagonals, diagonals_shape)),
                ("SetDiag", (with_diagonals, with_diagonals_shape)),
            )
            for version in ("V2", "V3")
        },
    }
)
