"""A small writer of .tflite files by the official schema, for tests, examples and the demo."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from jaxdelegate.op_lowering.dtypes import TENSOR_TYPES
from jaxdelegate.op_lowering.options import CustomOptions, NoOptions, Options, default_options
from jaxdelegate.op_lowering.spec import Sparsity
from jaxdelegate.quant.packing import BITS, pack
from jaxdelegate.quant.params import Quantization

_FIRST_LARGE_OPCODE = schema.BuiltinOperator.PLACEHOLDER_FOR_GREATER_OP_CODES
_FILE_IDENTIFIER = b"TFL3"
_ALIGNMENT = 16  # bytes, for buffers outside the flatbuffer
_OFFSET_MARK = 2  # a placeholder for an unknown offset; offsets below it mean "none"


class SubgraphBuilder:
    """Tensors and operators of one subgraph. Tensors are named by their index, as in the file."""

    def __init__(self, model: "ModelBuilder", name: str) -> None:
        """Start a subgraph of `model`."""
        self._model = model
        self._t = schema.SubGraphT()
        self._t.name = name
        self._t.tensors, self._t.operators, self._t.inputs, self._t.outputs = [], [], [], []

    def tensor(
        self,
        shape: Sequence[int],
        dtype: Any = np.float32,
        name: str | None = None,
        *,
        quantization: Quantization | None = None,
        sparsity: Sparsity | None = None,
        is_variable: bool = False,
        shape_signature: Sequence[int] | None = None,
        elements: Any = None,
    ) -> int:
        """Add a tensor without data: an intermediate, an output or a variable.

        `elements` is the dtype of what a list of tensors (VARIANT) holds.

        Blockwise scales and zero points whose tensors' indices are negative become tensors too.
        """
        quantization = quantization and self._with_block_tensors(quantization)
        t = schema.TensorT()
        t.shape, t.type, t.buffer = list(shape), int(TENSOR_TYPES[np.dtype(dtype)]), 0
        t.name = name or f"t{len(self._t.tensors)}"
        t.isVariable, t.hasRank = is_variable, True
        t.shapeSignature = None if shape_signature is None else list(shape_signature)
        t.quantization = None if quantization is None else _quantization(quantization)
        t.sparsity = None if sparsity is None else _sparsity(sparsity)
        if elements is not None:
            t.type, t.variantTensors = int(schema.TensorType.VARIANT), [schema.VariantSubTypeT()]
            t.variantTensors[0].type = int(TENSOR_TYPES[np.dtype(elements)])
        self._t.tensors.append(t)
        return len(self._t.tensors) - 1

    def _with_block_tensors(self, q: Quantization) -> Quantization:
        blocks = q.blockwise
        if blocks is None or blocks.scale is None or blocks.scales >= 0:
            return q
        points = blocks.zero_point
        blocks = dataclasses.replace(
            blocks,
            scales=self.constant(blocks.scale),
            zero_points=-1 if points is None else self.constant(points),
        )
        return dataclasses.replace(q, blockwise=blocks)

    def input(
        self, shape: Sequence[int], dtype: Any = np.float32, name: str | None = None, **details: Any
    ) -> int:
        """Add a tensor and make it the subgraph's next input."""
        index = self.tensor(shape, dtype, name, **details)
        self._t.inputs.append(index)
        return index

    def inputs(self, *tensors: int) -> None:
        """Set the subgraph's inputs."""
        self._t.inputs = list(tensors)

    def constant(
        self,
        array: Any,
        name: str | None = None,
        *,
        shape: Sequence[int] | None = None,
        **details: Any,
    ) -> int:
        """Add a tensor with data; object arrays are strings, `shape` is for a sparse tensor."""
        array = np.asarray(array)
        index = self.tensor(array.shape if shape is None else shape, array.dtype, name, **details)
        self._t.tensors[index].buffer = self._model.buffer(_stored(array))
        return index

    def external(
        self,
        shape: Sequence[int],
        dtype: Any,
        slice_id: int,
        name: str | None = None,
        **details: Any,
    ) -> int:
        """Add a tensor whose data is in another file, at a `ModelBuilder.external_slice`."""
        index = self.tensor(shape, dtype, name, **details)
        self._t.tensors[index].externalBuffer = slice_id
        return index

    def operator(
        self,
        name: str,
        inputs: Sequence[int | None],
        outputs: Sequence[int],
        options: Options | None = None,
        *,
        version: int = 1,
        intermediates: Sequence[int] = (),
        mutating: Sequence[bool] = (),
    ) -> None:
        """Add an operator; `name` is a BuiltinOperator's, or else a custom operator's.

        None among the inputs is an absent one.
        """
        t = schema.OperatorT()
        t.opcodeIndex = self._model.opcode(name, version)
        t.inputs = [-1 if i is None else i for i in inputs]
        t.outputs, t.intermediates = list(outputs), list(intermediates)
        t.mutatingVariableInputs = list(mutating) or None
        options = default_options(name) if options is None else options
        if isinstance(options, CustomOptions):
            t.customOptions = np.frombuffer(options.data, np.uint8)
        elif not isinstance(options, NoOptions):
            _set_options(t, options)
        self._t.operators.append(t)

    def outputs(self, *tensors: int) -> None:
        """Set the subgraph's outputs."""
        self._t.outputs = list(tensors)


