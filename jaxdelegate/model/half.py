"""float32 constants as float16, with DEQUANTIZE operators before those that read them.

This is what TFLite's converter writes for float16 quantization. Tensors and operators come to the
file, so it is written anew, by the official schema; what that schema does not know would be lost,
so such a file is refused.
"""

import functools
import io
import itertools
import zipfile
from collections.abc import Collection, Iterator
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from jaxdelegate.errors import ModelError
from jaxdelegate.model.editing import Place
from jaxdelegate.model.flatbuffer import UINT8, Flatbuffer, Table
from jaxdelegate.model.front import has_unknown_fields
from jaxdelegate.model.layout import LAYOUT
from jaxdelegate.model.records import Model, Operator, Subgraph
from jaxdelegate.op_lowering.options.enums import TensorType

_VERSION = 3  # of DEQUANTIZE, with which it takes float16
_SUFFIX = b"_dequantize"  # as converters name the result
_ALIGNMENT = 16  # of a buffer's data
_UNIONS = {
    field: {number: name for name, number in vars(union).items() if isinstance(number, int)}
    for field, union in (
        ("builtin_options", schema.BuiltinOptions),
        ("builtin_options_2", schema.BuiltinOptions2),
    )
}
_ORDERS = "model_control_dependencies"  # metadata that counts operators


def castable(model: Model) -> Iterator[Place]:
    """The float32 constants that can become float16: dense arrays that builtin operators read.

    Next to quantized weights they stay: stock kernels take float32 biases there only.
    """
    for subgraph in model.subgraphs:
        kept = {i for o in subgraph.operators if _keeps(o, subgraph) for i in o.inputs}
        read = {i for o in subgraph.operators for i in o.inputs if i >= 0}
        for i in sorted(read - kept - set(subgraph.outputs)):
            tensor = subgraph.tensors[i]
            is_plain = tensor.shape and tensor.sparsity is None and 0 not in tensor.shape
            if tensor.type is TensorType.FLOAT32 and tensor.stored is not None and is_plain:
                yield subgraph.index, i


def _keeps(operator: Operator, subgraph: Subgraph) -> bool:
    """Whether an operator wants its constants as they are."""
    inputs = (subgraph.tensors[i] for i in operator.inputs if i >= 0)
    return operator.custom or any(tensor.spec().is_quantized for tensor in inputs)


def with_halves(model: Model, places: Collection[Place]) -> bytes:
    """The model's file with some constants as float16.

    Args:
        model: as it was read.
        places: of `castable`; their values must be within the range of float16.

    Raises:
        ModelError: the file has fields of a newer schema, counts operators in its metadata, or
            keeps its weights in files next to it.
    """
    if not places:
        return bytes(model.content)
    _check(model)
    t = schema.ModelT.InitFromPackedBuf(bytes(model.content))
    for buffer in t.buffers:
        _move_inside(buffer, model.content)
    for subgraph in t.subgraphs:
        for operator in subgraph.operators or []:
            _move_options_inside(operator, model.content)
    halves = _Halves(t)
    for subgraph, i in places:
        data = model.subgraphs[subgraph].tensors[i].data
        assert data is not None
        halves.cast(subgraph, i, data)
    builder = _Builder(1024 + sum(len(b.data) for b in t.buffers if b.data is not None))
    halves.finish()
    builder.Finish(t.Pack(builder), bytes(model.content[4:8]))
    return _with_files(bytes(builder.Output()), model.content)


class _Builder(flatbuffers.Builder):  # type: ignore[misc]  # flatbuffers has no types
    """Aligns vectors of bytes as the schema demands of buffers; the generated code does not."""

    def CreateNumpyVector(self, x: np.ndarray) -> int:  # noqa: N802 (overrides)
        """A vector of numbers."""
        if x.dtype != np.uint8:
            return int(super().CreateNumpyVector(x))
        self.StartVector(1, x.size, _ALIGNMENT)
        self.head -= x.size
        self.Bytes[self.head : self.head + x.size] = x.tobytes()
        self.vectorNumElems = x.size
        return int(self.EndVector())


