"""A .tflite file as frozen records; `read_model` checks all of it."""

import dataclasses
import functools
import logging
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from jaxdelegate.errors import ModelError
from jaxdelegate.model import wrong_files
from jaxdelegate.model.buffers import Buffers, ExternalBuffers
from jaxdelegate.model.flatbuffer import UINT8, UINT32, Flatbuffer, Table
from jaxdelegate.model.graph_checks import OPERATOR_SIZE, Fail, check_calls, check_order
from jaxdelegate.model.layout import LAYOUT
from jaxdelegate.model.operator_tables import OptionsReader, called_subgraphs, read_operator_code
from jaxdelegate.model.source import ModelSource, Source, open_source
from jaxdelegate.model.stored import byte_count, constant, is_copied, why_not_stored
from jaxdelegate.model.tensor_tables import (
    read_quantization,
    read_shape,
    read_shape_signature,
    read_sparsity,
    read_type,
    with_block_values,
)
from jaxdelegate.op_lowering.dtypes import DTYPES, TENSOR_TYPES
from jaxdelegate.op_lowering.options import Options, record_of
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.op_lowering.spec import Shape, Sparsity, TensorSpec
from jaxdelegate.quant.params import Quantization
from jaxdelegate.text import printable

_IDENTIFIER = b"TFL3"
LORA_RANK = "lora_rank"  # metadata of adapters: the number is in the place of a buffer's index
_VERSION = 3
_STRIPPED_BYTES = 1 << 26  # limit of zeros that replace missing data: small files could need much
_LOGGER = logging.getLogger("jaxdelegate")
_NOT_IN_SCOPES = re.compile(r"[^\w.\-]", re.ASCII)
_UNSIZED = (TensorType.STRING, TensorType.RESOURCE, TensorType.VARIANT)  # 0 bytes: no data


@dataclasses.dataclass(frozen=True)
class VariantType:
    """The type of the elements of a VARIANT tensor (a tensor list)."""

    shape: Shape
    type: TensorType
    has_rank: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of a subgraph, with its data if the file has it."""

    index: int  # in `Subgraph.tensors`
    name: str  # not necessarily unique
    shape: Shape  # as declared; where `shape_signature` has -1, a placeholder
    shape_signature: Shape | None  # `shape` with -1 for unknown dimensions; None: all are known
    type: TensorType
    buffer: int  # the index of the buffer with `stored`; 0: none
    stored: np.ndarray | None  # its bytes in the file, uint8 [n], a read-only view; None: no data
    quantization: Quantization | None  # None: it is not quantized
    sparsity: Sparsity | None  # the layout of the stored values in `shape`; None: dense
    is_variable: bool  # keeps its value from one invoke to the next
    has_rank: bool  # False with an empty shape: the rank is unknown
    variant_types: tuple[VariantType, ...]  # of a VARIANT tensor, if the file declares them
    stored_shape: Shape  # of `data`: `shape`, or of a sparse tensor [number of values]

    @property
    def dtype(self) -> np.dtype:
        """The elements' dtype, for a list of tensors, which is an array here."""
        return DTYPES[self.variant_types[0].type if self.is_list else self.type]

    @property
    def is_list(self) -> bool:
        """Whether it is a list of tensors, and the file declares of what."""
        is_variant = self.type is TensorType.VARIANT and self.stored is None
        return is_variant and len(self.variant_types) == 1

    @functools.cached_property
    def constant(self) -> np.ndarray | None:
        """The values as specs have them: many packed integers stay packed (a `PackedConstant`)."""
        return None if self.stored is None else constant(self.type, self.stored_shape, self.stored)

    @property
    def data(self) -> np.ndarray | None:
        """The values in the file, read-only; None: the file has none.

        A view of the file, but a copy for strings (bytes objects), packed 4 and 2 bit integers (one
        element each; a new copy of a large tensor whenever you ask) and booleans. Of a sparse
        tensor, the flat array of its stored values.
        """
        return None if self.constant is None else np.asarray(self.constant)

    def spec(self) -> TensorSpec:
        """The spec that rules and kernels get, with the declared shape; a list has none."""
        return TensorSpec(
            name=self.name or f"tensor_{self.index}",
            shape=() if self.is_list else self.shape,
            dtype=self.dtype,
            quantization=self.quantization,
            sparsity=self.sparsity,
            is_variable=self.is_variable,
            const=self.constant,
        )


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Operator:
    """An operator of a subgraph; tensors by index, -1 for an optional one that is absent."""

    index: int  # in `Subgraph.operators`, which is the order of execution
    name: str  # the BuiltinOperator's name, or the custom operator's code
    builtin_code: int  # the BuiltinOperator's number
    custom: bool = False
    version: int = 1  # that the file requires
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    intermediates: tuple[int, ...] = ()  # tensors inside it, for their quantization (integer LSTM)
    options: Options  # the schema's defaults if the file has none
    custom_options: bytes = b""  # the bytes after a custom operator's options
    mutating_variable_inputs: tuple[bool, ...] = ()  # which inputs it updates; empty: not declared

    @property
    def scope(self) -> str:
        """Its name in compiled programs: NAME.index, with characters that HLO keeps."""
        return f"{_NOT_IN_SCOPES.sub('_', self.name)}.{self.index}"


