"""Leaves as the file stores them: what they are there, and what other values become."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxdelegate.errors import TensorError
from jaxdelegate.function.parameters import Leaves, Place
from jaxdelegate.lowering import fake_quantization
from jaxdelegate.model.records import Model, Subgraph, Tensor
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.sparse.reference import densified
from jaxdelegate.op_lowering.spec import Shape, TensorSpec
from jaxdelegate.passes.propagation import declared_specs
from jaxdelegate.quant import affine
from jaxdelegate.quant.packing import BITS, pack
from jaxdelegate.quant.params import Quantization, integer_range

_EXACT_BYTES = 2  # wider integers are quantized in float64


@dataclasses.dataclass(frozen=True, eq=False)
class StoredLeaf:
    """A leaf that tensors of the file hold.

    Attributes:
        name: its key in `params`.
        places: the tensors that hold it, all the same.
        tensor: the first of them.
        spec: as kernels see it, in full: of the dense shape if it is sparse.
        as_floats: whether the leaf is the floats that its integers stand for.
    """

    name: str
    places: tuple[Place, ...]
    tensor: Tensor
    spec: TensorSpec
    as_floats: bool

    @property
    def shape(self) -> Shape:
        """The leaf's."""
        return self.spec.shape

    @property
    def quantization(self) -> Quantization | None:
        """How its integers stand for the leaf's floats; None: the leaf is what is stored."""
        return self.spec.quantization if self.as_floats and self.spec.is_quantized else None

    @functools.cached_property
    def raw(self) -> np.ndarray:
        """The stored values in full."""
        assert self.spec.const is not None
        return self.spec.const

    @functools.cached_property
    def value(self) -> np.ndarray:
        """The leaf as the file has it."""
        q = self.quantization
        return self.raw if q is None else affine.dequantize(self.raw, q)

    @property
    def exact(self) -> np.ndarray:
        """The same, of wide integers in float64."""
        q = self.quantization
        if q is None or self.spec.dtype.itemsize <= _EXACT_BYTES:
            return self.value
        scale, point = affine.along(q, len(self.shape))
        exact: np.ndarray = scale.astype(np.float64) * (self.raw.astype(np.int64) - point)
        return exact

    @functools.cached_property
    def order(self) -> np.ndarray | None:
        """Where each stored value of a sparse tensor lies in the dense one; None: it is dense."""
        if self.tensor.sparsity is None:
            return None
        count = self.tensor.stored_shape[0]
        numbers = dataclasses.replace(
            self.tensor.spec(), dtype=np.dtype(np.int64), const=np.arange(1, count + 1)
        )
        numbered = densified(numbers).reshape(-1)
        places = np.empty(count, np.int64)
        at = np.flatnonzero(numbered)
        places[numbered[at] - 1] = at
        return places

    @functools.cached_property
    def is_narrow(self) -> bool:
        """Whether the lowest integer is left out, where the leaf is floats."""
        q = self.quantization
        return q is not None and affine.is_narrow(self.raw, q)

    @property
    def range(self) -> tuple[int, int]:
        """The integers that may be stored."""
        return affine.integer_range(self.spec.dtype, narrow=self.is_narrow)

    def fail(self, what: str, remedy: str) -> TensorError:
        """An error about values for this leaf."""
        which = f" (tensor {self.tensor.name!r})" if self.tensor.name != self.name else ""
        return TensorError(f"save: params[{self.name!r}]{which}: {what}; {remedy}")


def stored_leaves(file: Model, *, as_floats: bool) -> dict[str, StoredLeaf]:
    """All constants of a file that hold numbers, by the names that `params` has for them.

    Args:
        file: all of it.
        as_floats: whether quantized weights are floats in `params`.
    """
    specs = [_seen(subgraph, as_floats=as_floats) for subgraph in file.subgraphs]
    found = {}
    for name, places in Leaves(file.subgraphs, as_floats=as_floats).stored_leaves().items():
        subgraph, index = places[0]
        tensor, spec = file.subgraphs[subgraph].tensors[index], specs[subgraph][index]
        if spec.const is not None and tensor.dtype.kind != "O":
            found[name] = StoredLeaf(name, places, tensor, spec, as_floats)
    return found


def _seen(subgraph: Subgraph, *, as_floats: bool) -> list[TensorSpec]:
    specs = declared_specs(subgraph)
    if as_floats:
        known: Mapping[int, TensorSpec] = dict(enumerate(specs))
        for i in set(fake_quantization.read_as_int8(subgraph.operators, known)):
            specs[i] = fake_quantization.as_int8(specs[i])
    return specs