class _Halves:
    """A model's tables on their way to float16."""

    def __init__(self, t: Any) -> None:
        self._t = t
        self._buffers: dict[tuple[int, bytes], int] = {}
        self._code: int | None = None
        self._first: dict[int, list[Any]] = {}

    def cast(self, subgraph: int, index: int, values: np.ndarray) -> None:
        """Put a float16 tensor in the place of a constant, which becomes DEQUANTIZE's result."""
        graph = self._t.subgraphs[subgraph]
        wide = graph.tensors[index]
        half = schema.TensorT()
        half.shape, half.type, half.hasRank = wide.shape, schema.TensorType.FLOAT16, wide.hasRank
        half.name, half.buffer = wide.name, self._buffer(wide.buffer, values)
        wide.buffer = 0
        wide.name = (wide.name or b"") + _SUFFIX
        graph.tensors.append(half)
        operator = schema.OperatorT()
        operator.opcodeIndex = self._dequantize()
        operator.inputs, operator.outputs = [len(graph.tensors) - 1], [index]
        self._first.setdefault(subgraph, []).append(operator)

    def finish(self) -> None:
        """Put the operators in front, and drop what no tensor reads any more."""
        for subgraph, operators in self._first.items():
            graph = self._t.subgraphs[subgraph]
            graph.operators = [*operators, *(graph.operators or [])]
        read = {t.buffer for graph in self._t.subgraphs for t in graph.tensors}
        for old in {old for old, _ in self._buffers} - read:
            self._t.buffers[old].data = None

    def _buffer(self, old: int, values: np.ndarray) -> int:
        key = old, repr(values.shape).encode()
        if key not in self._buffers:
            buffer = schema.BufferT()
            buffer.data = np.ascontiguousarray(values.astype(np.float16)).reshape(-1).view(np.uint8)
            self._t.buffers.append(buffer)
            self._buffers[key] = len(self._t.buffers) - 1
        return self._buffers[key]

    def _dequantize(self) -> int:
        if self._code is None:
            code = schema.OperatorCodeT()
            code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.DEQUANTIZE
            code.version = _VERSION
            self._t.operatorCodes.append(code)
            self._code = len(self._t.operatorCodes) - 1
        return self._code


def _move_inside(buffer: Any, content: memoryview) -> None:
    if buffer.offset > 1:
        buffer.data = np.frombuffer(content, np.uint8, buffer.size, buffer.offset)
    buffer.offset = buffer.size = 0


def _move_options_inside(operator: Any, content: memoryview) -> None:
    start, size = operator.largeCustomOptionsOffset, operator.largeCustomOptionsSize
    if start > 1:
        operator.customOptions = np.frombuffer(content, np.uint8, size, start)
    operator.largeCustomOptionsOffset = operator.largeCustomOptionsSize = 0


def _check(model: Model) -> None:
    if model.external_buffer_groups:
        raise ModelError(f"{model.source}: float16: its weights lie in files next to it")
    if _ORDERS in model.metadata:
        raise ModelError(f"{model.source}: float16: its metadata {_ORDERS!r} counts operators")
    file = Flatbuffer(model.content, model.source, LAYOUT)
    for table in _tables(file.root("Model")):
        counts = {table.at: len(LAYOUT[table.kind])} | _options(table)
        if any(has_unknown_fields(model.content, at, count) for at, count in counts.items()):
            first = next(iter(LAYOUT[table.kind]))
            table.fail(first, "casting to float16 must know all fields", "one of a newer schema")


def _options(table: Table) -> dict[int, int]:
    """Where the options of an operator start, and how many fields the schema knows of them."""
    if table.kind != "Operator":
        return {}
    found = {}
    for field, names in _UNIONS.items():
        name, at = names.get(table.scalar(f"{field}_type", UINT8), "NONE"), table.target(field)
        if at and name != "NONE":
            found[at] = _field_count(name)
    return found


@functools.cache
def _field_count(name: str) -> int:
    """How many fields a table has: what the generated code says when it begins one."""
    counter = _Counter()
    getattr(schema, f"{name}Start")(counter)
    return counter.count


class _Counter:
    """A builder that only notes how many fields a table has."""

    count = 0

    def StartObject(self, count: int) -> None:  # noqa: N802 (as flatbuffers.Builder)
        """Note it."""
        self.count = count


def _tables(root: Table) -> Iterator[Table]:
    """All tables that are written anew, but for operators' options."""
    yield root
    for field, kind in (
        ("operator_codes", "OperatorCode"),
        ("buffers", "Buffer"),
        ("metadata", "Metadata"),
        ("signature_defs", "SignatureDef"),
    ):
        yield from root.tables(field, kind)
    for subgraph in root.tables("subgraphs", "SubGraph"):
        yield subgraph
        yield from itertools.chain(
            subgraph.tables("tensors", "Tensor"), subgraph.tables("operators", "Operator")
        )


def _with_files(new: bytes, content: memoryview) -> bytes:
    """The file with what was packed behind the old one: metadata writers append a ZIP archive."""
    if not zipfile.is_zipfile(io.BytesIO(content)):
        return new
    stream = io.BytesIO(new)
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(stream, "a") as archive:
        for entry in old.infolist():
            archive.writestr(entry, old.read(entry))
    return stream.getvalue()
