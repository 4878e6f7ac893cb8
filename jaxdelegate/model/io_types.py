"""Changes the types of a file's quantized inputs and outputs, as TFLite's converter does.

Source: modify_model_io_type, tensorflow/lite/python/util.py.
"""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, NoReturn

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from jaxdelegate.errors import ModelError, TensorError
from jaxdelegate.model.operator_tables import called_subgraphs
from jaxdelegate.model.records import Model, Operator, Subgraph, Tensor
from jaxdelegate.model.rewriting import Rewriting
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.text import printable

Side = Literal["inputs", "outputs"]

_PURPOSE = "changing the types of inputs and outputs"
_QUANTIZE_FIRST = (
    "quantize activations first, with TFLiteConverter or litert-quantizer and representative inputs"
)
_POINTS = {TensorType.INT8: 0, TensorType.UINT8: 128}  # zero points of the same values
_QUANTIZED = (*_POINTS, TensorType.INT16)
_FLOAT = TensorType.FLOAT32
_QUANTIZE, _DEQUANTIZE = schema.BuiltinOperator.QUANTIZE, schema.BuiltinOperator.DEQUANTIZE
# The versions of QUANTIZE and DEQUANTIZE; source: lite/tools/versioning/op_version.cc.
_TO_INTEGERS = {TensorType.INT8: 1, TensorType.UINT8: 1, TensorType.INT16: 2}
_TO_FLOATS = {TensorType.INT8: 2, TensorType.UINT8: 1, TensorType.INT16: 3}


def with_io_types(model: Model, types: Mapping[Side, TensorType]) -> bytes:
    """The file whose quantized inputs and outputs have other types, and the same names.

    A QUANTIZE or DEQUANTIZE operator converts them, and one that did so before is removed. This
    applies to the main subgraph and those of signatures. Tensors that are not quantized stay.

    Args:
        model: the model.
        types: float32, int8, uint8 or int16. int8 and uint8 are the same values, with zero points
            that differ by 128.

    Raises:
        ModelError: nothing is quantized; the file cannot be rewritten; an operator also calls a
            subgraph whose inputs or outputs would change.
        TensorError: a tensor cannot have the type.
    """
    file = Rewriting(model, _PURPOSE)
    operators = (o for subgraph in model.subgraphs for o in subgraph.operators)
    called = {i for operator in operators for _, i in called_subgraphs(operator.options)}
    entries = sorted({0, *(s.subgraph for s in model.signatures)})
    ends = [_Ends(file, model.subgraphs[i]) for i in entries]
    are_quantized = [end.convert(side, wanted) for end in ends for side, wanted in types.items()]
    if not any(are_quantized) and set(types.values()) != {_FLOAT}:
        _fail(model, f"its {' and '.join(types)} are not quantized: {_QUANTIZE_FIRST}")
    for end in ends:
        if end.is_changed and end.index in called:
            _fail(model, f"an operator also calls subgraph {end.index}, which a signature runs")
        end.finish()
    return file.content() if any(end.is_changed for end in ends) else bytes(model.content)


def _fail(model: Model, why: str) -> NoReturn:
    raise ModelError(f"{printable(model.source)}: {_PURPOSE}: {why}")


@dataclasses.dataclass(frozen=True)
class _End:
    """A quantized input or output."""

    index: int  # its tensor
    integers: int  # the tensor of integers that the graph computes with
    # What converts one to the other; None: they are the same tensor.
    operator: Operator | None = None