def checked(leaf: StoredLeaf, value: Any) -> np.ndarray:
    """What a caller gives for a leaf, as an array.

    Raises:
        TensorError: another shape or kind of dtype, or values that are not finite.
    """
    array = np.asarray(value)
    wanted = list(leaf.shape)
    if array.shape != leaf.shape:
        raise leaf.fail(
            f"wants the shape {wanted}, got {list(array.shape)}",
            "the file's layout stays; model.params shows it",
        )
    is_float = leaf.quantization is not None or leaf.spec.dtype in FLOATS
    kind = _kind(leaf.spec.dtype)
    if array.dtype not in FLOATS if is_float else _kind(array.dtype) != kind:
        wanted_dtype = "floats" if is_float else str(leaf.spec.dtype)
        raise leaf.fail(f"wants {wanted_dtype}, got {array.dtype}", "convert it with astype")
    if is_float:
        same = (array == leaf.value) | (np.isnan(array) & np.isnan(leaf.value))
        wrong = ~np.isfinite(array.astype(np.float64)) & ~same
        if wrong.any():
            where = [int(i) for i in np.argwhere(wrong)[0]]
            raise leaf.fail(
                f"{np.count_nonzero(wrong)} values are NaN or infinite, the first at {where}",
                "a training step diverged, perhaps: save earlier weights",
            )
    return array


def _kind(dtype: np.dtype) -> str:
    return "i" if dtype in BITS or dtype.kind == "u" else dtype.kind


@dataclasses.dataclass(frozen=True)
class Encoded:
    """A leaf in the file's form: bytes, uint8 [n], and how many values left the stored range."""

    data: np.ndarray
    clamped: int = 0


def encoded(leaf: StoredLeaf, array: np.ndarray, new: Quantization | None = None) -> Encoded:
    """The bytes of a leaf's values.

    Args:
        leaf: where they go.
        array: as `checked` returns it.
        new: in place of the file's quantization; all values are put on that grid. None: values
            that did not change stay the integers that they are.

    Raises:
        TensorError: a value that the stored type cannot hold, or outside of a sparse pattern.
    """
    clamped = 0
    if leaf.quantization is not None:
        values, clamped = _quantized(leaf, array, new)
    elif leaf.spec.dtype in FLOATS:
        values = _cast(leaf, array)
    else:
        values = _integers(leaf, array)
    return Encoded(_bytes(leaf, values), clamped)


def _cast(leaf: StoredLeaf, array: np.ndarray) -> np.ndarray:
    """Floats in the stored type."""
    with np.errstate(over="ignore"):
        values = array.astype(leaf.spec.dtype)
    lost = ~np.isfinite(values.astype(np.float64)) & np.isfinite(array.astype(np.float64))
    if lost.any():
        raise leaf.fail(
            f"{np.count_nonzero(lost)} values exceed the range of {leaf.spec.dtype}, which the "
            f"file stores; the largest is {np.abs(array[lost]).max():.6g}",
            "make them smaller",
        )
    return values


def _integers(leaf: StoredLeaf, array: np.ndarray) -> np.ndarray:
    """What is stored as it is given."""
    if leaf.spec.dtype.kind not in "iuV" and leaf.spec.dtype not in BITS:
        return array.astype(leaf.spec.dtype)
    low, high = integer_range(leaf.spec.dtype)
    wide = array.astype(np.int64) if array.dtype in BITS else array
    if wide.size and (wide.min() < low or wide.max() > high):
        raise leaf.fail(
            f"{leaf.spec.dtype} holds {low} to {high}, got {wide.min()} to {wide.max()}",
            "clip it",
        )
    return wide.astype(leaf.spec.dtype)


def _quantized(
    leaf: StoredLeaf, array: np.ndarray, new: Quantization | None
) -> tuple[np.ndarray, int]:
    """Integers on the grid, halves away from zero, and how many values left it."""
    own = leaf.quantization
    assert own is not None
    q = own if new is None else new
    scale, point = parameters(q, leaf.shape)
    changed = np.ones(array.shape, bool) if new is not None else array != leaf.value
    if (changed & np.broadcast_to(scale == 0, array.shape)).any():
        raise leaf.fail("its stored scale is zero", "give it a scale: '<name>/scale', or rescale")
    nearest = affine.quantize_weight(array, q, leaf.spec.dtype, narrow=leaf.is_narrow)
    low, high = (scale * (end - point.astype(np.float64)) for end in leaf.range)
    outside = changed & ((array < low - scale / 2) | (array > high + scale / 2))
    return np.where(changed, nearest, leaf.raw), int(np.count_nonzero(outside))


def parameters(q: Quantization, shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Scale (float32) and zero point, to broadcast with a tensor of this shape."""
    if q.blockwise is None:
        return affine.along(q, len(shape))
    scale, points = affine.block_parameters(q.blockwise, shape)
    return affine.spread(scale, shape), affine.spread(points, shape)


def _bytes(leaf: StoredLeaf, values: np.ndarray) -> np.ndarray:
    """Values as they lie in the file, uint8 [n].

    Raises:
        TensorError: a value where a sparse tensor has no place for one.
    """
    flat = values.reshape(-1)
    if leaf.order is not None:
        outside = np.ones(flat.size, bool)
        outside[leaf.order] = False
        wrong = outside & (flat != leaf.raw.reshape(-1))
        if wrong.any():
            raise leaf.fail(
                f"{np.count_nonzero(wrong)} values are not zero where the file's sparse tensor "
                "stores none",
                "multiply it by (model.params[name] != 0) before it is saved: the pattern stays",
            )
        flat = flat[leaf.order]
    stored = pack(flat) if leaf.spec.dtype in BITS else np.ascontiguousarray(flat)
    return stored.view(np.uint8).reshape(-1)
