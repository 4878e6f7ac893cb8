"""Records of a model's tensors, signatures and parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxdelegate.errors import TensorError
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.quant.params import Quantization

if TYPE_CHECKING:
    from jaxdelegate.model.records import Subgraph, Tensor

Params = dict[str, Any]  # arrays by name
Place = tuple[int, int]  # subgraph, tensor


@dataclasses.dataclass(frozen=True, eq=False)
class TensorInfo:
    """A tensor of the file, with -1 for free dimensions; a planned shape if the file has none."""

    name: str
    shape: Shape
    dtype: np.dtype
    quantization: Quantization | None

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} {list(self.shape)}"


@dataclasses.dataclass(frozen=True, eq=False)
class Signature:
    """Inputs and outputs by name."""

    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo]

    def __str__(self) -> str:
        return f"{_listed(self.inputs)} -> {_listed(self.outputs)}"


@dataclasses.dataclass(frozen=True, eq=False)
class Parameter:
    """The record of one leaf of `params`, an array of `shape` and `dtype`.

    Attributes:
        name: its key in `params`.
        shape: its shape, in the file's layout.
        dtype: its dtype; float32 also for quantized weights that are computed as floats.
        tensors: the file's tensors that contain it, as (subgraph, tensor index): several if
            subgraphs or signatures share it, none if it follows from other constants.
        buffer: the index of the file's buffer; 0: no buffer, or an external one.
        stored_dtype: the dtype in the file.
        quantization: scale, zero point and axis of the stored integers; None if it is not
            quantized.
    """

    name: str
    shape: Shape
    dtype: np.dtype
    tensors: tuple[tuple[int, int], ...]
    buffer: int
    stored_dtype: np.dtype
    quantization: Quantization | None

    @property
    def scale(self) -> np.ndarray | None:
        """float32 [1] or [channels]; None if it is not quantized."""
        return None if self.quantization is None else self.quantization.scale

    @property
    def zero_point(self) -> np.ndarray | None:
        """int64, of the length of `scale`."""
        return None if self.quantization is None else self.quantization.zero_point

    @property
    def axis(self) -> int | None:
        """The dimension along which scales differ; None if there is at most one scale."""
        q = self.quantization
        return q.quantized_dimension if q is not None and q.is_per_channel else None


@dataclasses.dataclass(frozen=True, eq=False)
class Scale:
    """One trainable scale of `function(ranges="learned")`: its key in `params` is `name`.

    Attributes:
        name: the name of a tensor, and "/scale".
        value: the file's scale, float32 [1], or [channels] for a weight.
        tensors: the tensors with this scale, as (subgraph, tensor index): their scales must be
            equal.
    """

    name: str
    value: np.ndarray
    tensors: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class Batching:
    """How a batched model computes its batch.

    Attributes:
        size: the batch size; a name: any size.
        how: "native": the graph runs on the whole batch. "vmap": `jax.vmap` of a run on one image.
        reason: why the batch is not computed natively; empty for "native".
    """

    size: int | str
    how: str
    reason: str

    def __str__(self) -> str:
        return f"{self.how}: {self.reason}" if self.reason else self.how


@dataclasses.dataclass(frozen=True, eq=False)
class Names:
    """The inputs and outputs of a function, in order."""

    inputs: Sequence[str]
    outputs: Sequence[str]

    def in_order(self, named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Named inputs in the function's order."""
        if set(named) != set(self.inputs):
            raise TensorError(
                f"the inputs are named {sorted(named)}, the model's {sorted(self.inputs)}"
            )
        return tuple(named[name] for name in self.inputs)

    def named(self, results: Sequence[Any]) -> dict[str, Any]:
        """Outputs by name."""
        return dict(zip(self.outputs, results, strict=True))


def positional_and_named(
    what: str, inputs: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The arguments of a call of `what`: a single dictionary has the meaning of `named`."""
    if inputs and named:
        raise TensorError(f"call {what} with positional or with named inputs, not with both")
    is_named = len(inputs) == 1 and isinstance(inputs[0], Mapping)
    return ((), inputs[0]) if is_named else (inputs, named)


def info_of(tensor: Tensor, shape: Shape, name: str | None = None) -> TensorInfo:
    """A tensor's record, with the shape that users see, and its own or another name."""
    return TensorInfo(
        tensor.name if name is None else name, shape, tensor.dtype, tensor.quantization
    )


def unique_names(
    subgraph: Subgraph, indices: Sequence[int], known: Mapping[int, str] | None = None
) -> list[str]:
    """Names of tensors; missing and duplicate names are made unique by the index.

    `known` has names of some tensors that replace their own.
    """
    taken: set[str] = set()
    names = []
    for i in indices:
        name = (known or {}).get(i) or subgraph.tensors[i].name or f"tensor_{i}"
        names.append(f"{name}#{i}" if name in taken else name)
        taken.add(names[-1])
    return names


def unique_name(name: str, place: Place, taken: Collection[str], suffix: str = "") -> str:
    """A tensor's name in a whole model, made unique by its subgraph (unless 0) and index."""
    subgraph, tensor = place
    name = name or f"tensor_{tensor}"
    if name + suffix not in taken:
        return name + suffix
    at = f"{tensor}" if subgraph == 0 else f"{subgraph}.{tensor}"
    return f"{name}#{at}{suffix}"


def computed_names(subgraph: Subgraph) -> dict[str, int]:
    """The tensors that a subgraph reads and computes, by name, in that order."""
    computed = [i for operator in subgraph.operators for i in operator.outputs if i >= 0]
    indices = list(dict.fromkeys((*subgraph.inputs, *computed)))
    return dict(zip(unique_names(subgraph, indices), indices, strict=True))


def _listed(tensors: Mapping[str, TensorInfo]) -> str:
    return ", ".join(f"{name} {t.dtype} {list(t.shape)}" for name, t in tensors.items())
