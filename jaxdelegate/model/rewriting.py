"""Rewrites a file with the official schema, to add and remove tensors and operators.

Fields that the schema does not have would be lost, so files with such fields are refused.
"""

import copy
import dataclasses
import functools
import io
import itertools
import zipfile
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from jaxdelegate.errors import ModelError
from jaxdelegate.model import archive
from jaxdelegate.model.flatbuffer import UINT8, Flatbuffer, Table
from jaxdelegate.model.front import has_unknown_fields
from jaxdelegate.model.layout import LAYOUT
from jaxdelegate.model.operator_tables import UNIONS
from jaxdelegate.model.records import Model
from jaxdelegate.text import printable

_ALIGNMENT = 16  # bytes, for a buffer's data
_ORDERS = "model_control_dependencies"  # metadata that refers to operators by index
_MAX_GROWTH = 4  # times the file's size: shared bytes are copied
_MAX_BYTES = 2**31 - 1  # in a flatbuffer
_MAX_UNPACKED = 64 << 20  # bytes of the files in an appended ZIP archive


class Rewriting:
    """A model's tables as objects of the schema.

    Changes to the Model table `t` must keep the indices of buffers and operator codes.
    """

    def __init__(self, model: Model, purpose: str) -> None:
        """Unpack a file, with the data after the flatbuffer moved into it.

        Errors name the purpose. A ModelError if the file has fields of a newer schema, refers to
        operators in its metadata, or has weights in files next to it.
        """
        _check(model, purpose)
        self._content, self._what = model.content, f"{printable(model.source)}: {purpose}"
        self._added = 0
        self.t = schema.ModelT.InitFromPackedBuf(bytes(model.content))
        self.t.buffers, self.t.operatorCodes = self.t.buffers or [], self.t.operatorCodes or []
        for buffer in self.t.buffers:
            _move_inside(buffer, model.content)
        for operator in self._operators():
            _move_options_inside(operator, model.content)
        self._buffers, self._codes = self._read_buffers(), self._used_codes()

    def add_buffer(self, values: np.ndarray) -> int:
        """Add a buffer with the bytes of an array, and return its index."""
        buffer = schema.BufferT()
        buffer.data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        self.t.buffers.append(buffer)
        self._added += buffer.data.size
        return len(self.t.buffers) - 1

    def add_tensor(self, subgraph: int, tensor: Any) -> int:
        """Add a TensorT; returns its index."""
        self.t.subgraphs[subgraph].tensors.append(tensor)
        return len(self.t.subgraphs[subgraph].tensors) - 1

    def _operator_code(self, code: Any) -> int:
        """The index of an OperatorCodeT, which is added if the file does not have it."""
        for i, other in enumerate(self.t.operatorCodes):
            if vars(other) == vars(code):
                return i
        self.t.operatorCodes.append(code)
        return len(self.t.operatorCodes) - 1

    def operator(self, builtin: int, version: int, source: int, result: int) -> Any:
        """An OperatorT of one tensor, whose builtin operator has a number below 127."""
        code, t = schema.OperatorCodeT(), schema.OperatorT()
        code.builtinCode = code.deprecatedBuiltinCode = builtin
        code.version = version
        t.opcodeIndex = self._operator_code(code)
        t.inputs, t.outputs = [source], [result]
        return t

    def with_version(self, index: int, version: int) -> int:
        """The index of an operator code with at least this version."""
        if self.t.operatorCodes[index].version >= version:
            return index
        code = copy.copy(self.t.operatorCodes[index])
        code.version = version
        return self._operator_code(code)

    def drop_tensors(self, subgraph: int, candidates: Collection[int]) -> None:
        """Remove those of the tensors `candidates` to which nothing refers."""
        tensors = self.t.subgraphs[subgraph].tensors or []
        references = _references(self.t, subgraph)
        used = {i for at in references for i in at.indices} - {-1}
        used.update(set(range(len(tensors))).difference(candidates))
        used.update([i for j in used for at in _details(tensors[j]) for i in at.indices])
        kept = sorted(used - {-1})
        number = {-1: -1} | {old: new for new, old in enumerate(kept)}
        for at in (*references, *(at for i in kept for at in _details(tensors[i]))):
            at.renumber(number)
        self.t.subgraphs[subgraph].tensors = [tensors[i] for i in kept]

    def drop_unread(self) -> None:
        """Leave out buffers and operator codes that nothing uses in the original file, too."""
        self._buffers = set(range(len(self.t.buffers)))
        self._codes = set(range(len(self.t.operatorCodes)))

    def content(self, *, with_files: bool = True) -> bytes:
        """The file, without buffers and operator codes that are no longer used.

        A ModelError if it would be too large, or its appended ZIP archive cannot be copied.

        Args:
            with_files: append the ZIP archive that is appended to the original file, if any.
        """
        self._drop_buffers()
        self._drop_codes()
        builder = AlignedBuilder(1024 + self._checked_size())
        builder.Finish(self.t.Pack(builder), bytes(self._content[4:8]))
        if not with_files:
            return bytes(builder.Output())
        try:
            return _with_files(bytes(builder.Output()), self._content)
        except archive.ERRORS as error:
            rule = "the ZIP archive after the model must be one that can be copied"
            raise ModelError(f"{self._what}: {rule}: {error}") from error

    def _checked_size(self) -> int:
        """The bytes of data and options, with shared ones counted each time."""
        parts = [*(b.data for b in self.t.buffers), *(o.customOptions for o in self._operators())]
        total = sum(len(part) for part in parts if part is not None)
        limit = min(_MAX_BYTES, _MAX_GROWTH * len(self._content) + self._added)
        if total > limit:
            rule = f"data and options must not exceed {limit} bytes, with shared ones copied"
            raise ModelError(f"{self._what}: {rule}, got {total}")
        return total

    def _operators(self) -> Iterator[Any]:
        return (o for subgraph in self.t.subgraphs for o in subgraph.operators or [])

    def _read_buffers(self) -> set[int]:
        tensors = {t.buffer for subgraph in self.t.subgraphs for t in subgraph.tensors or []}
        metadata = {entry.buffer for entry in self.t.metadata or []}
        older = self.t.metadataBuffer
        return tensors | metadata | set(() if older is None else map(int, older))

    def _drop_buffers(self) -> None:
        gone = self._buffers - self._read_buffers() - {0}  # 0 means no data
        kept = [i for i in range(len(self.t.buffers)) if i not in gone]
        number = {old: new for new, old in enumerate(kept)}
        self.t.buffers = [self.t.buffers[i] for i in kept]
        tensors = (t for subgraph in self.t.subgraphs for t in subgraph.tensors or [])
        for reader in (*tensors, *(self.t.metadata or [])):
            reader.buffer = number.get(reader.buffer, reader.buffer)
        if self.t.metadataBuffer is not None:
            self.t.metadataBuffer = [number.get(int(i), int(i)) for i in self.t.metadataBuffer]

    def _used_codes(self) -> set[int]:
        return {o.opcodeIndex for o in self._operators()}

    def _drop_codes(self) -> None:
        gone = self._codes - self._used_codes()
        kept = [i for i in range(len(self.t.operatorCodes)) if i not in gone]
        self.t.operatorCodes = [self.t.operatorCodes[i] for i in kept]
        for operator in self._operators():
            operator.opcodeIndex = kept.index(operator.opcodeIndex)


