"""Tensors and operators of a file that is being written."""

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.options import Options
from jaxdelegate.op_lowering.spec import Sparsity
from jaxdelegate.quant.params import Quantization

_NARROW = {np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)}
Shape = tuple[Any, ...]  # integers, or the symbolic dimensions of jax.export


def stored_dtype(dtype: Any) -> np.dtype:
    """The dtype of a tensor for JAX's dtype: float16 and bfloat16 become float32."""
    dtype = np.dtype(dtype)
    return np.dtype(np.float32) if dtype in _NARROW else dtype


@dataclasses.dataclass(eq=False)
class Value:
    """A tensor. `data` are the values of a constant; dimensions with stride 0 are repeated."""

    shape: Shape
    dtype: np.dtype
    name: str = ""
    data: Any = None
    node: "Node | None" = None  # what computes it
    quantization: Quantization | None = None
    sparsity: Sparsity | None = None  # of `data`, which then are the stored values
    is_variable: bool = False  # keeps its value from one invoke to the next

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_constant(self) -> bool:
        return self.data is not None

    @property
    def size(self) -> Any:
        return math.prod(self.shape)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["re", "im"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Complex:
    """A complex array: no kernel computes with complex tensors, so the parts are two tensors."""

    re: Any  # a Value each, or arrays in a function that is traced
    im: Any

    is_constant = False

    @property
    def shape(self) -> Shape:
        return tuple(self.re.shape)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["re", "im"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Key(Complex):
    """Random keys: the two halves of each, uint32."""


@dataclasses.dataclass(eq=False)
class Node:
    """An operator. `graphs` are what it calls, by the name of the option with their index."""

    op: str
    inputs: list[Any]  # Values; None is an absent one
    outputs: list[Value]
    options: Options | None = None
    graphs: Mapping[str, "Graph"] = dataclasses.field(default_factory=dict)
    version: int = 1
    intermediates: Sequence[Value] = ()
    keeps: bool = False  # an operator of a loaded model, which is not rewritten

    @property
    def source(self) -> Value:
        value: Value = self.inputs[0]
        return value

    @property
    def output(self) -> Value:
        return self.outputs[0]


@dataclasses.dataclass(eq=False)
class Graph:
    """A subgraph; `nodes` are in the order of execution."""

    name: str
    inputs: list[Value] = dataclasses.field(default_factory=list)
    outputs: list[Value] = dataclasses.field(default_factory=list)
    nodes: list[Node] = dataclasses.field(default_factory=list)

    def called(self) -> Iterator["Graph"]:
        return (graph for node in self.nodes for graph in node.graphs.values())


def unused(used: Counter[str], name: str) -> str:
    """The name, with a number if it is used already."""
    while used[name]:
        used[name] += 1
        name = f"{name}_{used[name] - 1}"
    used[name] = 1
    return name


def constant(array: Any, name: str = "") -> Value:
    """A constant, in the dtype of its tensor; equal elements are stored once."""
    if not isinstance(array, np.ndarray):
        array = array if _is_key(array) else np.asarray(array)
    if _is_key(array):
        return Value(array.shape, np.dtype("V8"), name, array)
    array = array.astype(stored_dtype(array.dtype), copy=False)
    return Value(array.shape, array.dtype, name, _compact(array))


def in_parts(value: Any) -> Any:
    """A constant of complex numbers or of keys as its parts; anything else as it is."""
    if not isinstance(value, Value) or not value.is_constant or value.dtype.kind not in "cV":
        return value
    if value.dtype.kind == "c":
        return Complex(constant(value.data.real), constant(value.data.imag))
    halves = np.asarray(jax.random.key_data(value.data))
    if halves.shape[-1] != 2:
        return value
    return Key(constant(halves[..., 0]), constant(halves[..., 1]))


def scalar_of(value: Value) -> Any:
    """The only value that all elements of a constant have; None if there is no such value."""
    if not isinstance(value.data, np.ndarray) or value.data.dtype.kind not in "fiub":
        return None
    one = not any(s for n, s in zip(value.data.shape, value.data.strides, strict=True) if n > 1)
    return value.data.flat[0] if one and value.data.size else None


def distinct(array: np.ndarray) -> np.ndarray:
    """The array with size 1 where elements are repeated."""
    picks = tuple(slice(0, 1) if s == 0 else slice(None) for s in array.strides)
    return array[picks]


def _is_key(array: Any) -> bool:
    return (
        not isinstance(array, np.ndarray)
        and np.asarray(0).dtype != array.dtype
        and (not isinstance(array.dtype, np.dtype))
    )


def _compact(array: np.ndarray) -> np.ndarray:
    if array.size > 1 and all(array.strides) and array.dtype.kind in "fiub":
        first = array.flat[0]
        same = array == first
        if same.all() and (first != 0 or not np.signbit(array.astype(np.float32)).any()):
            return np.broadcast_to(np.asarray(first), array.shape)
    return array
