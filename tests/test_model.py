import dataclasses
import mmap
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from jaxdelegate.errors import ModelError
from jaxdelegate.model import Model, Tensor, VariantType, read_model
from jaxdelegate.op_lowering.dtypes import TENSOR_TYPES
from jaxdelegate.op_lowering.options import (
    CallOnceOptions,
    CallOptions,
    CustomOptions,
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
from jaxdelegate.op_lowering.options.enums import TensorType
from jaxdelegate.op_lowering.spec import DimensionSparsity, Sparsity
from jaxdelegate.quant.params import Blockwise, Quantization
from jaxdelegate.testing import ModelBuilder

SHARED = pathlib.Path(__file__).parents[1].parent / "shared"


def sum_model(**details: Any) -> ModelBuilder:
    """x + [1, 2, 3, 4] + [1, 2, 3, 4]: tensors x, c, y, z; `details` are the constant's."""
    builder = ModelBuilder()
    x = builder.input((4,), name="x")
    c = builder.constant(np.arange(1, 5, dtype=np.float32), "c", **details)
    y, z = builder.tensor((4,), name="y"), builder.tensor((4,), name="z")
    builder.operator("ADD", [x, c], [y])
    builder.operator("ADD", [y, c], [z])
    builder.outputs(z)
    return builder


def constant_of(array: Any, **details: Any) -> Tensor:
    """The tensor that a file with this one constant gives back."""
    builder = ModelBuilder()
    builder.outputs(builder.constant(array, "c", **details))
    return read_model(builder.build()).subgraphs[0].tensors[0]


def test_a_model_is_read_as_it_was_written() -> None:
    builder = sum_model()
    builder.signature("serve", {"in": 0}, {"out": 3})
    builder.metadata("min_runtime_version", b"2.3.0")
    model = read_model(builder.build())
    (graph,) = model.subgraphs
    assert (model.source, model.version, model.description) == ("<bytes>", 3, "jaxdelegate.testing")
    assert (graph.index, graph.name, graph.inputs, graph.outputs) == (0, "main", (0,), (3,))
    assert [t.name for t in graph.tensors] == ["x", "c", "y", "z"]
    assert [(op.index, op.name, op.version, op.inputs, op.outputs) for op in graph.operators] == [
        (0, "ADD", 1, (0, 1), (2,)),
        (1, "ADD", 1, (2, 1), (3,)),
    ]
    (signature,) = model.signatures
    assert (signature.key, signature.subgraph) == ("serve", 0)
    assert (dict(signature.inputs), dict(signature.outputs)) == ({"in": 0}, {"out": 3})
    assert {k: bytes(v) for k, v in model.metadata.items()} == {"min_runtime_version": b"2.3.0"}
    assert bytes(model.content) == builder.build()
    assert model.nbytes == len(builder.build())


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview], ids=lambda f: f.__name__)
def test_bytes_of_any_kind_are_read(form: Callable[[bytes], Any]) -> None:
    content = sum_model().build()
    assert read_model(form(content)).subgraphs[0].tensors[1].data.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("form", [str, pathlib.Path, os.fsencode], ids=["str", "Path", "bytes"])
def test_a_path_is_read(form: Callable[[Any], Any], tmp_path: pathlib.Path) -> None:
    path = tmp_path / "größe.tflite"
    path.write_bytes(sum_model().build())
    if form is os.fsencode:  # bytes are content: a bytes path comes as a PathLike
        model = read_model(type("P", (), {"__fspath__": lambda _: os.fsencode(path)})())
    else:
        model = read_model(form(path))
    assert model.source == str(path)


def bases(array: np.ndarray) -> list[Any]:
    found: list[Any] = [array]
    while getattr(found[-1], "base", None) is not None:
        found.append(found[-1].base)
    return [getattr(owner, "obj", owner) for owner in found]


def test_a_file_is_mapped_and_not_copied(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(sum_model().build())
    model = read_model(path)
    data = model.subgraphs[0].tensors[1].data
    assert np.shares_memory(data, np.frombuffer(model.content, np.uint8))
    assert isinstance(bases(data)[-1], mmap.mmap)
    assert not data.flags.writeable
    del model
    assert data.tolist() == [1, 2, 3, 4]  # the array keeps the map alive


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux's accounting")
def test_a_large_file_takes_no_memory_of_its_own(tmp_path: pathlib.Path) -> None:
    def anonymous() -> int:
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])

    path = tmp_path / "m.tflite"
    builder = ModelBuilder()
    builder.outputs(builder.constant(np.zeros(1 << 23, np.float32), "c"))
    path.write_bytes(builder.build())
    del builder
    before = anonymous()
    model = read_model(path)
    assert model.subgraphs[0].tensors[0].spec().const.shape == (1 << 23,)
    assert anonymous() - before < 1 << 22


