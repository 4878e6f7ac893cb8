"""Damage to a model's fields through the schema's objects, as an expert would do it."""

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

_NUMBERS = (0, 1, -1, 2, 3, 4, 7, 16, 127, 128, 255, 256, 4096, 2**15, 2**16, 2**20, 2**24)
_EXTREMES = (2**30, 2**31 - 1, -(2**31))
_FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e-8, 0.5, 3e38, float("inf"), float("nan"))
# The errors of packing a value that its field cannot hold, and of unpacking a damaged file.
UNPACKABLE = (TypeError, ValueError, AttributeError, OverflowError, LookupError)
_TENSOR_TYPES = range(-1, 25)
_OPERATORS = sorted(v for k, v in vars(schema.BuiltinOperator).items() if k[0] != "_")
_OPTIONS = {
    code: getattr(schema, f"{name}T")
    for name, code in vars(schema.BuiltinOptions).items()
    if name[0] != "_" and code
}
_SMALL_BUFFER = 256  # shapes, axes, paddings: their values determine what an operator allocates

Edit = Callable[
    [schema.ModelT, random.Random], str | None
]  # describes the edit; None if it was impossible


def unpacked(content: bytes) -> schema.ModelT:
    """Decode a file into the schema's objects."""
    return schema.ModelT.InitFromPackedBuf(content)


def packed(model: schema.ModelT) -> bytes:
    """Encode the schema's objects as a file."""
    builder = flatbuffers.Builder(1 << 16)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def extremes(content: bytes) -> Iterator[tuple[bytes, str]]:
    """The model with one huge option, or one huge word of a small constant."""
    for value in (2**31 - 1, 2**20, -1, 0):
        model = unpacked(content)
        for owner, field, position in _numbers(model):
            old = getattr(owner, field)
            if position is None:
                changed: Any = value
            else:
                changed = np.array(old)
                changed.view(np.int32)[position] = value
            setattr(owner, field, changed)
            with contextlib.suppress(*UNPACKABLE):
                yield packed(model), f"{type(owner).__name__}.{field}[{position}] = {value}"
            setattr(owner, field, old)