@dataclasses.dataclass(frozen=True, eq=False)
class Subgraph:
    """The first is the main one; control flow and signatures use others."""

    index: int
    name: str
    tensors: tuple[Tensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[Operator, ...]


@dataclasses.dataclass(frozen=True)
class SignatureDef:
    """The tensor indices of a subgraph's inputs and outputs by name."""

    key: str
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    subgraph: int


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """A model file."""

    origin: Source
    version: int  # of the schema: 3
    description: str  # free text
    subgraphs: tuple[Subgraph, ...]  # the main one first
    signatures: tuple[SignatureDef, ...]  # in the file's order
    metadata: Mapping[str, memoryview]  # the bytes in the file by name
    external_buffer_groups: tuple[str, ...]  # the files next to this one that contain tensors

    @property
    def source(self) -> str:
        """Its path, or "<bytes>"."""
        return self.origin.name

    @property
    def content(self) -> memoryview:
        """The file, read-only."""
        return self.origin.content

    @property
    def nbytes(self) -> int:
        """The size of the file, without external buffers."""
        return len(self.content)


def read_model(source: ModelSource | Source) -> Model:
    """Read and check a .tflite file.

    The arrays are views of the file's content and keep it alive. A file of more than 64 MiB is
    mapped, not read, and must not be changed in place during their lifetime: see
    `jaxdelegate.model.files.FileContent`. A ModelError names the field that is damaged.
    """
    opened = source if isinstance(source, Source) else open_source(source)
    return _Reader(opened).read()


def declared_groups(source: Source) -> tuple[str, ...]:
    """The names of all files next to a model that it declares; nothing else is read."""
    _check_header(source)
    root = Flatbuffer(source.content, source.name, LAYOUT).root("Model")
    return ExternalBuffers(root, source).groups


class _Reader:
    def __init__(self, source: Source) -> None:
        _check_header(source)
        self._source = source
        self._file = Flatbuffer(source.content, source.name, LAYOUT)
        self._root = root = self._file.root("Model")
        version = root.scalar("version", UINT32)
        if version != _VERSION:
            root.fail("version", f"must be {_VERSION}", version)
        self._codes = [read_operator_code(t) for t in root.tables("operator_codes", "OperatorCode")]
        self._options = OptionsReader(self._file)
        self._buffers = Buffers(self._file, root.tables("buffers", "Buffer"))
        self._external = ExternalBuffers(root, source)
        self._stripped_left = _STRIPPED_BYTES
        self._subgraph_tables = root.tables("subgraphs", "SubGraph")
        if not self._subgraph_tables:
            root.fail("subgraphs", "a model must have at least one", 0)

    def read(self) -> Model:
        subgraphs = tuple(self._subgraph(i, t) for i, t in enumerate(self._subgraph_tables))
        calls = [
            [i for op in s.operators for _, i in called_subgraphs(op.options)] for s in subgraphs
        ]
        sizes = [_size(subgraph) for subgraph in subgraphs]
        check_calls(calls, sizes, lambda i: self._subgraph_tables[i].fail)
        signatures = self._root.tables("signature_defs", "SignatureDef")
        metadata = dict(map(self._metadata, self._root.tables("metadata", "Metadata")))
        return Model(
            origin=self._source,
            version=_VERSION,
            description=self._root.string("description") or "",
            subgraphs=subgraphs,
            signatures=tuple(_signature(table, subgraphs) for table in signatures),
            metadata=MappingProxyType(metadata),
            external_buffer_groups=tuple(self._external.used),
        )

    def _metadata(self, table: Table) -> tuple[str, memoryview]:
        if table.string("name") == LORA_RANK:
            return LORA_RANK, memoryview(table.scalar("buffer", UINT32).to_bytes(4, "little"))
        stored = self._buffers.stored(table, "buffer")
        return table.string("name") or "", memoryview(b"") if stored is None else stored.data

    def _subgraph(self, index: int, table: Table) -> Subgraph:
        tensor_tables = table.tables("tensors", "Tensor")
        count = len(tensor_tables)
        tensors = [self._tensor(i, t, count) for i, t in enumerate(tensor_tables)]
        operator_tables = table.tables("operators", "Operator")
        operators = tuple(self._operator(i, t, count) for i, t in enumerate(operator_tables))
        inputs, outputs = table.indices("inputs", count), table.indices("outputs", count)
        computed = {i for operator in operators for i in operator.outputs}.union(inputs)
        tensors = [_with_empty_data(tensor, tensor.index in computed) for tensor in tensors]
        tensors = [t if t.index in computed else self._with_stripped_values(t) for t in tensors]
        tensors = [_with_block_values(tensor, tensors) for tensor in tensors]
        tensors = _as_written(tensors, operators)
        for i in inputs:
            if tensors[i].stored is not None:
                table.fail("inputs", "an input must not hold data, tensor", i)
        constants = {t.index for t in tensors if t.stored is not None}
        variables = {t.index for t in tensors if t.is_variable}

        def fail(position: int | None) -> Fail:
            return table.fail if position is None else operator_tables[position].fail

        check_order(operators, constants.union(inputs), variables, outputs, fail)
        operators = _without_unwritten(operators, constants.union(inputs, variables))
        return Subgraph(
            index=index,
            name=table.string("name") or "",
            tensors=tuple(tensors),
            inputs=inputs,
            outputs=outputs,
            operators=operators,
        )

    def _tensor(self, index: int, table: Table, tensor_count: int) -> Tensor:
        tensor_type = read_type(table)
        shape = read_shape(table, tensor_type)
        is_variable = table.scalar("is_variable", UINT8) != 0
        stored = self._stored(table, tensor_type)
        sparse = None if stored is None else read_sparsity(table, shape)
        stored_shape = shape if sparse is None else (sparse[1],)
        if stored is not None:
            reason = why_not_stored(tensor_type, math.prod(stored_shape), stored)
            if reason is not None:
                table.fail("buffer", *reason)
            if is_variable and stored.size:
                table.fail("is_variable", "a variable must not hold data", True)
        return Tensor(
            index=index,
            name=table.string("name") or "",
            shape=shape,
            shape_signature=read_shape_signature(table, shape),
            type=tensor_type,
            buffer=table.scalar("buffer", UINT32),
            stored=stored,
            quantization=read_quantization(table, shape, tensor_count),
            sparsity=None if sparse is None else sparse[0],
            is_variable=is_variable,
            has_rank=table.scalar("has_rank", UINT8) != 0,
            variant_types=tuple(
                map(_variant_type, table.tables("variant_tensors", "VariantSubType"))
            ),
            stored_shape=stored_shape,
        )

    def _stored(self, table: Table, tensor_type: TensorType) -> np.ndarray | None:
        stored, external = self._buffers.stored(table, "buffer"), self._external.stored(table)
        if stored is not None and external is not None:
            table.fail(
                "external_buffer", "must be 0 for a tensor with a buffer that holds data", "both"
            )
        stored = stored if external is None else external
        if stored is not None and stored.size == 0 and tensor_type in _UNSIZED:
            return None
        if stored is not None and external is None and is_copied(tensor_type):
            table.charge("buffer", stored.size)  # tensors may share one
        return stored

    def _with_stripped_values(self, tensor: Tensor) -> Tensor:
        """Zeros for weights whose values were removed from the file.

        Tensors that are quantized in blocks are constants, so they must have had data.
        """
        q = tensor.quantization
        is_stripped = q is not None and q.blockwise is not None and tensor.stored is None
        if not is_stripped or tensor.is_variable or tensor.sparsity is not None:
            return tensor
        count = byte_count(tensor.type, math.prod(tensor.shape))
        if count > self._stripped_left:
            return tensor
        self._stripped_left -= count
        _LOGGER.warning(
            "tensor %d %r has no data in the file: zeros are used", tensor.index, tensor.name
        )
        stored = np.zeros(count, np.uint8)
        stored.flags.writeable = False
        return dataclasses.replace(tensor, stored=stored)

    def _operator(self, index: int, table: Table, tensor_count: int) -> Operator:
        code = self._codes[table.index("opcode_index", len(self._codes))]
        options, custom_data = self._options.read(table, code)
        for field, subgraph in called_subgraphs(options):
            if not 0 <= subgraph < len(self._subgraph_tables):
                rule = f"must be a subgraph, at least 0 and below {len(self._subgraph_tables)}"
                where = f"{table.path} ({printable(code.name)})"
                self._file.fail(f"{type(options).__name__}.{field}", where, rule, subgraph)
        mutating = table.vector("mutating_variable_inputs", np.uint8)
        return Operator(
            index=index,
            name=code.name,
            builtin_code=code.builtin_code,
            custom=code.custom,
            version=code.version,
            inputs=table.indices("inputs", tensor_count, optional=True),
            outputs=table.indices("outputs", tensor_count, optional=True),
            intermediates=table.indices("intermediates", tensor_count, optional=True),
            options=options,
            custom_options=custom_data,
            mutating_variable_inputs=() if mutating is None else tuple((mutating != 0).tolist()),
        )


def _size(subgraph: Subgraph) -> int:
    ends = sum(len(op.inputs) + len(op.outputs) for op in subgraph.operators)
    return len(subgraph.tensors) + ends + OPERATOR_SIZE * len(subgraph.operators)


def _check_header(source: Source) -> None:
    content = source.content
    if len(content) < 8:
        rule = "a TFLite model has a header of 8 bytes"
        empty = "; the file is empty: download or copy it again" if not content else ""
        raise ModelError(f"{printable(source.name)}: file: {rule}, got {len(content)} bytes{empty}")
    if content[4:8] != _IDENTIFIER:
        rule = f"bytes 4 to 8 of a TFLite model are {_IDENTIFIER!r}"
        hint = wrong_files.hint(source.name, bytes(content[:64]))
        raise ModelError(
            f"{printable(source.name)}: file: {rule}, got {bytes(content[4:8])!r}{hint}"
        )


def _variant_type(table: Table) -> VariantType:
    tensor_type = read_type(table)
    shape, has_rank = read_shape(table, tensor_type), table.scalar("has_rank", UINT8) != 0
    return VariantType(shape, tensor_type, has_rank)


def _with_empty_data(tensor: Tensor, is_computed: bool) -> Tensor:
    """Make tensors without elements constants, unless an operator computes them.

    A computed tensor may get elements, since its shape is a placeholder.
    """
    if 0 not in tensor.shape or tensor.is_variable:
        return tensor
    return dataclasses.replace(tensor, stored=None if is_computed else np.empty(0, np.uint8))


def _as_written(tensors: Sequence[Tensor], operators: Iterable[Operator]) -> list[Tensor]:
    """The tensors with the dtypes that their operators write, if kernels fix them."""
    written = {i: record_of(op.name).writes for op in operators for i in op.outputs if i >= 0}
    types = {i: TENSOR_TYPES[dtype] for i, dtype in written.items() if dtype is not None}
    return [
        dataclasses.replace(t, type=types.get(t.index, t.type)) if t.stored is None else t
        for t in tensors
    ]


def _with_block_values(tensor: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """The tensor with the values of its blockwise scales, which are also tensors."""
    q = tensor.quantization
    if q is None or q.blockwise is None:
        return tensor

    def value(index: int) -> np.ndarray | None:
        return None if tensors[index].sparsity is not None else tensors[index].data

    return dataclasses.replace(tensor, quantization=with_block_values(q, value))


def _signature(table: Table, subgraphs: tuple[Subgraph, ...]) -> SignatureDef:
    key = table.string("signature_key")
    if key is None:
        table.fail("signature_key", "must be present", None)
    subgraph = table.index("subgraph_index", len(subgraphs))
    count = len(subgraphs[subgraph].tensors)
    inputs, outputs = (_tensor_map(table, field, count) for field in ("inputs", "outputs"))
    return SignatureDef(key, inputs, outputs, subgraph)


def _tensor_map(table: Table, field: str, tensor_count: int) -> Mapping[str, int]:
    names: dict[str, int] = {}
    for entry in table.tables(field, "TensorMap"):
        name = entry.string("name")
        if name is None:
            entry.fail("name", "must be present", None)
        names[name] = entry.index("tensor_index", tensor_count)
    return MappingProxyType(names)


def _without_unwritten(
    operators: Sequence[Operator], values: Collection[int]
) -> tuple[Operator, ...]:
    """Operators without inputs that have no value when they run, which RESHAPE may have.

    `values` are the tensors that have a value before any operator runs.
    """
    known, kept = set(values), []
    for operator in operators:
        inputs = tuple(i if i in known else -1 for i in operator.inputs)
        is_same = inputs == operator.inputs
        kept.append(operator if is_same else dataclasses.replace(operator, inputs=inputs))
        known.update(operator.outputs)
    return tuple(kept)