@dataclasses.dataclass(frozen=True)
class _Reference:
    """A field that refers to one tensor of a subgraph, or several, by index."""

    part: Any
    field: str

    @property
    def indices(self) -> list[int]:
        return [int(i) for i in np.atleast_1d(getattr(self.part, self.field))]

    def renumber(self, number: Mapping[int, int]) -> None:
        new = [number[i] for i in self.indices]
        is_one = isinstance(getattr(self.part, self.field), int)
        setattr(self.part, self.field, new[0] if is_one else new)


def _references(t: Any, subgraph: int) -> list[_Reference]:
    """The references of a subgraph's ends and operators, and of signatures."""
    table = t.subgraphs[subgraph]
    fields = [(table, field) for field in ("inputs", "outputs")]
    for operator in table.operators or []:
        fields += [(operator, field) for field in ("inputs", "outputs", "intermediates")]
    for signature in t.signatureDefs or []:
        if signature.subgraphIndex == subgraph:
            maps = [*(signature.inputs or []), *(signature.outputs or [])]
            fields += [(entry, "tensorIndex") for entry in maps]
    return [_Reference(part, field) for part, field in fields if getattr(part, field) is not None]


def _details(tensor: Any) -> list[_Reference]:
    """The references of a tensor to the scales and zero points of its blocks."""
    details = None if tensor.quantization is None else tensor.quantization.details
    return [_Reference(details, f) for f in ("scales", "zeroPoints") if hasattr(details, f)]


