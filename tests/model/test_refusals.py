import dataclasses
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from jaxdelegate.errors import ModelError
from jaxdelegate.model.records import Tensor, read_model
from jaxdelegate.op_lowering.options import (
    CallOnceOptions,
    CallOptions,
    IfOptions,
    StablehloCaseOptions,
    StableHLOCompositeOptions,
    StablehloReduceOptions,
    StablehloReduceWindowOptions,
    StablehloScatterOptions,
    StablehloSortOptions,
    StablehloWhileOptions,
    WhileOptions,
)
from jaxdelegate.op_lowering.spec import DimensionSparsity
from jaxdelegate.testing import ModelBuilder
from tests.support.sparse import BLOCKS, csr

Edit = Callable[[schema.ModelT], object]


def sum_model() -> ModelBuilder:
    """x + [1, 2, 3, 4] + [1, 2, 3, 4]: tensors x, c, y, z."""
    builder = ModelBuilder()
    x = builder.input((4,), name="x")
    c = builder.constant(np.arange(1, 5, dtype=np.float32), "c")
    y, z = builder.tensor((4,), name="y"), builder.tensor((4,), name="z")
    builder.operator("ADD", [x, c], [y])
    builder.operator("ADD", [y, c], [z])
    builder.outputs(z)
    return builder


def constant_of(array: Any, **details: Any) -> Tensor:
    """The tensor read from a file with this one constant."""
    builder = ModelBuilder()
    builder.outputs(builder.constant(array, "c", **details))
    return read_model(builder.build()).subgraphs[0].tensors[0]


def external_model(group: str = "weights.bin", offset: int = 8, length: int = 16) -> bytes:
    builder = ModelBuilder()
    x, y = builder.input((4,)), builder.tensor((4,))
    c = builder.external((4,), np.float32, builder.external_slice(group, offset, length))
    builder.operator("ADD", [x, c], [y])
    builder.outputs(y)
    return builder.build()


def on(path: str, value: Any) -> Edit:
    """Set `tensors[1].shape` of the main subgraph, or `/version` of the model."""

    def edit(t: schema.ModelT) -> None:
        at: Any = t if path[0] == "/" else t.subgraphs[0]
        *parents, last = re.findall(r"\w+", path)
        for name in parents:
            at = at[int(name)] if name.isdigit() else getattr(at, name)
        setattr(at, last, value)

    return edit


def quantized(**fields: Any) -> Edit:
    def edit(t: schema.ModelT) -> None:
        q = t.subgraphs[0].tensors[0].quantization = schema.QuantizationParametersT()
        for name, value in fields.items():
            setattr(q, name, value)

    return edit


def signed(
    key: str | None = "k", subgraph: int = 0, tensor: int = 0, name: str | None = "x"
) -> Edit:
    def edit(t: schema.ModelT) -> None:
        entry, s = schema.TensorMapT(), schema.SignatureDefT()
        entry.name, entry.tensorIndex = name, tensor
        s.signatureKey, s.subgraphIndex, s.inputs, s.outputs = key, subgraph, [entry], []
        t.signatureDefs = [s]

    return edit


def details(kind: int, table: Any, **fields: Any) -> Edit:
    for name, value in fields.items():
        setattr(table, name, value)
    return quantized(detailsType=kind, details=table)


def swapped(t: schema.ModelT) -> None:
    t.subgraphs[0].operators.reverse()


def shaped_by_its_result(t: schema.ModelT) -> None:
    code, first = t.operatorCodes[0], t.subgraphs[0].operators[0]
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.RESHAPE
    first.inputs = [0, 2]
    for operator in t.subgraphs[0].operators:
        operator.builtinOptionsType, operator.builtinOptions = 0, None


def onto_a_variable(t: schema.ModelT) -> None:
    t.subgraphs[0].tensors[2].isVariable = True
    t.subgraphs[0].operators[0].inputs = [2, 1]


