"""A partition's operators while they are being rewritten."""

import dataclasses
from collections import ChainMap, Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.options import Options
from jaxdelegate.op_lowering.spec import Shape, TensorSpec
from jaxdelegate.passes.propagation import gather

# New constants have indices larger than any file's tensors, up to 16 for each operator.
_FIRST_NEW, _ROOM = 1 << 40, 16

# (operator, the file's operators that it replaces, input specs, output specs)
IsLowered = Callable[[Operator, Sequence[Operator], Any, Any], bool]


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """The rewritten operators in execution order, and the specs of their tensors.

    `parts` are the operators of the file that each of them, by index, replaces.
    """

    operators: tuple[Operator, ...]
    specs: Mapping[int, TensorSpec]
    parts: Mapping[int, tuple[Operator, ...]]

    def restored(self, known: Mapping[int, Operator]) -> Self:
        """Replace operators, which no rewrite has changed, by those with the same indices."""
        parts = {i: (operator,) for i, operator in known.items()}
        operators = tuple(known.get(operator.index, operator) for operator in self.operators)
        return dataclasses.replace(self, operators=operators, parts={**self.parts, **parts})


class PatternRewriter:
    """Operators of one partition, with the producer and readers of each tensor.

    A rewrite matches one operator and changes it or operators before it. Values of `kept` tensors,
    which are used outside the partition, must not change.
    """

    def __init__(
        self,
        operators: Iterable[Operator],
        specs: Mapping[int, TensorSpec],
        kept: Collection[int],
        is_lowered: IsLowered,
    ) -> None:
        self._operators: dict[int, Operator] = {}
        self._producers: dict[int, int] = {}  # tensor -> operator
        self._readers: dict[int, Counter[int]] = {}  # tensor -> how often each operator reads it
        for operator in operators:
            self._add(operator)
        self._places = {index: place for place, index in enumerate(self._operators)}
        self._parts: dict[int, tuple[Operator, ...]] = {
            i: (operator,) for i, operator in self._operators.items()
        }
        self._new: dict[int, TensorSpec] = {}
        self._specs = specs
        self._kept = frozenset(kept)
        self._is_lowered = is_lowered

    def _add(self, operator: Operator) -> None:
        self._operators[operator.index] = operator
        self._producers.update(dict.fromkeys(operator.outputs, operator.index))
        for tensor in operator.inputs:
            self._readers.setdefault(tensor, Counter())[operator.index] += 1

    def _remove(self, operator: Operator) -> None:
        del self._operators[operator.index]
        for tensor in operator.outputs:
            self._producers.pop(tensor, None)
        for tensor in operator.inputs:
            self._readers[tensor].pop(operator.index, None)

    def _in_order(self, indices: Iterable[int]) -> list[Operator]:
        return [self._operators[i] for i in sorted(indices, key=self._places.__getitem__)]

    def result(self) -> Rewritten:
        operators = self.operators()
        parts = {op.index: self._parts[op.index] for op in operators}
        return Rewritten(tuple(operators), {**self._specs, **self._new}, parts)

    def operators(self) -> Sequence[Operator]:
        return self._in_order(self._operators)

    def get(self, index: int) -> Operator | None:
        """The current operator with this index; None if it was removed."""
        return self._operators.get(index)

    def spec(self, tensor: int) -> TensorSpec:
        return self._new[tensor] if tensor in self._new else self._specs[tensor]

    def const(self, tensor: int) -> np.ndarray | None:
        return self.spec(tensor).const if tensor >= 0 else None

    def is_kept(self, tensor: int) -> bool:
        """Whether a tensor is used outside the partition."""
        return tensor in self._kept

    def producer(self, tensor: int) -> Operator | None:
        """The operator that computes a tensor; None if it is not in the partition."""
        index = self._producers.get(tensor)
        return None if index is None else self._operators[index]

    def private_producer(self, tensor: int) -> Operator | None:
        """The operator that computes a tensor that is used only once, within the partition."""
        readers = self._readers.get(tensor, Counter())
        if self.is_kept(tensor) or readers.total() != 1:
            return None
        return self.producer(tensor)

    def readers(self, tensor: int) -> Sequence[Operator]:
        """The partition's operators, each once."""
        return self._in_order(self._readers.get(tensor, ()))

    def constant(self, operator: Operator, array: np.ndarray, name: str) -> int:
        """Add a constant for a rewrite of `operator`, and return its tensor index."""
        base = _FIRST_NEW + operator.index * _ROOM
        index = next(i for i in range(base, base + _ROOM) if i not in self._new)
        self._new[index] = TensorSpec(name, array.shape, array.dtype, const=array)
        return index

    def merge(self, merged: Operator, parts: Sequence[Operator], *, stays: bool = False) -> bool:
        """Replace the parts by `merged`, a changed one of them; False if its rule rejects it.

        It takes the last part's place in the execution order, after everything that it reads; if it
        `stays`, its own.
        """
        specs = ChainMap(self._new, self._specs)  # type: ignore[arg-type]  # it is only read
        inputs, outputs = gather(specs, merged.inputs), gather(specs, merged.outputs)
        gone = {part.index for part in parts}
        replaced = (part for i in gone for part in self._parts[i])
        whole = tuple(sorted(replaced, key=lambda part: part.index))
        if not self._is_lowered(merged, whole, inputs, outputs):
            return False
        place = self._places[merged.index] if stays else max(self._places[i] for i in gone)
        for index in gone:
            self._remove(self._operators[index])
        self._add(merged)
        self._places[merged.index] = place
        self._parts[merged.index] = whole
        return True

    def fuse(
        self,
        name: str,
        options: Options,
        inputs: Sequence[int],
        root: Operator,
        parts: Collection[int],
        results: Sequence[int] = (),
    ) -> bool:
        """Replace `root` and the other parts, by index, by an operator of another name.

        False if its rule rejects it, or if intermediate results are used elsewhere. `results` of
        parts are further outputs: others may use them, after the last part.
        """
        whole = frozenset({*parts, root.index})
        operators = [self._operators[i] for i in sorted(whole)]
        outputs = (*root.outputs, *results)
        inner = {i for op in operators for i in op.outputs}.difference(outputs)
        if not all(self._stays_among(i, whole) for i in inner) or not inner.isdisjoint(inputs):
            return False
        last = max(self._places[i] for i in whole)
        readers = {i for tensor in results for i in self._readers.get(tensor, ())} - whole
        if any(self._places[i] < last for i in readers):
            return False
        fused = dataclasses.replace(
            root, name=name, version=1, inputs=tuple(inputs), outputs=outputs, options=options
        )
        return self.merge(fused, operators)

    def _stays_among(self, tensor: int, parts: Collection[int]) -> bool:
        readers = self._readers.get(tensor, ())
        return not self.is_kept(tensor) and all(i in parts for i in readers)

    def skip(self, operator: Operator, source: int) -> None:
        """Remove an operator; readers of its only output read `source` instead."""
        (target,) = operator.outputs
        self._remove(operator)
        for reader in self.readers(target):
            self._remove(reader)
            inputs = tuple(source if i == target else i for i in reader.inputs)
            self._add(dataclasses.replace(reader, inputs=inputs))

    def shape(self, tensor: int) -> Shape:
        return self.spec(tensor).shape