NUMBERS = [d for d, t in TENSOR_TYPES.items() if t.name not in ("STRING", "RESOURCE", "VARIANT")]


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 0)], ids=str)
def test_constants_of_every_type(dtype: np.dtype, shape: tuple[int, ...]) -> None:
    values = (
        np.arange(np.prod(shape, dtype=int)) % 4 - (dtype.name.startswith(("i", "f")) * 2)
    ).reshape(shape)
    tensor = constant_of(np.asarray(values).astype(dtype))
    assert (tensor.type, tensor.dtype, tensor.shape) == (TENSOR_TYPES[dtype], dtype, shape)
    np.testing.assert_array_equal(tensor.data, np.asarray(values).astype(dtype))
    assert tensor.data.dtype == dtype
    assert not tensor.data.flags.writeable
    assert tensor.spec().const is tensor.data


@pytest.mark.parametrize(
    ("dtype", "low", "high", "size"),
    [(ml_dtypes.int4, -8, 7, 3), (ml_dtypes.uint4, 0, 15, 3), (ml_dtypes.int2, -2, 1, 2)],
    ids=["int4", "uint4", "int2"],
)
def test_small_integers_are_packed_lowest_bits_first(
    dtype: Any, low: int, high: int, size: int
) -> None:
    tensor = constant_of(np.array([low, high, 1, 0, high], dtype))
    assert tensor.stored.size == size
    assert tensor.data.astype(int).tolist() == [low, high, 1, 0, high]
    bits = 8 * size // 5 & 6
    assert tensor.stored[0] & ((1 << bits) - 1) == low & ((1 << bits) - 1)


STRINGS = np.array([[b"", b"abc"], ["Straße".encode(), b"\xff\x00"]], object)


def test_strings_are_objects_of_bytes() -> None:
    tensor = constant_of(STRINGS)
    assert tensor.type is TensorType.STRING
    assert tensor.data.tolist() == STRINGS.tolist()
    assert constant_of(np.array(b"one", object)).data.tolist() == b"one"
    assert constant_of(np.empty((0, 3), object)).data.shape == (0, 3)


def test_booleans_are_what_is_not_zero() -> None:
    builder = ModelBuilder()
    builder.outputs(builder.constant(np.array([True, False, True])))

    def odd(t: schema.ModelT) -> None:
        t.buffers[1].data = np.array([2, 0, 255], np.uint8)

    assert read_model(builder.build(edit=odd)).subgraphs[0].tensors[0].data.view(
        np.uint8
    ).tolist() == [1, 0, 1]


def test_more_bytes_than_the_shape_needs_are_left_alone() -> None:
    def longer(t: schema.ModelT) -> None:
        t.buffers[1].data = np.arange(1, 6, dtype=np.float32).view(np.uint8)

    tensor = read_model(sum_model().build(edit=longer)).subgraphs[0].tensors[1]
    assert tensor.data.tolist() == [1, 2, 3, 4]  # as stock LiteRT reads them


FLOATS = np.array([0.5, 0.25], np.float32)
QUANTIZATIONS = {
    "per tensor": Quantization(FLOATS[:1], np.array([3])),
    "per axis": Quantization(FLOATS, np.array([3, -4]), 1),
    "range only": Quantization(
        np.empty(0, np.float32), np.empty(0, np.int64), 0, FLOATS[:1], FLOATS[1:]
    ),
    "blockwise": Quantization(FLOATS[:0], np.empty(0, np.int64), 1, blockwise=Blockwise(1, -1, 32)),
    "multi axis": Quantization(
        FLOATS[:0], np.empty(0, np.int64), blockwise=Blockwise(1, 2, 0, (0, 1))
    ),
    "custom": Quantization(FLOATS[:0], np.empty(0, np.int64), custom=b"\x01\x02"),
}


@pytest.mark.parametrize("want", QUANTIZATIONS.values(), ids=QUANTIZATIONS)
def test_quantization_details(want: Quantization) -> None:
    builder = ModelBuilder()
    y = builder.constant(np.zeros((3, 2), np.int8), quantization=want)
    builder.constant(FLOATS)
    builder.constant(np.zeros(2, np.int64))
    builder.outputs(y)
    got = read_model(builder.build()).subgraphs[0].tensors[0].quantization
    for field in dataclasses.fields(Quantization):
        a, b = getattr(got, field.name), getattr(want, field.name)
        assert (a is None) == (b is None)
        if isinstance(b, np.ndarray):
            np.testing.assert_array_equal(a, b)
        else:
            assert a == b