class ModelBuilder(SubgraphBuilder):
    """A model whose main subgraph is built on this object; `subgraph()` adds others."""

    def __init__(self, description: str = "jaxdelegate.testing") -> None:
        """Start an empty model."""
        self._buffers: list[bytes] = [b""]  # buffer 0 is empty by convention: "no data"
        self._opcodes: dict[tuple[str, int], int] = {}
        self._signatures: list[schema.SignatureDefT] = []
        self._metadata: list[schema.MetadataT] = []
        self._groups: list[schema.ExternalBufferGroupT] = []
        self._slices: list[schema.ExternalBufferT] = []
        self._description = description
        super().__init__(self, "main")
        self._subgraphs: list[SubgraphBuilder] = [self]

    @property
    def n_subgraphs(self) -> int:
        """How many subgraphs there are: the position of the next one."""
        return len(self._subgraphs)

    def subgraph(self, name: str) -> SubgraphBuilder:
        """Add a subgraph; control flow names it by its position, the main one being 0."""
        self._subgraphs.append(SubgraphBuilder(self, name))
        return self._subgraphs[-1]

    def signature(
        self, key: str, inputs: Mapping[str, int], outputs: Mapping[str, int], subgraph: int = 0
    ) -> None:
        """Add a signature: names for a subgraph's inputs and outputs."""
        t = schema.SignatureDefT()
        t.signatureKey, t.subgraphIndex = key, subgraph
        t.inputs = [_tensor_map(name, index) for name, index in inputs.items()]
        t.outputs = [_tensor_map(name, index) for name, index in outputs.items()]
        self._signatures.append(t)

    def buffer(self, data: bytes) -> int:
        """Add a buffer and return its index."""
        self._buffers.append(data)
        return len(self._buffers) - 1

    def metadata(self, name: str, data: bytes) -> None:
        """Add a named buffer that no tensor uses."""
        t = schema.MetadataT()
        t.name, t.buffer = name, self.buffer(data)
        self._metadata.append(t)

    def external_slice(self, group: str, offset: int, length: int) -> int:
        """Describe a part of the file `group` next to the model, and return its id."""
        names = [t.name for t in self._groups]
        if group not in names:
            names.append(group)
            self._groups.append(schema.ExternalBufferGroupT())
            self._groups[-1].name = group
        t = schema.ExternalBufferT()
        t.id, t.group = 2**31 + len(self._slices), names.index(group)
        t.offset, t.length = offset, length
        t.packing = "unpacked"
        self._slices.append(t)
        return int(t.id)

    def opcode(self, name: str, version: int) -> int:
        """The index of an operator code, added at its first use."""
        return self._opcodes.setdefault((name, version), len(self._opcodes))

    def build(
        self, *, outside: bool = False, edit: Callable[[schema.ModelT], object] | None = None
    ) -> bytes:
        """The finished file.

        Args:
            outside: put the buffers and custom options after the flatbuffer.
            edit: changes the schema's objects before they are written, for example to damage them.
        """
        t = self._table()
        if edit is not None:
            edit(t)
        if not outside:
            return self._pack(t)
        parts = [*(t for t in t.buffers if t.data is not None), *_custom_operators(t)]
        blobs = [_move_outside(part) for part in parts]
        end = len(self._pack(t))  # offsets take the same space whatever they are
        for part, blob in zip(parts, blobs, strict=True):
            end += -end % _ALIGNMENT
            _set_offset(part, end)
            end += len(blob)
        file = self._pack(t)
        for blob in blobs:
            file += bytes(-len(file) % _ALIGNMENT) + blob
        return file

    def _table(self) -> schema.ModelT:
        t = schema.ModelT()
        t.version, t.description = 3, self._description
        t.subgraphs = [s._t for s in self._subgraphs]
        t.operatorCodes = [_operator_code(name, version) for name, version in self._opcodes]
        t.buffers = [_buffer(data) for data in self._buffers]
        t.signatureDefs, t.metadata = self._signatures, self._metadata
        t.externalBufferGroups, t.externalBuffers = self._groups, self._slices
        return t

    def _pack(self, t: schema.ModelT) -> bytes:
        builder = flatbuffers.Builder(1024 + sum(map(len, self._buffers)))
        builder.Finish(t.Pack(builder), _FILE_IDENTIFIER)
        return bytes(builder.Output())


def pack_strings(array: np.ndarray) -> bytes:
    """A STRING tensor's bytes (string_util.h): count, offsets with the end, characters."""
    items = [s if isinstance(s, bytes) else str(s).encode() for s in array.ravel()]
    start = 4 * (len(items) + 2)
    offsets = start + np.cumsum([0, *map(len, items)])
    return np.array([len(items), *offsets], np.int32).tobytes() + b"".join(items)