MULTI, BLOCK = schema.MultiAxisQuantizationT, schema.BlockwiseQuantizationT
REFUSED: dict[str, tuple[Edit, str]] = {
    "version": (on("/version", 4), "Model.version: must be 3, got 4"),
    "no subgraphs": (
        on("/subgraphs", []),
        "Model.subgraphs: a model must have at least one, got 0",
    ),
    "operator": (
        on("/operatorCodes[0].builtinCode", 9999),
        r"OperatorCode.builtin_code at operator_codes\[0\]: .* schema, at most \d+, got 9999",
    ),
    "negative operator": (
        lambda t: [
            on("/operatorCodes[0].builtinCode", -5)(t),
            on("/operatorCodes[0].deprecatedBuiltinCode", -7)(t),
        ],
        "OperatorCode.builtin_code .* got -5",
    ),
    "custom": (
        on("/operatorCodes[0].builtinCode", 32),
        "OperatorCode.custom_code .* a custom operator must have a name, got None",
    ),
    "opcode index": (
        on("operators[1].opcodeIndex", 7),
        r"Operator.opcode_index at subgraphs\[0\].operators\[1\]: .* below 1, got 7",
    ),
    "buffer": (
        on("tensors[1].buffer", 9),
        r"Tensor.buffer at subgraphs\[0\].tensors\[1\]: must be at least 0 and below 2, got 9",
    ),
    "metadata": (
        lambda t: (
            setattr(t, "metadata", [schema.MetadataT()]) or setattr(t.metadata[0], "buffer", 5)
        ),
        r"Metadata.buffer at metadata\[0\]: .* below 2, got 5",
    ),
    "input": (on("inputs", [4]), r"SubGraph.inputs at subgraphs\[0\]: .* below 4, got 4"),
    "absent input": (on("inputs", [-1]), "SubGraph.inputs .* at least 0 and below 4, got -1"),
    "output": (on("outputs", [-2]), "SubGraph.outputs .* at least 0 and below 4, got -2"),
    "operator input": (on("operators[0].inputs", [0, 4]), "Operator.inputs .* below 4, got 4"),
    "operator input below": (on("operators[0].inputs", [-2, 0]), "at least -1 and below 4, got -2"),
    "operator output": (on("operators[0].outputs", [99]), "Operator.outputs .* below 4, got 99"),
    "intermediate": (on("operators[0].intermediates", [8]), "Operator.intermediates .* got 8"),
    "type": (on("tensors[0].type", 23), "Tensor.type .* at most 22, got 23"),
    "negative shape": (
        on("tensors[0].shape", [2, -1]),
        r"Tensor.shape at .*tensors\[0\]: dimensions must not be negative, got \[2, -1\]",
    ),
    "overflow": (on("tensors[2].shape", [2**31 - 1] * 3), r"below 2\*\*63"),
    "overflow with zero": (on("tensors[2].shape", [0, 2**31 - 1, 2**31 - 1, 4]), r"below 2\*\*63"),
    "rank": (on("tensors[2].shape", [1] * 65), "at most 64 dimensions, got 65"),
    "signature rank": (
        on("tensors[0].shapeSignature", [-1, 4]),
        "must have 1 dimensions like shape",
    ),
    "signature value": (on("tensors[0].shapeSignature", [-2]), "each at least -1"),
    "short constant": (
        on("tensors[1].shape", [5]),
        r"Tensor.buffer at .*tensors\[1\]: 5 values of FLOAT32 need 20 bytes, got 16",
    ),
    "wide constant": (on("tensors[1].type", 10), "4 values of FLOAT64 need 32 bytes, got 16"),
    "no string": (on("tensors[1].type", 5), "Tensor.buffer .* has 4 strings, got 1065353216"),
    "variable": (on("tensors[1].isVariable", True), "Tensor.is_variable .* must not hold data"),
    "input with data": (
        on("inputs", [0, 1]),
        "SubGraph.inputs .* must not hold data, tensor, got 1",
    ),
    "external": (
        on("tensors[0].externalBuffer", 3),
        "Tensor.external_buffer .* must be the id of an external buffer, got 3",
    ),
    "never written": (
        on("tensors[1].buffer", 0),
        r"Operator.inputs at subgraphs\[0\].operators\[0\]: must hold data, or be .* got 1",
    ),
    "order": (swapped, r"operators\[1\], which writes the tensor, must come first, got 2"),
    "own output": (on("operators[0].inputs", [2, 1]), r"operators\[0\], which writes the tensor"),
    "own output as a shape": (shaped_by_its_result, "among the operator's own inputs, .* got 2"),
    "own variable": (onto_a_variable, "among the operator's own inputs, tensor, got 2"),
    "output without a writer": (
        on("operators", []),
        "SubGraph.outputs .* must be written by an operator, or hold data, got 3",
    ),
    "written twice": (
        on("operators[1].outputs", [2]),
        r"operators\[1\]: a tensor must have one writer, operators\[0\] also writes, got 2",
    ),
    "written input": (on("operators[1].outputs", [0]), "must not be an input or hold data.* got 0"),
    "written constant": (
        on("operators[1].outputs", [1]),
        "must not be an input or hold data.* got 1",
    ),
    "options table": (
        on("operators[0].builtinOptionsType", 200),
        "Operator.builtin_options_type .* an options table of the schema, at most 126, got 200",
    ),
    "activation": (
        on("operators[0].builtinOptions.fusedActivationFunction", 77),
        r"AddOptions at subgraphs\[0\].operators\[0\] \(ADD\): must be readable, got 77 is not",
    ),
    "scales": (
        quantized(scale=[1.0, 2.0], zeroPoint=[0]),
        r"QuantizationParameters.zero_point at .*tensors\[0\].quantization: .* 2 scales",
    ),
    "no zero points": (quantized(scale=[1.0]), "zero_point .* each of the 1 scales, got 0"),
    "axis": (
        quantized(scale=[1.0], zeroPoint=[0], quantizedDimension=1),
        r"quantized_dimension .* dimension of the shape \[4\], got 1",
    ),
    "scales of a custom one": (
        quantized(scale=[1.0], detailsType=1, details=schema.CustomQuantizationT()),
        "zero_point .* each of the 1 scales, got 0",
    ),
    "negative axis": (
        quantized(scale=[1.0], zeroPoint=[0], quantizedDimension=-1),
        "quantized_dimension .* got -1",
    ),
    "channels": (
        quantized(scale=[1.0] * 3, zeroPoint=[0] * 3),
        "QuantizationParameters.scale .* 1 entry, or 4 as the shape .* got 3",
    ),
    "details": (quantized(detailsType=9), "details_type .* got 9"),
    "no details": (quantized(detailsType=2), "details .* since the type is BlockwiseQuantization"),
    "block scales": (
        details(2, BLOCK(), scales=7, zeroPoints=-1),
        "BlockwiseQuantization.scales .* 7",
    ),
    "block zeros": (
        details(2, BLOCK(), scales=1, zeroPoints=-2),
        "zero_points .* at least -1 .* -2",
    ),
    "block size": (details(2, BLOCK(), blockSize=-1), "block_size .* not be negative, got -1"),
    "no axes": (details(3, MULTI()), "quantized_dimensions .* at least one"),
    "axes": (
        details(3, MULTI(), quantizedDimensions=[1]),
        r"a dimension of the shape \[4\], got 1",
    ),
    "signature graph": (
        signed(subgraph=1),
        r"SignatureDef.subgraph_index at signature_defs\[0\]: .* below 1, got 1",
    ),
    "signature tensor": (
        signed(tensor=4),
        r"TensorMap.tensor_index at signature_defs\[0\].inputs\[0\]: .* below 4, got 4",
    ),
    "signature key": (signed(key=None), "SignatureDef.signature_key .* must be present, got None"),
    "signature name": (signed(name=None), "TensorMap.name .* must be present, got None"),
}