class AlignedBuilder(flatbuffers.Builder):  # type: ignore[misc]  # flatbuffers has no types
    """Aligns vectors of bytes as the schema requires for buffers; the generated code does not."""

    def CreateNumpyVector(self, x: np.ndarray) -> int:  # noqa: N802 (overrides)
        if x.dtype != np.uint8:
            return int(super().CreateNumpyVector(x))
        self.StartVector(1, x.size, _ALIGNMENT)
        self.head -= x.size
        self.Bytes[self.head : self.head + x.size] = x.tobytes()
        self.vectorNumElems = x.size
        return int(self.EndVector())


def _move_inside(buffer: Any, content: memoryview) -> None:
    if buffer.offset > 1:
        buffer.data = np.frombuffer(content, np.uint8, buffer.size, buffer.offset)
    buffer.offset = buffer.size = 0


def _move_options_inside(operator: Any, content: memoryview) -> None:
    start, size = operator.largeCustomOptionsOffset, operator.largeCustomOptionsSize
    if start > 1:
        operator.customOptions = np.frombuffer(content, np.uint8, size, start)
    operator.largeCustomOptionsOffset = operator.largeCustomOptionsSize = 0


def _check(model: Model, purpose: str) -> None:
    if model.external_buffer_groups:
        rule = "its weights are in files next to it; convert it with the weights inside"
        raise ModelError(f"{printable(model.source)}: {purpose}: {rule}")
    if _ORDERS in model.metadata:
        rule = f"its metadata {_ORDERS!r} refers to operators by index; convert it without"
        raise ModelError(f"{printable(model.source)}: {purpose}: {rule}")
    file = Flatbuffer(model.content, model.source, LAYOUT)
    for table in _tables(file.root("Model")):
        counts = {table.at: len(LAYOUT[table.kind])} | _options(table)
        if any(has_unknown_fields(model.content, at, count) for at, count in counts.items()):
            first = next(iter(LAYOUT[table.kind]))
            table.fail(first, f"{purpose} needs a file with known fields", "one of a newer schema")


def _options(table: Table) -> dict[int, int]:
    """The positions of an operator's options tables, and the number of fields in the schema."""
    if table.kind != "Operator":
        return {}
    counts = {}
    for field, names in UNIONS.items():
        name, at = names.get(table.scalar(f"{field}_type", UINT8), "NONE"), table.target(field)
        if at and name != "NONE":
            counts[at] = _field_count(name)
    return counts


@functools.cache
def _field_count(name: str) -> int:
    counter = _Counter()
    getattr(schema, f"{name}Start")(counter)
    return counter.count


class _Counter:
    count = 0

    def StartObject(self, count: int) -> None:  # noqa: N802 (as flatbuffers.Builder)
        self.count = count


def _tables(root: Table) -> Iterator[Table]:
    """All tables that are rewritten, except operators' options."""
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
    """The file with the old one's appended ZIP archive, in which metadata writers store files.

    Raises archive.ERRORS if the archive is damaged or cannot be copied.
    """
    if not zipfile.is_zipfile(archive.MemoryFile(content)):
        return new
    stream = io.BytesIO(new)
    with (
        zipfile.ZipFile(archive.MemoryFile(content)) as old,
        zipfile.ZipFile(stream, "a") as new_files,
    ):
        unpacked = sum(entry.file_size for entry in old.infolist())
        if unpacked > _MAX_UNPACKED:
            raise zipfile.BadZipFile(
                f"its files have {unpacked} bytes, the limit is {_MAX_UNPACKED}"
            )
        for entry in old.infolist():
            new_files.writestr(entry, old.read(entry))
    return stream.getvalue()
