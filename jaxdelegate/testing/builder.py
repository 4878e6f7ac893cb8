"""A small writer of .tflite files, through the official schema. For tests, examples and the demo."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from jaxdelegate.op_lowering.dtypes import TENSOR_TYPES
from jaxdelegate.op_lowering.options import CustomOptions, NoOptions, Options, default_options
from jaxdelegate.quant.params import Quantization

_FIRST_LARGE_OPCODE = schema.BuiltinOperator.PLACEHOLDER_FOR_GREATER_OP_CODES
_FILE_IDENTIFIER = b"TFL3"


class SubgraphBuilder:
    """Tensors and operators of one subgraph. Tensors are named by their index, as in the file."""

    def __init__(self, model: "ModelBuilder", name: str) -> None:
        """Begin a subgraph of `model`."""
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
        is_variable: bool = False,
        shape_signature: Sequence[int] | None = None,
    ) -> int:
        """Add a tensor without data: an intermediate, an output or a variable."""
        t = schema.TensorT()
        t.shape, t.type, t.buffer = list(shape), int(TENSOR_TYPES[np.dtype(dtype)]), 0
        t.name = name or f"t{len(self._t.tensors)}"
        t.isVariable, t.hasRank = is_variable, True
        t.shapeSignature = None if shape_signature is None else list(shape_signature)
        t.quantization = None if quantization is None else _quantization(quantization)
        self._t.tensors.append(t)
        return len(self._t.tensors) - 1

    def input(
        self, shape: Sequence[int], dtype: Any = np.float32, name: str | None = None, **details: Any
    ) -> int:
        """Add a tensor and make it the subgraph's next input."""
        index = self.tensor(shape, dtype, name, **details)
        self._t.inputs.append(index)
        return index

    def constant(self, array: Any, name: str | None = None, **details: Any) -> int:
        """Add a tensor with data; object arrays become STRING tensors."""
        array = np.asarray(array)
        index = self.tensor(array.shape, array.dtype, name, **details)
        data = (
            pack_strings(array) if array.dtype == object else np.ascontiguousarray(array).tobytes()
        )
        self._t.tensors[index].buffer = self._model.buffer(data)
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
    ) -> None:
        """Add an operator; `name` is a BuiltinOperator's, or else a custom operator's. None: an absent input."""
        t = schema.OperatorT()
        t.opcodeIndex = self._model.opcode(name, version)
        t.inputs = [-1 if i is None else i for i in inputs]
        t.outputs, t.intermediates = list(outputs), list(intermediates)
        options = default_options(name) if options is None else options
        if isinstance(options, CustomOptions):
            t.customOptions = np.frombuffer(options.data, np.uint8)
        elif not isinstance(options, NoOptions):
            _set_options(t, options)
        self._t.operators.append(t)

    def outputs(self, *tensors: int) -> None:
        """Say which tensors leave the subgraph."""
        self._t.outputs = list(tensors)


class ModelBuilder(SubgraphBuilder):
    """A model whose main subgraph is built on this object; more subgraphs come from `subgraph()`."""

    def __init__(self, description: str = "jaxdelegate.testing") -> None:
        """Begin an empty model."""
        self._buffers: list[bytes] = [b""]  # buffer 0 is empty by convention: "no data"
        self._opcodes: dict[tuple[str, int], int] = {}
        self._signatures: list[schema.SignatureDefT] = []
        self._description = description
        super().__init__(self, "main")
        self._subgraphs: list[SubgraphBuilder] = [self]

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

    def opcode(self, name: str, version: int) -> int:
        """The index of an operator code, added at its first use."""
        return self._opcodes.setdefault((name, version), len(self._opcodes))

    def build(self) -> bytes:
        """The finished file."""
        t = schema.ModelT()
        t.version, t.description = 3, self._description
        t.subgraphs = [s._t for s in self._subgraphs]
        t.operatorCodes = [_operator_code(name, version) for name, version in self._opcodes]
        t.buffers = [_buffer(data) for data in self._buffers]
        t.signatureDefs, t.metadata = self._signatures, []
        builder = flatbuffers.Builder(1024 + sum(map(len, self._buffers)))
        builder.Finish(t.Pack(builder), _FILE_IDENTIFIER)
        return bytes(builder.Output())


def pack_strings(array: np.ndarray) -> bytes:
    """The serialized form of a STRING tensor (string_util.h): count, offsets with the end, characters."""
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
    t.builtinCode, t.deprecatedBuiltinCode, t.version = (
        code,
        min(code, _FIRST_LARGE_OPCODE),
        version,
    )
    t.customCode = name if code == schema.BuiltinOperator.CUSTOM else None
    return t


def _quantization(q: Quantization) -> schema.QuantizationParametersT:
    t = schema.QuantizationParametersT()
    t.scale, t.zeroPoint = np.asarray(q.scale, np.float32), np.asarray(q.zero_point, np.int64)
    t.quantizedDimension = q.quantized_dimension
    return t


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
        operator.builtinOptions2, operator.builtinOptions2Type = (
            t,
            getattr(schema.BuiltinOptions2, table),
        )
    else:
        operator.builtinOptions, operator.builtinOptionsType = t, kind