@pytest.mark.parametrize(("edit", "message"), REFUSED.values(), ids=REFUSED)
def test_a_damaged_file_is_refused_with_the_position(edit: Edit, message: str) -> None:
    content = sum_model().build(edit=edit)
    with pytest.raises(ModelError, match=message) as caught:
        read_model(content)
    assert str(caught.value).startswith("<bytes>: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "file: a TFLite model has a header of 8 bytes, got 0 bytes"),
        (b"\x10\0\0\0TFL", "header of 8 bytes, got 7 bytes"),
        (b"\x10\0\0\0TFL2" + bytes(40), r"bytes 4 to 8 of a TFLite model are b'TFL3', got b'TFL2'"),
        (b"\xff\xff\xff\xffTFL3", "Model: must start within the file's 8 bytes, got 4294967295"),
        (b"\x04\0\0\0TFL3", r"Model: its vtable must start within the file, got -\d+"),
        (b"\x08\0\0\0TFL3\xfc\xff\xff\xff\4\0\4\0", "Model.version: must be 3, got 0"),
        (
            b"\x08\0\0\0TFL3\xfc\xff\xff\xff\5\0\4\0",
            "its vtable's size must be even, at least 4 .* got 5",
        ),
        (b"\x08\0\0\0TFL3\xfc\xff\xff\xff\x10\0\4\0", "within the file, got 16"),
        (b"\x08\0\0\0TFL3\x04\0\0\0", "its vtable's size"),
    ],
)
def test_files_that_are_not_models(content: bytes, message: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "m.tflite").write_bytes(content)
    for source, name in ((content, "<bytes>"), (tmp_path / "m.tflite", str(tmp_path / "m.tflite"))):
        with pytest.raises(ModelError, match=message) as caught:
            read_model(source)
        assert str(caught.value).startswith(name)


def test_a_string_without_a_terminator_is_refused() -> None:
    content = sum_model().build().replace(b"main\0", b"main!")
    with pytest.raises(
        ModelError, match=r"SubGraph.name at subgraphs\[0\]: .* a zero byte, got 33"
    ):
        read_model(content)