def test_a_quantization_table_that_says_nothing_is_none() -> None:
    def nothing(t: schema.ModelT) -> None:
        t.subgraphs[0].tensors[0].quantization = schema.QuantizationParametersT()

    assert read_model(sum_model().build(edit=nothing)).subgraphs[0].tensors[0].quantization is None


def csr(index_type: Any) -> Sparsity:
    """[4, 4] in CSR rows: three values, in the rows 0, 2 and 2."""
    rows = DimensionSparsity(
        0, np.array([0, 1, 1, 3, 3], index_type), np.array([2, 0, 3], index_type)
    )
    return Sparsity((0, 1), (), (DimensionSparsity(4), rows))


BLOCKS = Sparsity(  # [4, 4] in blocks of 2 x 1: one block column in each block row
    (0, 1, 2),
    (0,),
    (
        DimensionSparsity(2),
        DimensionSparsity(0, np.array([0, 1, 2], np.int32), np.array([3, 1], np.int32)),
        DimensionSparsity(2),
    ),
)


@pytest.mark.parametrize(
    ("want", "count"),
    [(csr(np.int32), 3), (csr(np.uint16), 3), (csr(np.uint8), 3), (BLOCKS, 4)],
    ids=["int32", "uint16", "uint8", "blocks"],
)
def test_a_sparse_tensor_keeps_its_stored_values(want: Sparsity, count: int) -> None:
    values = np.arange(count, dtype=np.float32)
    tensor = constant_of(values, shape=(4, 4), sparsity=want)
    assert tensor.shape == (4, 4)
    np.testing.assert_array_equal(tensor.data, values)
    got = tensor.sparsity
    assert (got.traversal_order, got.block_map) == (want.traversal_order, want.block_map)
    for g, w in zip(got.dimensions, want.dimensions, strict=True):
        assert g.dense_size == w.dense_size
        assert (g.segments is None) == (w.segments is None)
        if w.segments is not None:
            np.testing.assert_array_equal(g.segments, w.segments)
            np.testing.assert_array_equal(g.indices, w.indices)
            assert g.indices.dtype == np.int32


def test_an_operator_s_details() -> None:
    builder = ModelBuilder()
    x, state = builder.input((1, 2)), builder.tensor((1, 2), is_variable=True)
    inner, y = builder.tensor((0,), np.int8), builder.tensor((1, 2))
    builder.operator(
        "SVDF",
        [x, None, state],
        [y],
        version=3,
        intermediates=[inner],
        mutating=[False, False, True],
    )
    builder.operator("my.op", [y], [z := builder.tensor((1, 2))], CustomOptions(b"\x05"), version=2)
    builder.outputs(z)
    graph = read_model(builder.build()).subgraphs[0]
    svdf, custom = graph.operators
    assert (svdf.inputs, svdf.intermediates, svdf.version) == ((0, -1, 1), (2,), 3)
    assert svdf.mutating_variable_inputs == (False, False, True)
    assert graph.tensors[1].is_variable
    assert graph.tensors[1].spec().is_variable
    assert (custom.name, custom.custom, custom.custom_options) == ("my.op", True, b"\x05")
    assert custom.version == 2
    assert svdf.custom_options == b""


def test_both_opcode_fields_count() -> None:
    builder = ModelBuilder()
    x, y, z = builder.input((2,)), builder.tensor((2,)), builder.tensor((2,))
    builder.operator("STABLEHLO_ADD", [x, x], [y])
    builder.operator("ADD", [y, y], [z])
    builder.outputs(z)

    def old(t: schema.ModelT) -> None:
        t.operatorCodes[1].builtinCode = 0  # files from before the second field

    names = [op.name for op in read_model(builder.build(edit=old)).subgraphs[0].operators]
    assert names == ["STABLEHLO_ADD", "ADD"]