def _tensor_map(name: str, index: int) -> schema.TensorMapT:
    t = schema.TensorMapT()
    t.name, t.tensorIndex = name, index
    return t


def _buffer(data: bytes) -> schema.BufferT:
    t = schema.BufferT()
    t.data = np.frombuffer(data, np.uint8) if data else None
    return t


def _operator_code(name: str, version: int) -> schema.OperatorCodeT:
    t = schema.OperatorCodeT()
    code = getattr(schema.BuiltinOperator, name, schema.BuiltinOperator.CUSTOM)
    t.builtinCode, t.version = code, version
    t.deprecatedBuiltinCode = min(code, _FIRST_LARGE_OPCODE)
    t.customCode = name if code == schema.BuiltinOperator.CUSTOM else None
    return t


def _stored(array: np.ndarray) -> bytes:
    """A tensor's bytes: strings serialized, 4 and 2 bit integers packed, the first one lowest."""
    if array.dtype == object:
        return pack_strings(array)
    return (pack(array) if array.dtype in BITS else np.ascontiguousarray(array)).tobytes()


def _custom_operators(model: schema.ModelT) -> list[schema.OperatorT]:
    operators = [operator for subgraph in model.subgraphs for operator in subgraph.operators]
    return [operator for operator in operators if operator.customOptions is not None]


def _move_outside(part: schema.BufferT | schema.OperatorT) -> bytes:
    """Take the bytes out of a Buffer or Operator table and leave their size."""
    blob: bytes
    if isinstance(part, schema.BufferT):
        blob, part.data, part.size = bytes(part.data), None, part.data.size
    else:
        blob, part.customOptions = bytes(part.customOptions), None
        part.largeCustomOptionsSize = len(blob)
    _set_offset(part, _OFFSET_MARK)
    return blob


def _set_offset(part: schema.BufferT | schema.OperatorT, offset: int) -> None:
    if isinstance(part, schema.BufferT):
        part.offset = offset
    else:
        part.largeCustomOptionsOffset = offset


def _quantization(q: Quantization) -> schema.QuantizationParametersT:
    t = schema.QuantizationParametersT()
    t.scale, t.zeroPoint = np.asarray(q.scale, np.float32), np.asarray(q.zero_point, np.int64)
    t.quantizedDimension, t.min, t.max = q.quantized_dimension, q.minimum, q.maximum
    if q.custom is not None:
        t.details, t.detailsType = schema.CustomQuantizationT(), 1
        t.details.custom = np.frombuffer(q.custom, np.uint8)
    elif q.blockwise is not None:
        dimensions = q.blockwise.quantized_dimensions
        t.detailsType = 3 if dimensions else 2
        t.details = (
            schema.MultiAxisQuantizationT() if dimensions else schema.BlockwiseQuantizationT()
        )
        t.details.scales, t.details.zeroPoints = q.blockwise.scales, q.blockwise.zero_points
        t.details.blockSize = q.blockwise.block_size
        if dimensions:
            t.details.quantizedDimensions = list(dimensions)
    return t


def _sparsity(s: Sparsity) -> schema.SparsityParametersT:
    t = schema.SparsityParametersT()
    t.traversalOrder, t.blockMap = list(s.traversal_order), list(s.block_map) or None
    t.dimMetadata = []
    for dimension in s.dimensions:
        level = schema.DimensionMetadataT()
        level.denseSize = dimension.dense_size
        if dimension.segments is not None:
            level.format = schema.DimensionType.SPARSE_CSR
            level.arraySegmentsType, level.arraySegments = _index_vector(dimension.segments)
            level.arrayIndicesType, level.arrayIndices = _index_vector(dimension.indices)
        t.dimMetadata.append(level)
    return t


def _index_vector(values: np.ndarray | None) -> tuple[int, Any]:
    """SparseIndexVector: the table and its type, by the array's dtype."""
    values = np.asarray(values)
    kinds = {np.uint16: (2, schema.Uint16VectorT), np.uint8: (3, schema.Uint8VectorT)}
    kind, table = kinds.get(values.dtype.type, (1, schema.Int32VectorT))
    t = table()
    t.values = values
    return kind, t


def _set_options(operator: schema.OperatorT, options: Options) -> None:
    table = type(options).__name__
    t = getattr(schema, f"{table}T")()
    for field in dataclasses.fields(options):
        head, *rest = field.name.split("_")
        value = getattr(options, field.name)
        value = list(value) if isinstance(value, tuple | bytes) else value
        setattr(t, head + "".join(part.capitalize() for part in rest), value)
    kind = getattr(schema.BuiltinOptions, table, None)
    if kind is None:
        operator.builtinOptions2 = t
        operator.builtinOptions2Type = getattr(schema.BuiltinOptions2, table)
    else:
        operator.builtinOptions, operator.builtinOptionsType = t, kind
