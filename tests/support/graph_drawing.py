"""Draws the parts of random graphs: shapes, dtypes, scales, values, operands."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.options import Options
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.quant.params import Quantization, integer_range
from tests.support.graph_records import Graph, GraphTensor, Node
from tests.support.quantized import scaled

# An element's dtype, and whether it is quantized.
KINDS: dict[str, tuple[np.dtype, bool]] = {
    **{name: (np.dtype(name), False) for name in ("float32", "float64", "float16", "bool")},
    **{name: (np.dtype(name), False) for name in ("int8", "int16", "int32", "int64")},
    **{name: (np.dtype(name), False) for name in ("uint8", "uint16", "uint32", "complex64")},
    **{f"q{name}": (np.dtype(name), True) for name in ("int8", "uint8", "int16")},
}
_DIMENSIONS = (1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 13)
_LONG = (257, 1000, 4097)
_MOST_ELEMENTS = 6000
_EXTREME_FLOATS = (
    *(np.inf, -np.inf, np.nan, -0.0, 0.0, 1e-40, -1e-40, 1.2e-38, 1.0, -1.0),
    *(0.5, -0.5, 1.5, 2.5, 3e38, -3e38, 1e15, 88.8, -88.8, 2.0**24 + 2, 2.0**31, 1e-20),
)


@dataclasses.dataclass(frozen=True)
class Mood:
    """Properties that all operators of a graph share."""

    extreme: bool = False  # infinite, NaN, subnormal, the ends of integers
    empty: bool = False  # dimensions of 0
    long: bool = False  # one long dimension, the others short
    unlimited: bool = False  # also operators and dtypes that LiteRT has no kernel for


class Drawing:
    """A graph under construction. All choices come from one random generator."""

    def __init__(self, rng: np.random.Generator, mood: Mood | None = None) -> None:
        self.rng, self.mood = rng, mood or Mood()
        self.tensors: list[GraphTensor] = []
        self.nodes: list[Node] = []
        self.inputs: list[int] = []
        self.live: list[int] = []  # what operators may read: inputs and results

    # ---- choices

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def one_of(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def between(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def axis(self, rank: int) -> int:
        """One of a rank's axes, counted from either end."""
        return self.between(-rank, rank - 1)

    def shape(self, low: int = 0, high: int = 6) -> Shape:
        """A shape whose rank is between `low` and `high`."""
        rank = self.between(low, high)
        if rank > 4 and self.chance(0.5):
            rank = max(low, 4)
        dims = [self.one_of(_DIMENSIONS) for _ in range(rank)]
        while np.prod(dims) > _MOST_ELEMENTS:
            dims[int(np.argmax(dims))] = 2
        if rank and self.mood.long and self.chance(0.5):
            dims = [d if d < 3 and np.prod(dims) < 64 else 1 for d in dims]
            dims[self.between(0, rank - 1)] = self.one_of(_LONG)
        if rank and self.mood.empty and self.chance(0.3):
            dims[self.between(0, rank - 1)] = 0
        return tuple(dims)

    def broadcast(self, shape: Shape) -> Shape:
        """A shape that broadcasts to this one: axes of 1, or without leading axes."""
        if self.chance(0.4):
            return shape
        start = self.between(0, len(shape))
        return tuple(1 if self.chance(0.3) else n for n in shape[start:])

    # ---- scales and values

    def quantization(self, kind: str, *, symmetric: bool = False) -> Quantization | None:
        """A scale and zero point; None for kinds without. int16 is symmetric."""
        dtype, quantized = KINDS[kind]
        if not quantized:
            return None
        if dtype == np.int16:
            return scaled(np.float32(10.0 ** self.rng.uniform(-4.5, -2)))
        scale = np.float32(10.0 ** self.rng.uniform(-2.5, 0))
        if symmetric:
            return scaled(scale)
        low, high = integer_range(dtype)
        middle = (low + high + 1) // 2
        return scaled(scale, self.one_of((low, high, middle, self.between(low, high))))

    def values(self, shape: Shape, dtype: Any, low: float = -3, high: float = 3) -> np.ndarray:
        """Random data: bytes of their whole range, small integers, floats in [low, high]."""
        dtype = np.dtype(dtype)
        if dtype.kind == "b":
            return np.asarray(self.rng.integers(0, 2, shape), bool)
        if dtype.kind == "c":
            parts = self.rng.uniform(low, high, (2, *shape))
            return np.asarray(parts[0] + 1j * parts[1], dtype)
        if dtype.kind in "iu":
            return self._integers(shape, dtype)
        data = np.asarray(self.rng.uniform(low, high, shape), dtype)
        return self._sprinkled(data, _EXTREME_FLOATS) if self.mood.extreme else data

    def _integers(self, shape: Shape, dtype: np.dtype) -> np.ndarray:
        first, last = integer_range(dtype)
        small = (max(first, -9), 30)
        ends = (first, last) if dtype.itemsize <= 2 else small
        data = np.asarray(self.rng.integers(*ends, shape, endpoint=True), dtype)
        if dtype.itemsize > 2 and not self.mood.extreme:
            return data
        return self._sprinkled(data, (first, first + 1, last, last - 1, 0))

    def _sprinkled(self, data: np.ndarray, extremes: Sequence[float]) -> np.ndarray:
        with np.errstate(over="ignore"):
            odd = np.asarray(extremes).astype(data.dtype)
        picks = odd[self.rng.integers(len(odd), size=data.shape)]
        return np.asarray(np.where(self.rng.random(data.shape) < 0.15, picks, data), data.dtype)

    # ---- tensors

    def add(
        self,
        shape: Sequence[int],
        dtype: Any,
        quantization: Quantization | None = None,
        value: np.ndarray | None = None,
        *,
        is_variable: bool = False,
    ) -> int:
        """Add a tensor that is not an input and that later operators do not read."""
        t = GraphTensor(tuple(shape), np.dtype(dtype), quantization, value, is_variable)
        self.tensors.append(t)
        return len(self.tensors) - 1

    def const(self, value: Any, dtype: Any = None, q: Quantization | None = None) -> int:
        value = np.asarray(value, dtype)
        return self.add(value.shape, value.dtype, q, value)

    def fed(self, value: Any, dtype: Any = None, q: Quantization | None = None) -> int:
        """A graph input with these values that later operators do not read."""
        index = self.const(value, dtype, q)
        self.inputs.append(index)
        return index

    def given(self, value: Any, dtype: Any = None, constant: float = 0.5) -> int:
        """A constant with the probability `constant`, else a graph input."""
        return (self.const if self.chance(constant) else self.fed)(value, dtype)

    def new(
        self, kind: str, shape: Shape, *, constant: float = 0.1, q: Quantization | None = None
    ) -> int:
        """A new operand: a graph input, sometimes a constant."""
        q = q or self.quantization(kind)
        value = self.values(shape, KINDS[kind][0])
        if value.size and self.chance(constant):
            return self.const(value, q=q)
        index = self.fed(value, q=q)
        self.live.append(index)
        return index

    def operand(
        self,
        kinds: Sequence[str],
        low: int = 0,
        high: int = 6,
        accept: Callable[[Shape], bool] | None = None,
    ) -> int:
        """An earlier result or a new input of one of these kinds, with a rank in [low, high].

        `accept` says which shapes are legal.
        """
        found = [
            i
            for i in self.live
            if self.kind(i) in kinds
            and low <= len(self.tensors[i].shape) <= high
            and (accept is None or accept(self.tensors[i].shape))
        ]
        if found and self.chance(0.85):
            return int(found[-1] if self.chance(0.5) else self.one_of(found))
        shape = self.shape(low, high)
        while accept is not None and not accept(shape):
            shape = self.shape(low, high)
        return self.new(self.one_of(kinds), shape)

    def like(
        self, kind: str, shape: Shape, *, q: Quantization | None = None, constant: float = 0.2
    ) -> int:
        """An operand of this kind and shape, with the scale `q` if given."""
        found = [
            i
            for i in self.live
            if self.kind(i) == kind
            and self.tensors[i].shape == shape
            and (q is None or self._scales(i) == (float(q.scale[0]), int(q.zero_point[0])))
        ]
        if found and self.chance(0.6):
            return int(self.one_of(found))
        return self.new(kind, shape, constant=constant, q=q)

    def _scales(self, index: int) -> tuple[float, int] | None:
        q = self.tensors[index].quantization
        return None if q is None else (float(q.scale[0]), int(q.zero_point[0]))

    def kind(self, index: int) -> str:
        """A tensor's kind; "per channel" tensors are not in KINDS."""
        t = self.tensors[index]
        if t.quantization is not None and t.quantization.is_per_channel:
            return "per channel"
        return ("q" if t.quantization is not None else "") + t.dtype.name

    def shape_of(self, index: int) -> Shape:
        return self.tensors[index].shape

    def q_of(self, index: int) -> Quantization | None:
        return self.tensors[index].quantization

    # ---- operators

    def node(
        self,
        name: str,
        inputs: Sequence[int | None],
        outputs: Sequence[int],
        options: Options | None = None,
        *,
        live: bool = True,
        **details: Any,
    ) -> None:
        """Add an operator; if `live`, later operators may read its outputs."""
        self.nodes.append(Node(name, tuple(inputs), tuple(outputs), options, **details))
        if live:
            self.live.extend(outputs)

    def result(
        self,
        name: str,
        inputs: Sequence[int | None],
        shape: Sequence[int],
        kind: str,
        options: Options | None = None,
        *,
        q: Quantization | None = None,
        **details: Any,
    ) -> int:
        """Add an operator with one output; `q` is its scale, by default a random one."""
        q = (q or self.quantization(kind)) if KINDS[kind][1] else None
        output = self.add(shape, KINDS[kind][0], q)
        self.node(name, inputs, [output], options, **details)
        return output

    def same(
        self,
        name: str,
        inputs: Sequence[int | None],
        shape: Sequence[int],
        options: Options | None = None,
        *,
        of: int = 0,
        **details: Any,
    ) -> int:
        """Like `result`, with the dtype and the scale of input `of`."""
        t = self.tensors[inputs[of] or 0]
        output = self.add(shape, t.dtype, t.quantization)
        self.node(name, inputs, [output], options, **details)
        return output

    def graph(self, outputs: Sequence[int]) -> Graph:
        return Graph(tuple(self.tensors), tuple(self.nodes), tuple(self.inputs), tuple(outputs))


def int4_values(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Packed 4-bit weights without the least integer."""
    return np.asarray(rng.integers(-7, 8, shape), ml_dtypes.int4)
