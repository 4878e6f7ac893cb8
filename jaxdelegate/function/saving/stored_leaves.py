"""The stored form of leaves: reads it from the file, and encodes other values in it."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxdelegate.errors import TensorError
from jaxdelegate.function.leaves import Leaves
from jaxdelegate.function.records import Place
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
    """A leaf that is stored in the file."""

    name: str  # its key in `params`
    places: tuple[Place, ...]  # the tensors that contain it, all equal
    tensor: Tensor  # the first of them
    spec: TensorSpec  # its spec as kernels see it, dense if it is sparse
    as_floats: bool  # the leaf's quantized values are dequantized

    @property
    def shape(self) -> Shape:
        return self.spec.shape

    @property
    def quantization(self) -> Quantization | None:
        """The quantization from which the leaf is dequantized; None: it is the stored values."""
        return self.spec.quantization if self.as_floats and self.spec.is_quantized else None

    @property
    def raw(self) -> np.ndarray:
        """The stored values, in dense form."""
        assert self.spec.const is not None
        return np.asarray(self.spec.const)

    @functools.cached_property
    def value(self) -> np.ndarray:
        """The file's value of the leaf."""
        q = self.quantization
        return self.raw if q is None else affine.dequantize(self.raw, q)

    @property
    def exact(self) -> np.ndarray:
        """The file's value of the leaf; wide integers are dequantized to float64."""
        q = self.quantization
        if q is None or self.spec.dtype.itemsize <= _EXACT_BYTES:
            return self.value
        scale, point = affine.along(q, len(self.shape))
        exact: np.ndarray = scale.astype(np.float64) * (self.raw.astype(np.int64) - point)
        return exact

    @functools.cached_property
    def order(self) -> np.ndarray | None:
        """Each stored value's index in the dense form of a sparse tensor; None if it is dense."""
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
        """Whether the range of a dequantized leaf excludes the lowest integer."""
        q = self.quantization
        return q is not None and affine.is_narrow(self.raw, q)

    @property
    def range(self) -> tuple[int, int]:
        """The integers that may be stored."""
        return affine.integer_range(self.spec.dtype, narrow=self.is_narrow)

    def fail(self, what: str, remedy: str) -> TensorError:
        """An error about new values for this leaf."""
        which = f" (tensor {self.tensor.name!r})" if self.tensor.name != self.name else ""
        return TensorError(f"save: params[{self.name!r}]{which}: {what}; {remedy}")


def stored_leaves(file: Model, *, as_floats: bool) -> dict[str, StoredLeaf]:
    """All numeric constants of a file, by their names in `params`.

    With `as_floats`, quantized weights are floats there.
    """
    specs = [_specs(subgraph, as_floats=as_floats) for subgraph in file.subgraphs]
    leaves = {}
    for name, places in Leaves(file.subgraphs, as_floats=as_floats).stored_leaves().items():
        subgraph, index = places[0]
        tensor, spec = file.subgraphs[subgraph].tensors[index], specs[subgraph][index]
        if spec.const is not None and tensor.dtype.kind != "O":
            leaves[name] = StoredLeaf(name, places, tensor, spec, as_floats)
    return leaves


def _specs(subgraph: Subgraph, *, as_floats: bool) -> list[TensorSpec]:
    specs = declared_specs(subgraph)
    if as_floats:
        known: Mapping[int, TensorSpec] = dict(enumerate(specs))
        for i in set(fake_quantization.read_as_int8(subgraph.operators, known)):
            specs[i] = fake_quantization.as_int8(specs[i])
    return specs


def checked(leaf: StoredLeaf, value: Any) -> np.ndarray:
    """A given value for a leaf as an array, with shape, kind of dtype and finiteness checked."""
    array = np.asarray(value)
    if array.shape != leaf.shape:
        raise leaf.fail(
            f"expected the shape {list(leaf.shape)}, got {list(array.shape)}",
            "the file's layout does not change; model.params shows it",
        )
    is_float = leaf.quantization is not None or leaf.spec.dtype in FLOATS
    kind = _kind(leaf.spec.dtype)
    if array.dtype not in FLOATS if is_float else _kind(array.dtype) != kind:
        wanted_dtype = "floats" if is_float else str(leaf.spec.dtype)
        raise leaf.fail(f"expected {wanted_dtype}, got {array.dtype}", "convert it with astype")
    if is_float:
        same = (array == leaf.value) | (np.isnan(array) & np.isnan(leaf.value))
        wrong = ~np.isfinite(array.astype(np.float64)) & ~same
        if wrong.any():
            where = [int(i) for i in np.argwhere(wrong)[0]]
            raise leaf.fail(
                f"{np.count_nonzero(wrong)} values are NaN or infinite, the first at {where}",
                "if the training diverged, save earlier weights",
            )
    return array


def _kind(dtype: np.dtype) -> str:
    return "i" if dtype in BITS or dtype.kind == "u" else dtype.kind


@dataclasses.dataclass(frozen=True)
class Encoded:
    """A leaf's stored bytes, uint8 [n], and the number of clamped values."""

    data: np.ndarray
    clamped: int = 0


def encoded(leaf: StoredLeaf, array: np.ndarray, new: Quantization | None = None) -> Encoded:
    """The stored bytes of a leaf's new values.

    Args:
        leaf: the leaf.
        array: its new values, as `checked` returns them.
        new: quantization that replaces the file's, for all values. None: the file's; the integers
            of values that did not change do not change.
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
    if leaf.spec.dtype.kind not in "iuV" and leaf.spec.dtype not in BITS:
        return array.astype(leaf.spec.dtype)
    low, high = integer_range(leaf.spec.dtype)
    wide = array.astype(np.int64) if array.dtype in BITS else array
    if wide.size and (wide.min() < low or wide.max() > high):
        raise leaf.fail(
            f"the range of {leaf.spec.dtype} is {low} to {high}, got {wide.min()} to {wide.max()}",
            "clip it",
        )
    return wide.astype(leaf.spec.dtype)


def _quantized(
    leaf: StoredLeaf, array: np.ndarray, new: Quantization | None
) -> tuple[np.ndarray, int]:
    """Quantized integers, rounded with halves away from zero, and the number of clamped values."""
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
    """Scale (float32) and zero point, broadcastable to a tensor of this shape."""
    if q.blockwise is None:
        return affine.along(q, len(shape))
    scale, points = affine.block_parameters(q.blockwise, shape)
    return affine.spread(scale, shape), affine.spread(points, shape)


def _bytes(leaf: StoredLeaf, values: np.ndarray) -> np.ndarray:
    """Values in the file's layout, uint8 [n]; those outside a sparse pattern must not change."""
    flat = values.reshape(-1)
    if leaf.order is not None:
        outside = np.ones(flat.size, bool)
        outside[leaf.order] = False
        wrong = outside & (flat != leaf.raw.reshape(-1))
        if wrong.any():
            raise leaf.fail(
                f"{np.count_nonzero(wrong)} values are not zero where the file's sparse tensor "
                "stores none",
                "multiply it by (model.params[name] != 0) before saving, to keep the pattern",
            )
        flat = flat[leaf.order]
    stored = pack(flat) if leaf.spec.dtype in BITS else np.ascontiguousarray(flat)
    return stored.view(np.uint8).reshape(-1)