def test_shapes_that_are_not_known() -> None:
    builder = ModelBuilder()
    x = builder.input((1, 3), shape_signature=(-1, 3))
    v = builder.input((), name="v")
    builder.outputs(x, v)

    def details(t: schema.ModelT) -> None:
        sub = schema.VariantSubTypeT()
        sub.shape, sub.type, sub.hasRank = [2, 3], schema.TensorType.INT8, True
        t.subgraphs[0].tensors[1].type = schema.TensorType.VARIANT
        t.subgraphs[0].tensors[1].variantTensors = [sub]
        t.subgraphs[0].tensors[1].hasRank = False

    x_read, v_read = read_model(builder.build(edit=details)).subgraphs[0].tensors
    assert (x_read.shape, x_read.shape_signature, x_read.has_rank) == ((1, 3), (-1, 3), True)
    assert (v_read.shape_signature, v_read.has_rank) == (None, False)
    assert v_read.variant_types == (VariantType((2, 3), TensorType.INT8, has_rank=True),)


def test_names_that_are_not_utf_8_are_read_with_marks() -> None:
    content = (
        sum_model()
        .build()
        .replace(b"main", b"m\xe4in")
        .replace(b"jaxdelegate.t", b"jaxdele\xffate.t")
    )
    model = read_model(content)
    assert model.subgraphs[0].name == "m�in"
    assert model.description == "jaxdele�ate.testing"


def test_buffers_and_custom_options_behind_the_flatbuffer() -> None:
    builder = sum_model()
    builder.metadata("note", b"text")
    y = builder.tensor((4,))
    builder.operator("my.op", [3], [y], CustomOptions(b"\x01\x02\x03"))
    builder.outputs(y)
    inside, outside = read_model(builder.build()), read_model(builder.build(outside=True))
    for model in (inside, outside):
        assert model.subgraphs[0].tensors[1].data.tolist() == [1, 2, 3, 4]
        assert model.subgraphs[0].operators[2].custom_options == b"\x01\x02\x03"
        assert bytes(model.metadata["note"]) == b"text"
    data = outside.subgraphs[0].tensors[1].data
    assert np.shares_memory(data, np.frombuffer(outside.content, np.uint8))


def external_model(group: str = "weights.bin", offset: int = 8, length: int = 16) -> bytes:
    builder = ModelBuilder()
    x, y = builder.input((4,)), builder.tensor((4,))
    c = builder.external((4,), np.float32, builder.external_slice(group, offset, length))
    builder.operator("ADD", [x, c], [y])
    builder.outputs(y)
    return builder.build()


def test_external_buffers_are_mapped_from_the_model_s_directory(tmp_path: pathlib.Path) -> None:
    (tmp_path / "m.tflite").write_bytes(external_model())
    (tmp_path / "weights.bin").write_bytes(bytes(8) + np.arange(4, dtype=np.float32).tobytes())
    model = read_model(tmp_path / "m.tflite")
    assert model.external_buffer_groups == ("weights.bin",)
    data = model.subgraphs[0].tensors[2].data
    assert data.tolist() == [0, 1, 2, 3]
    assert isinstance(bases(data)[-1], mmap.mmap)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (external_model("absent.bin"), r"Could not open '.*absent.bin': No such file"),
        (
            external_model("../weights.bin"),
            "ExternalBufferGroup.name .* below the model's directory",
        ),
        (external_model("/etc/passwd"), "ExternalBufferGroup.name .* below the model's directory"),
        (external_model(""), "ExternalBufferGroup.name .* below the model's directory"),
        (external_model(length=17), "ExternalBuffer.length .* within the 24 bytes .* got 25"),
        (external_model(length=15), "Tensor.buffer .* need 16 bytes, got 15"),
        (
            external_model(offset=2**63, length=2**63),
            "ExternalBuffer.length .* got 18446744073709551616",
        ),
    ],
    ids=["absent", "parent", "absolute", "empty", "long", "short", "overflow"],
)
def test_bad_external_buffers(content: bytes, message: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "m.tflite").write_bytes(content)
    (tmp_path / "weights.bin").write_bytes(bytes(24))
    with pytest.raises(ModelError, match=message):
        read_model(tmp_path / "m.tflite")


def test_external_buffers_need_a_path() -> None:
    with pytest.raises(ModelError, match="read it from its path, got 'weights.bin'"):
        read_model(external_model())


def test_empty_tensors_have_a_value_though_nothing_is_stored() -> None:
    builder = ModelBuilder()
    x, e, y = builder.input((0, 2)), builder.tensor((0, 2)), builder.tensor((0, 2))
    builder.operator("ADD", [x, e], [y])
    builder.outputs(y)
    tensors = read_model(builder.build()).subgraphs[0].tensors
    assert [t.data is None for t in tensors] == [True, False, True]
    assert tensors[1].data.shape == (0, 2)