def _numbers(model: schema.ModelT) -> Iterator[tuple[Any, str, int | None]]:
    """Integers of options and of small constants: the object, its field, the entry of a vector."""
    tables = [o.builtinOptions or o.builtinOptions2 for g in model.subgraphs for o in g.operators]
    for table in tables:
        for field, value in sorted(vars(table).items()) if table is not None else ():
            if isinstance(value, int) and not isinstance(value, bool):
                yield table, field, None
            elif isinstance(value, np.ndarray) and value.dtype == np.int32:
                yield from ((table, field, i) for i in range(value.size))
    for buffer in model.buffers:
        size = 0 if buffer.data is None else len(buffer.data)
        if 4 <= size <= _SMALL_BUFFER // 4 and size % 4 == 0:
            yield from ((buffer, "data", i) for i in range(size // 4))


def edit(model: schema.ModelT, rng: random.Random) -> list[str]:
    """Change one to three fields; return a description."""
    notes: list[str] = []
    wanted = rng.choice((1, 1, 1, 2, 3))
    for _ in range(20):  # some files lack what an edit needs
        note = rng.choice(_FIELD_EDITS)(model, rng)
        if note is not None:
            notes.append(note)
        if len(notes) == wanted:
            break
    return notes


def _number(rng: random.Random, old: Any = 1) -> int:
    old = int(old)
    near = (old + 1, old - 1, 2 * old, -old, old // 2)
    return rng.choice(rng.choice((near, _NUMBERS, _NUMBERS, _EXTREMES)))


def _any(items: Any, rng: random.Random) -> tuple[int, Any]:
    """A random entry of a list and its position; (-1, None) if it is empty."""
    if items is None or len(items) == 0:
        return -1, None
    at = rng.randrange(len(items))
    return at, items[at]


def _tensor(model: schema.ModelT, rng: random.Random) -> tuple[str, Any]:
    graph_index, graph = _any(model.subgraphs, rng)
    index, tensor = _any(None if graph is None else graph.tensors, rng)
    return f"subgraphs[{graph_index}].tensors[{index}]", tensor


def _operator(model: schema.ModelT, rng: random.Random) -> tuple[str, Any, Any]:
    graph_index, graph = _any(model.subgraphs, rng)
    index, operator = _any(None if graph is None else graph.operators, rng)
    return f"subgraphs[{graph_index}].operators[{index}]", operator, graph


def _edit_vector(owner: Any, field: str, rng: random.Random) -> str:
    """Change, add or remove one entry."""
    old = getattr(owner, field)
    values = [] if old is None else [v.item() if hasattr(v, "item") else v for v in old]
    kind = rng.randrange(6)
    if kind == 0:
        values.append(_number(rng))
    elif kind == 1 and values:
        del values[rng.randrange(len(values))]
    elif kind == 2:
        rng.shuffle(values)
    elif values:
        at = rng.randrange(len(values))
        is_float = isinstance(values[at], float)
        values[at] = rng.choice(_FLOATS) if is_float else _number(rng, values[at])
    setattr(owner, field, values)
    return f"{field} = {str(values)[:80]}"


def _shape(model: schema.ModelT, rng: random.Random) -> str | None:
    where, tensor = _tensor(model, rng)
    if tensor is None:
        return None
    field = rng.choice(("shape", "shape", "shape", "shapeSignature"))
    return f"{where}.{_edit_vector(tensor, field, rng)}"


def _tensor_type(model: schema.ModelT, rng: random.Random) -> str | None:
    where, tensor = _tensor(model, rng)
    if tensor is None:
        return None
    tensor.type = rng.choice(_TENSOR_TYPES)
    return f"{where}.type = {tensor.type}"


def _tensor_flag(model: schema.ModelT, rng: random.Random) -> str | None:
    where, tensor = _tensor(model, rng)
    if tensor is None:
        return None
    field = rng.choice(("isVariable", "hasRank", "externalBuffer", "name"))
    old = getattr(tensor, field)
    new: Any = None if field == "name" else not old if isinstance(old, bool) else rng.randrange(3)
    setattr(tensor, field, new)
    return f"{where}.{field} = {new}"


def _tensor_buffer(model: schema.ModelT, rng: random.Random) -> str | None:
    where, tensor = _tensor(model, rng)
    if tensor is None:
        return None
    count = len(model.buffers or ())
    tensor.buffer = rng.choice((0, rng.randrange(count + 2), 2**31))
    return f"{where}.buffer = {tensor.buffer}"


def _buffer(model: schema.ModelT, rng: random.Random) -> str | None:
    index, buffer = _any(model.buffers, rng)
    if buffer is None:
        return None
    if rng.random() < 0.3:
        buffer.offset = rng.choice((0, 1, 2, 8, 64, 2**31, 2**63))
        buffer.size = rng.choice((0, 1, 8, 4096, 2**31, 2**63))
        return f"buffers[{index}] outside, at {buffer.offset} of {buffer.size}"
    size = 0 if buffer.data is None else len(buffer.data)
    wanted = rng.choice((0, 1, 4, max(size - 1, 0), size + 1, size // 2, 2 * size))
    old = np.zeros(0, np.uint8) if buffer.data is None else np.asarray(buffer.data, np.uint8)
    buffer.data = np.resize(old, wanted) if old.size else np.zeros(wanted, np.uint8)
    return f"buffers[{index}] has {wanted} bytes of {size}"


def _value(model: schema.ModelT, rng: random.Random) -> str | None:
    """Change a number in a small constant: a shape, an axis, a size."""
    small = [
        i
        for i, b in enumerate(model.buffers or ())
        if b.data is not None and 4 <= len(b.data) <= _SMALL_BUFFER
    ]
    if not small:
        return None
    index = rng.choice(small)
    words = np.array(model.buffers[index].data, np.uint8)
    at = rng.randrange(words.size // 4) * 4
    old = int(words[at : at + 4].view(np.int32)[0])
    new = max(-(2**31), min(_number(rng, old), 2**31 - 1))
    words[at : at + 4] = np.array([new], np.int32).view(np.uint8)
    model.buffers[index].data = words
    return f"buffers[{index}]: {old} at {at} became {new}"


def _connection(model: schema.ModelT, rng: random.Random) -> str | None:
    """Change a tensor's index, which may create a cycle, a second writer or an undefined input."""
    where, operator, graph = _operator(model, rng)
    if operator is None:
        return None
    owner, field = rng.choice(
        (
            (operator, "inputs"), (operator, "inputs"), (operator, "outputs"),
            (operator, "intermediates"), (graph, "inputs"), (graph, "outputs"),
        )
    )  # fmt: skip
    values = [] if getattr(owner, field) is None else [int(i) for i in getattr(owner, field)]
    new = rng.choice((-1, rng.randrange(len(graph.tensors or ()) + 1), rng.randrange(4)))
    if values and rng.random() < 0.7:
        values[rng.randrange(len(values))] = new
    elif values and rng.random() < 0.5:
        values.pop()
    else:
        values.append(new)
    setattr(owner, field, values)
    return f"{where if owner is operator else where.rpartition('.')[0]}.{field} = {values[:9]}"


def _order(model: schema.ModelT, rng: random.Random) -> str | None:
    where, operator, graph = _operator(model, rng)
    if operator is None or len(graph.operators) < 2:
        return None
    a, b = rng.sample(range(len(graph.operators)), 2)
    operators = graph.operators
    match rng.randrange(3):
        case 0:
            operators[a], operators[b] = operators[b], operators[a]
            return f"{where}: {a} and {b} in each other's place"
        case 1:
            del operators[a]
            return f"{where}: {a} left out"
        case _:
            operators[a].inputs, operators[b].inputs = operators[b].inputs, operators[a].inputs
            return f"{where}: {a} and {b} with each other's inputs"


def _option(model: schema.ModelT, rng: random.Random) -> str | None:
    where, operator, _graph = _operator(model, rng)
    if operator is None:
        return None
    table = operator.builtinOptions or operator.builtinOptions2
    if table is None or not vars(table):
        return None
    field = rng.choice(sorted(vars(table)))
    old = getattr(table, field)
    new: Any
    if old is None or isinstance(old, np.ndarray | list):
        return f"{where}.{_edit_vector(table, field, rng)}"
    if isinstance(old, bool):
        new = not old
    elif isinstance(old, float):
        new = rng.choice(_FLOATS)
    elif isinstance(old, int):
        new = _number(rng, old)
    else:
        new = None
    setattr(table, field, new)
    return f"{where}.{field} = {new}"


def _options_type(model: schema.ModelT, rng: random.Random) -> str | None:
    where, operator, _graph = _operator(model, rng)
    if operator is None:
        return None
    kind = rng.choice(sorted(_OPTIONS))
    match rng.randrange(3):
        case 0:
            operator.builtinOptionsType, operator.builtinOptions = kind, _OPTIONS[kind]()
        case 1:
            operator.builtinOptionsType = kind
        case _:
            operator.builtinOptionsType, operator.builtinOptions = 0, None
    return f"{where}.builtin_options_type = {operator.builtinOptionsType}"


def _custom_options(model: schema.ModelT, rng: random.Random) -> str | None:
    where, operator, _graph = _operator(model, rng)
    if operator is None or operator.customOptions is None or not len(operator.customOptions):
        return None
    data = np.array(operator.customOptions, np.uint8)
    at = rng.randrange(data.size)
    data[at] = rng.choice((0, 1, 127, 255, data[at] ^ 1))
    operator.customOptions = data[: rng.choice((data.size, data.size, at))]
    return f"{where}.custom_options: byte {at} = {data[at]}, {operator.customOptions.size} bytes"


def _operator_code(model: schema.ModelT, rng: random.Random) -> str | None:
    index, code = _any(model.operatorCodes, rng)
    if code is None:
        return None
    if rng.random() < 0.3:
        code.version = rng.choice((0, -1, 1, 2, 3, 5, 9, 100, 2**31 - 1))
        return f"operator_codes[{index}].version = {code.version}"
    code.builtinCode = rng.choice(_OPERATORS)
    code.deprecatedBuiltinCode = min(code.builtinCode, 127)
    if code.builtinCode == schema.BuiltinOperator.CUSTOM:
        code.customCode = rng.choice(("TFLite_Detection_PostProcess", "FlexAdd", "x", ""))
    return f"operator_codes[{index}].builtin_code = {code.builtinCode}"


def _quantization(model: schema.ModelT, rng: random.Random) -> str | None:
    where, tensor = _tensor(model, rng)
    if tensor is None:
        return None
    q = tensor.quantization
    if q is None or rng.random() < 0.2:
        q = tensor.quantization = schema.QuantizationParametersT()
        q.scale, q.zeroPoint = [rng.choice(_FLOATS)], [_number(rng)]
        return f"{where}.quantization = {q.scale}, {q.zeroPoint}"
    if rng.random() < 0.2:
        q.quantizedDimension = _number(rng, q.quantizedDimension)
        return f"{where}.quantized_dimension = {q.quantizedDimension}"
    if rng.random() < 0.2:
        q.detailsType = rng.randrange(4)
        return f"{where}.details_type = {q.detailsType}"
    field = rng.choice(("scale", "scale", "zeroPoint", "min", "max"))
    return f"{where}.{_edit_vector(q, field, rng)}"


def _sparsity(model: schema.ModelT, rng: random.Random) -> str | None:
    where, tensor = _tensor(model, rng)
    if tensor is None:
        return None
    s = tensor.sparsity
    if s is None:
        s = tensor.sparsity = schema.SparsityParametersT()
        s.traversalOrder, s.dimMetadata = [0], [schema.DimensionMetadataT()]
        s.dimMetadata[0].denseSize = _number(rng)
        return f"{where}.sparsity: dense, {s.dimMetadata[0].denseSize}"
    if rng.random() < 0.4:
        return f"{where}.{_edit_vector(s, rng.choice(('traversalOrder', 'blockMap')), rng)}"
    index, level = _any(s.dimMetadata, rng)
    if level is None:
        return None
    vector = rng.choice((level.arraySegments, level.arrayIndices))
    if vector is not None and rng.random() < 0.7:
        return f"{where}.dim_metadata[{index}].{_edit_vector(vector, 'values', rng)}"
    level.denseSize, level.format = _number(rng, level.denseSize), rng.randrange(3)
    return f"{where}.dim_metadata[{index}] = {level.denseSize}, format {level.format}"


def _signature(model: schema.ModelT, rng: random.Random) -> str | None:
    index, signature = _any(model.signatureDefs, rng)
    if signature is None:
        return None
    where = f"signature_defs[{index}]"
    match rng.randrange(3):
        case 0:
            signature.subgraphIndex = rng.choice((0, 1, 2, 100, 2**32 - 1))
            return f"{where}.subgraph_index = {signature.subgraphIndex}"
        case 1:
            signature.signatureKey = rng.choice((None, "", "x" * 10_000, "\0"))
            return f"{where}.signature_key = {str(signature.signatureKey)[:9]!r}"
    _at, entry = _any(rng.choice((signature.inputs, signature.outputs)), rng)
    if entry is None:
        return None
    entry.name = rng.choice((None, "", "x", entry.name))
    entry.tensorIndex = rng.choice((0, 1, 5, 2**31, 2**32 - 1))
    return f"{where}: {entry.name!r} is tensor {entry.tensorIndex}"


def _callee(model: schema.ModelT, rng: random.Random) -> str | None:
    """Change the subgraph that control flow runs."""
    found = [
        (operator.builtinOptions, field)
        for graph in model.subgraphs or ()
        for operator in graph.operators or ()
        if operator.builtinOptions is not None
        for field in vars(operator.builtinOptions)
        if field.endswith("ubgraphIndex")
    ]
    if not found:
        return None
    options, field = rng.choice(found)
    setattr(options, field, rng.choice((0, 1, 2, 3, -1, len(model.subgraphs), 2**31 - 1)))
    return f"{type(options).__name__}.{field} = {getattr(options, field)}"


_FIELD_EDITS: tuple[Edit, ...] = (
    _shape, _shape, _shape, _tensor_type, _tensor_type, _tensor_flag, _tensor_buffer, _buffer,
    _value, _value, _value, _connection, _connection, _connection, _order, _option, _option,
    _option, _options_type, _custom_options, _operator_code, _operator_code, _quantization,
    _quantization, _sparsity, _signature, _callee, _callee,
)  # fmt: skip