def test_what_cannot_be_opened(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ModelError, match=r"Could not open .no/such.tflite.: No such file"):
        read_model("no/such.tflite")
    with pytest.raises(ValueError, match=r"Could not open .+: it is a folder; name the .tflite"):
        read_model(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelError, match="not a regular file"):
        read_model(tmp_path / "pipe")
    with pytest.raises(ModelError, match=r"Could not open 'a\\x00b': .*embedded null"):
        read_model("a\0b")
    with pytest.raises(ModelError, match="memory must be contiguous"):
        read_model(memoryview(bytes(64))[::2])
    with pytest.raises(TypeError, match="int"):
        read_model(3)  # type: ignore[arg-type]


def rows(segments: list[int], indices: list[int]) -> dict[str, Any]:
    level = DimensionSparsity(0, np.array(segments, np.int32), np.array(indices, np.int32))
    return {"dimensions": (DimensionSparsity(4), level)}


BLOCKED = {"traversal_order": (0, 1, 2), "dimensions": BLOCKS.dimensions}
ROWS = csr(np.int32).dimensions[1]
BAD_SPARSITIES: dict[str, tuple[dict[str, Any], str]] = {
    "order": ({"traversal_order": (0, 0)}, "SparsityParameters.traversal_order at .* got .0, 0."),
    "short order": ({"traversal_order": (0,)}, "traversal_order"),
    "no order": ({"traversal_order": ()}, "traversal_order"),
    "levels": ({"dimensions": (DimensionSparsity(4),)}, "dim_metadata .* 2 entries"),
    "dense size": (
        {"dimensions": (DimensionSparsity(3), ROWS)},
        r"DimensionMetadata.dense_size at .*dim_metadata\[0\]: must be 4, .* got 3",
    ),
    "segments": (rows([0, 1], [0]), "array_segments .* ascend from 0 in 5 entries, got 2"),
    "descending": (rows([0, 3, 1, 3, 3], [0, 0, 0]), "array_segments .* ascend"),
    "start": (rows([1, 1, 1, 3, 3], [0, 0, 0]), "array_segments .* ascend from 0"),
    "count": (rows([0, 1, 1, 3, 3], [0, 0]), "array_indices .* must have 3 entries, got 2"),
    "index": (rows([0, 1, 1, 3, 3], [0, 4, 1]), "array_indices .* below 4, got 0 to 4"),
    "negative": (rows([0, 1, 1, 3, 3], [0, -1, 1]), "array_indices .* below 4, got -1 to 1"),
    "no block map": (BLOCKED, "block_map .* 1 entries"),
    "block map": ({**BLOCKED, "block_map": (2,)}, "block_map .* below 2, got 2"),
    "block size": (
        {
            **BLOCKED,
            "block_map": (0,),
            "dimensions": (*BLOCKS.dimensions[:2], DimensionSparsity(3)),
        },
        "a block's dense_size must divide 4, .* got 3",
    ),
    "values": (
        {"dimensions": (DimensionSparsity(4), DimensionSparsity(4))},
        "16 values of FLOAT32",
    ),
}


@pytest.mark.parametrize(("changes", "message"), BAD_SPARSITIES.values(), ids=BAD_SPARSITIES)
def test_invalid_sparsity_is_refused(changes: dict[str, Any], message: str) -> None:
    sparsity = dataclasses.replace(csr(np.int32), **changes)
    with pytest.raises(ModelError, match=message):
        constant_of(np.zeros(3, np.float32), shape=(4, 4), sparsity=sparsity)


def strings(*numbers: int, size: int = 40) -> Edit:
    data = np.zeros(size, np.uint8)
    data[: 4 * len(numbers)] = np.array(numbers, np.int32).view(np.uint8)
    return lambda t: setattr(t.buffers[1], "data", data)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (strings(size=3), "starts with 4 bytes, the number of strings, got 3 bytes"),
        (strings(3), "has 2 strings, got 3"),
        (strings(-1), "has 2 strings, got -1"),
        (strings(2, size=12), "2 strings need 16 bytes before their characters, got 12"),
        (strings(2, 15, 20, 20), "ascend from 16 to 40, got 15"),
        (strings(2, 16, 30, 20), "ascend from 16 to 40, got 20"),
        (strings(2, 16, 20, 41), "ascend from 16 to 40, got 40"),
        (strings(2, 16, -4, 20), "ascend from 16 to 40, got -4"),
    ],
)
def test_damaged_strings_are_refused(edit: Edit, message: str) -> None:
    builder = ModelBuilder()
    builder.outputs(builder.constant(np.array([b"ab", b"c"], object)))
    with pytest.raises(ModelError, match=message):
        read_model(builder.build(edit=edit))


