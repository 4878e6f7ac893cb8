"""Rows of different lengths (core/kernels/{string_ngrams_op,ragged_tensor_to_tensor_op,...}.cc)."""

import itertools
import re
from collections.abc import Iterator, Sequence

import numpy as np

from jaxdelegate.op_lowering.flex.reference_kernels import kernels
from jaxdelegate.op_lowering.flex.reference_text import split_result, split_shape, strings
from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel, ResultShapes
from jaxdelegate.reference.movement import ints, resolved_axis

_WIDEST = 1 << 16  # a damaged file asks for any number


def _checked(splits: Array, n: int) -> list[int]:
    """Where rows begin and end among n values."""
    ends = ints(splits)
    is_rising = all(a <= b for a, b in itertools.pairwise(ends))
    if not ends or ends[0] != 0 or ends[-1] != n or not is_rising:
        raise ValueError(f"row splits {ends} of {n} values: expected to rise from 0 to that")
    return ends


# ---- StringNGrams: strings, row splits


def ngrams_shapes(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    if len(inputs[0].shape) != 1 or len(inputs[1].shape) != 1:
        raise ValueError("expected a vector of strings and one of row splits")
    return None, inputs[1].shape


def ngrams(o: FlexOptions, x: Array, splits: Array) -> tuple[Array, Array]:
    """Each run of strings in a row that is as wide as one of the widths."""
    if not o.ngram_widths or not 1 <= min(o.ngram_widths) <= max(o.ngram_widths) <= _WIDEST:
        widths = list(o.ngram_widths)
        raise ValueError(f"StringNGrams of {widths} strings: expected 1 to {_WIDEST}")
    ends = _checked(splits, len(x))
    rows = [list(_ngrams(o, x[a:b].tolist())) for a, b in itertools.pairwise(ends)]
    return strings([text for row in rows for text in row]), np.cumsum([0, *map(len, rows)])


def _ngrams(o: FlexOptions, row: list[bytes]) -> Iterator[bytes]:
    widths = [w for w in o.ngram_widths if len(row) + 2 * _padding(o, w) >= w]
    if not widths and o.preserve_short_sequences and row:
        widths = [len(row) + 2 * o.pad_width]
    for width in widths:
        n = _padding(o, width)
        padded = [*[o.left_pad.encode()] * n, *row, *[o.right_pad.encode()] * n]
        for i in range(len(padded) - width + 1):
            yield o.separator.encode().join(padded[i : i + width])


def _padding(o: FlexOptions, width: int) -> int:
    return width - 1 if o.pad_width < 0 else min(o.pad_width, width - 1)


# ---- StringSplit: strings, delimiters


def split(o: FlexOptions, x: Array, delimiters: Array) -> tuple[Array, ...]:
    """At each byte that is a delimiter; without delimiters, into bytes."""
    pattern = b"[%s]" % re.escape(delimiters.item()) if delimiters.item() else b""
    return split_result([_parts(o, pattern, text) for text in x])


def _parts(o: FlexOptions, pattern: bytes, text: bytes) -> list[bytes]:
    if not pattern:
        return [text[i : i + 1] for i in range(len(text))]
    parts = re.split(pattern, text) if text else []
    return [part for part in parts if part or not o.skip_empty]


# ---- RaggedTensorToTensor: shape, values, a default value, row partitions


def _partitions(o: FlexOptions, held: Sequence[Array], n: int) -> list[list[int]]:
    """The row splits of each level, the outermost first; the last ones are of n values."""
    kinds = list(o.row_partition_types)
    if len(kinds) != len(held):
        raise ValueError(f"{len(held)} row partitions of the types {kinds}")
    if kinds == ["ROW_SPLITS"] * len(kinds):
        splits = [np.asarray(array) for array in held]
    elif kinds == ["FIRST_DIM_SIZE", *["VALUE_ROWIDS"] * (len(kinds) - 1)]:
        sizes = [*ints(held[0]), *(len(array) for array in held[1:])]
        splits = [_splits(ids, rows) for ids, rows in zip(held[1:], sizes, strict=False)]
    else:
        raise ValueError(f"row partitions of the types {kinds}")
    sizes = [*(len(array) - 1 for array in splits[1:]), n]
    return [_checked(array, size) for array, size in zip(splits, sizes, strict=True)]


def _splits(rows: Array, n: int) -> Array:
    """Row splits from the row of each value."""
    if (np.diff(rows) < 0).any() or (rows.size and not 0 <= rows[0] <= rows[-1] < n):
        raise ValueError(f"rows {ints(rows)} of {n}: expected to rise within those")
    return np.searchsorted(rows, np.arange(n + 1))


def dense_shape(o: FlexOptions, inputs: Specs) -> ResultShapes:
    shape, values, _, *partitions = inputs
    if any(spec.const is None for spec in (shape, *partitions)):
        return (None,)
    levels = _partitions(o, [np.asarray(s.const) for s in partitions], values.shape[0])
    return (_dense_shape(np.asarray(shape.const), values.shape, levels),)


def _dense_shape(declared: Array, values: Shape, levels: list[list[int]]) -> Shape:
    longest = (max((b - a for a, b in itertools.pairwise(ends)), default=0) for ends in levels)
    dense = (len(levels[0]) - 1, *longest, *values[1:])
    if declared.ndim == 0:  # any shape
        return dense
    sizes = ints(declared)
    if len(sizes) != len(dense):
        raise ValueError(f"a shape {sizes} for {list(dense)}")
    return tuple(m if n < 0 else n for n, m in zip(sizes, dense, strict=True))


def to_dense(
    o: FlexOptions, declared: Array, values: Array, default: Array, *partitions: Array
) -> Array:
    """Rows of one length: longer ones are cut, others end with the default value."""
    levels = _partitions(o, partitions, len(values))
    shape = _dense_shape(declared, values.shape, levels)
    inner = shape[len(levels) + 1 :]
    if inner != values.shape[1:]:
        raise ValueError(f"a shape {list(shape)} for values {list(values.shape)}")
    y = np.empty(shape, values.dtype)
    y[...] = default
    at = np.arange(len(values))
    places: list[Array] = []
    for ends in reversed(levels):
        rows = np.searchsorted(ends, at, side="right") - 1
        places.insert(0, at - np.asarray(ends)[rows])
        at = rows
    index = (at, *places)
    inside = np.all([place < n for place, n in zip(index, shape, strict=False)], axis=0)
    y[tuple(place[inside] for place in index)] = values[inside]
    return y


# ---- DynamicPartition: values, the part of each


def partition_shapes(o: FlexOptions, inputs: Specs) -> ResultShapes:
    x, parts = inputs
    if x.shape[: len(parts.shape)] != parts.shape or o.num_partitions < 1:
        values = f"values {list(x.shape)} in parts {list(parts.shape)}"
        raise ValueError(f"{values}, {o.num_partitions} of them")
    n: int = min(o.num_partitions, 1 << 16)
    return (None,) * n


def dynamic_partition(
    o: FlexOptions, _inputs: Specs, outputs: Specs, x: Array, parts: Array
) -> tuple[Array, ...]:
    wrong = parts[(parts < 0) | (parts >= o.num_partitions)]
    if wrong.size:
        raise ValueError(f"DynamicPartition: part {wrong[0]} of {o.num_partitions}")
    return tuple(x[parts == i] for i in range(len(outputs)))


# ---- UniqueV2: values, the axis of what is compared (none: a vector's values); UniqueWithCounts


def unique_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    x, axis = inputs[:2]
    if axis.const is None:
        return None, None
    return None, (x.shape[_unique_axis(np.asarray(axis.const), len(x.shape))],)


def _unique_axis(axis: Array, rank: int) -> int:
    if axis.size > 1 or (axis.size == 0 and rank != 1):
        raise ValueError(f"UniqueV2 along {ints(axis)} of rank {rank}: expected one axis")
    return resolved_axis((ints(axis) or [0])[0], rank, "UniqueV2")


def unique(_o: FlexOptions, x: Array, axis: Array) -> tuple[Array, Array]:
    """The different slices in order of appearance, and which of them each slice is."""
    at = _unique_axis(axis, x.ndim)
    slices = np.moveaxis(x, at, 0)
    rows = slices.reshape(len(slices), x.size // max(len(slices), 1)).tolist()
    index = _ranks([tuple(row) for row in rows])
    first = np.unique(index, return_index=True)[1]
    return np.moveaxis(slices[first], 0, at), index


def _ranks(values: Sequence[object]) -> Array:
    ranks: dict[object, int] = {}
    return np.array([ranks.setdefault(value, len(ranks)) for value in values], int)


def counted_shapes(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    if len(inputs[0].shape) != 1:
        raise ValueError(f"values {list(inputs[0].shape)}: expected a vector")
    return None, inputs[0].shape, None


def unique_with_counts(_o: FlexOptions, x: Array) -> tuple[Array, Array, Array]:
    """The different values in order of appearance, which of them each is, and how often."""
    index = _ranks(x.tolist())
    _, first, counts = np.unique(index, return_index=True, return_counts=True)
    return x[first], index, counts


KERNELS = kernels(
    {
        "DynamicPartition": Kernel(dynamic_partition, partition_shapes),
        "RaggedTensorToTensor": (to_dense, dense_shape),
        "StringNGrams": (ngrams, ngrams_shapes),
        "StringSplit": (split, split_shape),
        "UniqueV2": (unique, unique_shape),
        "UniqueWithCounts": (unique_with_counts, counted_shapes),
    }
)