class _Ends:
    """The inputs and outputs of one subgraph."""

    def __init__(self, file: Rewriting, subgraph: Subgraph) -> None:
        self._file, self._subgraph, self.index = file, subgraph, subgraph.index
        self._tensors, self._table = subgraph.tensors, file.t.subgraphs[subgraph.index]
        self._removed: set[int] = set()  # operators
        self._first: list[Any] = []
        self._last: list[Any] = []
        self.is_changed = False

    def convert(self, side: Side, wanted: TensorType) -> bool:
        """Convert all that are quantized; returns whether there are any."""
        find = self._input if side == "inputs" else self._output
        ends = [find(i) for i in dict.fromkeys(getattr(self._subgraph, side))]
        for end in ends:
            if end is not None and self._tensors[end.index].type is not wanted:
                self._check(side, end, wanted)
                self._convert(side, end, wanted)
        return any(end is not None for end in ends)

    def finish(self) -> None:
        """Write the operators."""
        if not self.is_changed:
            return
        kept = [o for i, o in enumerate(self._table.operators) if i not in self._removed]
        self._table.operators = [*self._first, *kept, *self._last]
        gone = (self._subgraph.operators[i] for i in self._removed)
        self._file.drop_tensors(self.index, {i for o in gone for i in (*o.inputs, *o.outputs)})

    # ---- what is quantized

    def _input(self, index: int) -> _End | None:
        readers = [o for o in self._subgraph.operators if index in o.inputs]
        only = readers[0] if len(readers) == 1 and index not in self._subgraph.outputs else None
        if only is not None and self._converts(only, index, only.outputs[0]):
            return _End(index, only.outputs[0], only)
        return _End(index, index) if _is_quantized(self._tensors[index]) else None

    def _output(self, index: int) -> _End | None:
        writers = [o for o in self._subgraph.operators if index in o.outputs]
        only = writers[0] if writers and writers[0].index not in self._removed else None
        if only is not None and self._converts(only, index, only.inputs[0]):
            return _End(index, only.inputs[0], only)
        return _End(index, index) if _is_quantized(self._tensors[index]) else None

    def _converts(self, operator: Operator, end: int, integers: int) -> bool:
        """Whether an operator only converts between an input or output and integers."""
        tensor, core = self._tensors[end], self._tensors[integers]
        if operator.name not in ("QUANTIZE", "DEQUANTIZE") or not _is_quantized(core):
            return False
        return tensor.type is _FLOAT or _are_same_values(tensor, core)

    def _check(self, side: Side, end: _End, wanted: TensorType) -> None:
        core = self._tensors[end.integers].type
        if wanted in (core, _FLOAT) or (wanted in _POINTS and core in _POINTS):
            return
        names = [t.name.lower() for t in (_POINTS if core in _POINTS else (core,))]
        raise TensorError(
            f"save: io={wanted.name.lower()!r}: the graph computes {side[:-1]} "
            f"{self._tensors[end.index].name!r} in {core.name.lower()}, so its type can only be "
            f"float32 or {' or '.join(names)}"
        )

    # ---- changes

    def _convert(self, side: Side, end: _End, wanted: TensorType) -> None:
        self.is_changed = True
        if end.operator is not None:
            self._bypass(side, end, end.operator)
        if self._tensors[end.integers].type is not wanted:
            self._insert(side, end.integers, wanted)

    def _bypass(self, side: Side, end: _End, operator: Operator) -> None:
        """Make the integers an input or output, and remove the operator if nothing needs it."""
        if not self._is_end(end.integers):
            old, new = (self._table.tensors[i] for i in (end.index, end.integers))
            old.name, new.name = new.name, old.name
        self._replace(side, end.index, end.integers)
        is_read = any(end.index in o.inputs for o in self._subgraph.operators)
        if side == "inputs" or not (is_read or self._is_end(end.index)):
            self._removed.add(operator.index)

    def _insert(self, side: Side, integers: int, wanted: TensorType) -> None:
        """Convert between the integers and a new input or output."""
        core = self._table.tensors[integers]
        new = copy.copy(core)
        new.type, new.buffer = int(wanted), 0
        new.quantization = None if wanted is _FLOAT else _shifted(core, wanted)
        index = self._file.add_tensor(self.index, new)
        self._replace(side, integers, index)
        kind, operator = self._tensors[integers].type, self._file.operator
        changed = new if self._is_end(integers) else core
        changed.name = (core.name or b"") + f"_{TensorType(changed.type).name.lower()}".encode()
        if side == "inputs":
            self._first.append(operator(_QUANTIZE, _TO_INTEGERS[kind], index, integers))
        elif wanted is _FLOAT:
            self._last.append(operator(_DEQUANTIZE, _TO_FLOATS[kind], integers, index))
        else:
            self._last.append(operator(_QUANTIZE, _TO_INTEGERS[wanted], integers, index))

    def _is_end(self, index: int) -> bool:
        return index in [*self._table.inputs, *self._table.outputs]

    def _replace(self, side: Side, old: int, new: int) -> None:
        """Make another tensor the input or output."""
        indices = getattr(self._table, side)
        setattr(self._table, side, [new if i == old else int(i) for i in indices])
        for signature in self._file.t.signatureDefs or []:
            for entry in getattr(signature, side) or []:
                if signature.subgraphIndex == self.index and entry.tensorIndex == old:
                    entry.tensorIndex = new


def _is_quantized(tensor: Tensor) -> bool:
    """Whether the tensor has integers with one scale."""
    q = tensor.quantization
    return tensor.type in _QUANTIZED and q is not None and q.scale.size == 1


def _are_same_values(a: Tensor, b: Tensor) -> bool:
    """Whether int8 and uint8 tensors have one scale, and zero points that differ by 128."""
    p, q = a.quantization, b.quantization
    if p is None or q is None or {a.type, b.type} != set(_POINTS):
        return False
    points = (p.zero_point[0] - _POINTS[a.type], q.zero_point[0] - _POINTS[b.type])
    return p.scale.size == 1 and p.scale[0] == q.scale[0] and points[0] == points[1]


def _shifted(core: Any, wanted: TensorType) -> Any:
    """The quantization of the same values in int8 or uint8."""
    t = schema.QuantizationParametersT()
    t.scale = np.array(core.quantization.scale, np.float32)
    point = int(core.quantization.zeroPoint[0]) - _POINTS[TensorType(core.type)] + _POINTS[wanted]
    t.zeroPoint = np.array([point], np.int64)
    return t