def calling(name: str, options: Any, subgraphs: int = 2) -> bytes:
    builder = ModelBuilder()
    y = builder.tensor((1,))
    builder.operator(name, [builder.input((1,))], [y], options)
    builder.outputs(y)
    for i in range(1, subgraphs):
        builder.subgraph(f"s{i}")
    return builder.build()


CALLS: dict[str, Any] = {
    "CALL": CallOptions(9),
    "CALL_ONCE": CallOnceOptions(9),
    "IF": IfOptions(1, 9),
    "WHILE": WhileOptions(9, 1),
    "STABLEHLO_REDUCE": StablehloReduceOptions(body_subgraph_index=9),
    "STABLEHLO_REDUCE_WINDOW": StablehloReduceWindowOptions(body_subgraph_index=9),
    "STABLEHLO_SORT": StablehloSortOptions(comparator_subgraph_index=9),
    "STABLEHLO_SCATTER": StablehloScatterOptions(update_computation_subgraph_index=9),
    "STABLEHLO_WHILE": StablehloWhileOptions(1, 9),
    "STABLEHLO_CASE": StablehloCaseOptions((1, 1, 9)),
    "STABLEHLO_COMPOSITE": StableHLOCompositeOptions(decomposition_subgraph_index=9),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_missing_subgraph_is_refused(name: str) -> None:
    message = rf"Options\.\w*subgraph\w* at .*operators\[0\] \({name}\): .* below 2, got 9"
    with pytest.raises(ModelError, match=message):
        read_model(calling(name, CALLS[name]))


def test_a_negative_subgraph_is_refused() -> None:
    with pytest.raises(ModelError, match="got -1"):
        read_model(calling("WHILE", WhileOptions(1, -1)))


def test_a_subgraph_that_calls_itself_is_refused() -> None:
    with pytest.raises(
        ModelError, match=r"SubGraph.operators at subgraphs\[0\]: a subgraph must not call"
    ):
        read_model(calling("WHILE", WhileOptions(1, 0)))


def chain(length: int, last: int | None) -> bytes:
    """Subgraph i calls subgraph i + 1; the last one calls `last`."""
    builder = ModelBuilder()
    graphs = [builder, *(builder.subgraph(f"s{i}") for i in range(1, length))]
    for i, graph in enumerate(graphs):
        callee = i + 1 if i + 1 < length else last
        if callee is not None:
            graph.operator("CALL", [graph.input((1,))], [graph.tensor((1,))], CallOptions(callee))
    return builder.build()


def test_calls_in_cycles_or_nested_too_deep_are_refused() -> None:
    assert len(read_model(chain(64, None)).subgraphs) == 64
    with pytest.raises(ModelError, match="call itself, got 2 -> 3 -> 4 -> 2"):
        read_model(chain(5, 2))
    with pytest.raises(ModelError, match="more than 64 levels deep, got 65"):
        read_model(chain(65, None))
    with pytest.raises(ModelError, match="call itself, got 0 -> 1"):
        read_model(chain(3000, 0))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (external_model("absent.bin"), r"Could not open '.*absent.bin': No such file"),
        (external_model(length=17), "ExternalBuffer.length .* within the 24 bytes .* got 25"),
        (external_model(length=15), "Tensor.buffer .* need 16 bytes, got 15"),
        (
            external_model(offset=2**63, length=2**63),
            "ExternalBuffer.length .* got 18446744073709551616",
        ),
    ],
    ids=["absent", "long", "short", "overflow"],
)
def test_bad_external_buffers(content: bytes, message: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "m.tflite").write_bytes(content)
    (tmp_path / "weights.bin").write_bytes(bytes(24))
    with pytest.raises(ModelError, match=message):
        read_model(tmp_path / "m.tflite")


def test_external_buffers_need_a_path() -> None:
    with pytest.raises(ModelError, match=r"read it from its path, got .weights.bin."):
        read_model(external_model())


def test_the_array_of_c_source_is_loaded_as_the_message_says() -> None:
    builder = ModelBuilder()
    builder.outputs(builder.input((1,)))
    content = builder.build()
    numbers = ", ".join(map(hex, content))
    text = f"alignas(8) const unsigned char model_tflite[] = {{\n{numbers}}};\n"
    with pytest.raises(ModelError) as caught:
        read_model(text.encode())
    expression = str(caught.value).partition("or load ")[2]
    loaded = eval(expression, {"re": re, "text": text})
    assert read_model(loaded).content == content