def test_an_operator_may_set_a_variable_and_leave_outputs_out() -> None:
    builder = ModelBuilder()
    x, v = builder.input((1,)), builder.tensor((1,), is_variable=True)
    builder.operator("ABS", [x], [v])
    builder.operator("my.op", [v], [-1, y := builder.tensor((1,))], CustomOptions())
    builder.outputs(y, y)
    graph = read_model(builder.build()).subgraphs[0]
    assert graph.operators[1].outputs == (-1, 2)
    assert graph.outputs == (2, 2)


def test_reshape_may_have_a_shape_without_data() -> None:
    builder = ModelBuilder()
    x, shape, y = builder.input((4,)), builder.tensor((2, 1), np.int32), builder.tensor((2, 2))
    builder.operator("RESHAPE", [x, shape], [y])
    builder.outputs(y)
    assert read_model(builder.build()).subgraphs[0].operators[0].inputs == (0, 1)


# --- what is refused

Edit = Callable[[schema.ModelT], object]


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


def pooling_options(t: schema.ModelT) -> None:
    t.subgraphs[0].operators[0].builtinOptionsType = schema.BuiltinOptions.Pool2DOptions
    t.subgraphs[0].operators[0].builtinOptions = schema.Pool2DOptionsT()


MULTI, BLOCK = schema.MultiAxisQuantizationT, schema.BlockwiseQuantizationT
REFUSED: dict[str, tuple[Edit, str]] = {
    "version": (on("/version", 4), "Model.version: must be 3, got 4"),
    "no subgraphs": (
        on("/subgraphs", []),
        "Model.subgraphs: a model must have one at least, got 0",
    ),
    "operator": (
        on("/operatorCodes[0].builtinCode", 9999),
        r"OperatorCode.builtin_code at operator_codes\[0\]: .* schema, \d+ at most, got 9999",
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
    "type": (on("tensors[0].type", 23), "Tensor.type .* 22 at most, got 23"),
    "negative shape": (
        on("tensors[0].shape", [2, -1]),
        r"Tensor.shape at .*tensors\[0\]: dimensions must not be negative, got \[2, -1\]",
    ),
    "overflow": (on("tensors[2].shape", [2**31 - 1] * 3), r"below 2\*\*63"),
    "overflow with zero": (on("tensors[2].shape", [0, 2**31 - 1, 2**31 - 1, 4]), r"below 2\*\*63"),
    "rank": (on("tensors[2].shape", [1] * 65), "64 dimensions at most, got 65"),
    "signature rank": (on("tensors[0].shapeSignature", [-1, 4]), "must have 1 dimensions as shape"),
    "signature value": (on("tensors[0].shapeSignature", [-2]), "each -1 at least"),
    "short constant": (
        on("tensors[1].shape", [5]),
        r"Tensor.buffer at .*tensors\[1\]: 5 values of FLOAT32 need 20 bytes, got 16",
    ),
    "wide constant": (on("tensors[1].type", 10), "4 values of FLOAT64 need 32 bytes, got 16"),
    "no string": (on("tensors[1].type", 5), "Tensor.buffer .* holds 4 strings, got 1065353216"),
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
        r"Operator.inputs at subgraphs\[0\].operators\[0\]: must hold data, or be an input .* got 1",
    ),
    "order": (swapped, r"operators\[1\], which writes the tensor, must come first, got 2"),
    "own output": (on("operators[0].inputs", [2, 1]), r"operators\[0\], which writes the tensor"),
    "output nobody writes": (
        on("operators", []),
        "SubGraph.outputs .* must be written by an operator, or hold data, got 3",
    ),
    "written twice": (
        on("operators[1].outputs", [2]),
        r"operators\[1\]: operators\[0\] writes the tensor already, one must, got 2",
    ),
    "written input": (on("operators[1].outputs", [0]), "must not be an input or hold data.* got 0"),
    "written constant": (
        on("operators[1].outputs", [1]),
        "must not be an input or hold data.* got 1",
    ),
    "options table": (
        on("operators[0].builtinOptionsType", 200),
        "Operator.builtin_options_type .* an options table of the schema, 126 at most, got 200",
    ),
    "others' options": (
        pooling_options,
        "Operator.builtin_options_type .* ADD takes AddOptions, got Pool2DOptions",
    ),
    "activation": (
        on("operators[0].builtinOptions.fusedActivationFunction", 77),
        r"AddOptions at subgraphs\[0\].operators\[0\] \(ADD\): must be readable, got 77 is not",
    ),
    "scales": (
        quantized(scale=[1.0, 2.0], zeroPoint=[0]),
        r"QuantizationParameters.zero_point at subgraphs\[0\].tensors\[0\].quantization: .* 2 scales",
    ),
    "no zero points": (quantized(scale=[1.0]), "zero_point .* each of the 1 scales, got 0"),
    "axis": (
        quantized(scale=[1.0], zeroPoint=[0], quantizedDimension=1),
        r"quantized_dimension .* dimension of the shape \[4\], got 1",
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
    "no details": (quantized(detailsType=2), "details .* BlockwiseQuantization being announced"),
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
    "signature key": (signed(key=None), "SignatureDef.signature_key .* must be there, got None"),
    "signature name": (signed(name=None), "TensorMap.name .* must be there, got None"),
}


@pytest.mark.parametrize(("edit", "message"), REFUSED.values(), ids=REFUSED)
def test_a_damaged_file_is_refused_with_its_place(edit: Edit, message: str) -> None:
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
def test_what_is_no_model_at_all(content: bytes, message: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "m.tflite").write_bytes(content)
    for source, name in ((content, "<bytes>"), (tmp_path / "m.tflite", str(tmp_path / "m.tflite"))):
        with pytest.raises(ModelError, match=message) as caught:
            read_model(source)
        assert str(caught.value).startswith(name)


def test_what_cannot_be_opened(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ModelError, match="Could not open 'no/such.tflite': No such file"):
        read_model("no/such.tflite")
    with pytest.raises(ValueError, match="Could not open '.*': not a regular file"):
        read_model(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelError, match="not a regular file"):
        read_model(tmp_path / "pipe")
    with pytest.raises(ModelError, match=r"Could not open 'a\\x00b': embedded null"):
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
def test_sparsity_that_does_not_unfold_is_refused(changes: dict[str, Any], message: str) -> None:
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
        (strings(3), "holds 2 strings, got 3"),
        (strings(-1), "holds 2 strings, got -1"),
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
def test_a_subgraph_that_is_not_there_is_refused(name: str) -> None:
    message = rf"Options\.\w*subgraph\w* at .*operators\[0\] \({name}\): .* below 2, got 9"
    with pytest.raises(ModelError, match=message):
        read_model(calling(name, CALLS[name]))


def test_a_negative_subgraph_is_refused() -> None:
    with pytest.raises(ModelError, match="got -1"):
        read_model(calling("WHILE", WhileOptions(1, -1)))


def test_a_subgraph_that_runs_itself_is_refused() -> None:
    with pytest.raises(
        ModelError, match=r"SubGraph.operators at subgraphs\[0\]: no subgraph may run"
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


def test_calls_that_come_round_or_nest_too_deep_are_refused() -> None:
    assert len(read_model(chain(64, None)).subgraphs) == 64
    with pytest.raises(ModelError, match="run itself, got 2 -> 3 -> 4 -> 2"):
        read_model(chain(5, 2))
    with pytest.raises(ModelError, match="64 levels deep, got 65"):
        read_model(chain(65, None))
    with pytest.raises(ModelError, match="run itself, got 0 -> 1"):
        read_model(chain(3000, 0))


# --- files of the world

STOCK_REFUSES = {
    "models/litert/blockwise_quantized.tflite": "Operator.inputs .* must hold data",  # it aborts there
    "models/litert/lstm_quantized2.bin": r"Tensor.shape .* must not be negative, got \[-1\]",
    "models/litert/lstm_calibrated2.bin": r"Tensor.shape .* must not be negative, got \[-1\]",
}


def real_files() -> list[pathlib.Path]:
    files = [f for part in ("models", "op_cases") for f in (SHARED / part).rglob("*")]
    return [f for f in files if f.suffix in (".tflite", ".bin", ".lite")]


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the real models beside the project")
def test_real_models_load_but_for_those_that_stock_litert_refuses() -> None:
    refused = {}
    for path in real_files():
        try:
            check(read_model(path))
        except ModelError as error:
            refused[path.relative_to(SHARED).as_posix()] = str(error)
    assert refused.keys() == STOCK_REFUSES.keys()
    for name, message in STOCK_REFUSES.items():
        assert re.search(message, refused[name])


def check(model: Model) -> None:
    """What every model that was read promises."""
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            spec = tensor.spec()
            assert spec.dtype == tensor.dtype
            assert spec.const is None or spec.const.shape == tensor.stored_shape
