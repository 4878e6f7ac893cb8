"""Damaged and hostile files: each loads or is refused, quickly and with little memory."""

import math
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import flatbuffers
import hypothesis
import ml_dtypes
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from flatbuffers import flexbuffers
from hypothesis import strategies as st

from jaxdelegate.errors import ModelError
from jaxdelegate.model.records import Model, read_model
from jaxdelegate.op_lowering.options import (
    CustomOptions,
    Options,
    ReshapeOptions,
    StableHLOCompositeOptions,
    StablehloCustomCallOptions,
    WhileOptions,
)
from jaxdelegate.op_lowering.records.custom import MAX_FLEXBUFFER
from jaxdelegate.op_lowering.spec import DimensionSparsity, Sparsity
from jaxdelegate.quant.params import Blockwise, Quantization
from jaxdelegate.testing import ModelBuilder
from tests.support.combinations import one_of


def rich_model(*, outside: bool = False) -> bytes:
    """A small file with every kind of table."""
    builder = ModelBuilder("every kind of table")
    x = builder.input((1, 4), name="x", shape_signature=(-1, 4))
    affine = Quantization(np.float32([0.5, 0.25]), np.array([1, 2]), 0)
    axes = Quantization(np.float32([]), np.array([], np.int64), blockwise=Blockwise(1, -1, 0, (0,)))
    builder.constant(np.ones(2, np.float32), "scales")
    builder.constant(np.ones((2, 2), np.int8), "q", quantization=affine)
    builder.constant(np.ones((2, 2), ml_dtypes.int4), "packed", quantization=axes)
    builder.constant(np.array([b"one", b"three"], object), "strings")
    rows = DimensionSparsity(0, np.array([0, 1, 1], np.int32), np.array([1], np.uint8))
    sparsity = Sparsity((0, 1), (), (DimensionSparsity(2), rows))
    builder.constant(np.ones(1, np.float32), "sparse", shape=(2, 2), sparsity=sparsity)
    state, y, z = (
        builder.tensor((1, 4), is_variable=True),
        builder.tensor((2, 2)),
        builder.tensor((2, 2)),
    )
    builder.operator("RESHAPE", [x], [y], ReshapeOptions((2, 2)), mutating=[False])
    detection = CustomOptions(bytes(flexbuffers.Dumps({"max_detections": 3, "x_scale": 2.0})))
    builder.operator("TFLite_Detection_PostProcess", [y, None, state], [z], detection)
    builder.operator("STABLEHLO_COMPOSITE", [z], [-1], StableHLOCompositeOptions("f", 1, b"ab"))
    builder.operator("WHILE", [z], [w := builder.tensor((2, 2))], WhileOptions(1, 2))
    builder.outputs(w)
    for name in ("cond", "body"):
        graph = builder.subgraph(name)
        graph.outputs(graph.input((2, 2)))
    builder.signature("serve", {"in": x}, {"out": w})
    builder.metadata("note", b"text")
    return builder.build(outside=outside)


RICH = rich_model()


def check(model: Model) -> None:
    """Check the guarantees of a model that was read."""
    for graph in model.subgraphs:
        tensors = range(len(graph.tensors))
        assert all(i in tensors for i in (*graph.inputs, *graph.outputs))
        for operator in graph.operators:
            indices = (*operator.inputs, *operator.outputs, *operator.intermediates)
            assert all(i == -1 or i in tensors for i in indices)
        for tensor in graph.tensors:
            data = tensor.spec().const
            assert data is None or (data.shape, data.dtype) == (tensor.stored_shape, tensor.dtype)
            assert tensor.sparsity is not None or tensor.stored_shape == tensor.shape
            assert math.prod(tensor.shape) * tensor.dtype.itemsize < 2**63
    for signature in model.signatures:
        tensors = range(len(model.subgraphs[signature.subgraph].tensors))
        assert all(i in tensors for i in (*signature.inputs.values(), *signature.outputs.values()))


def loads(content: bytes) -> bool:
    """Whether the file loads; anything except a valid model or a ModelError fails the test."""
    try:
        model = read_model(content)
    except ModelError:
        return False
    check(model)
    return True


def test_the_undamaged_file_loads() -> None:
    assert loads(RICH)
    assert loads(rich_model(outside=True))


@pytest.mark.parametrize("content", [RICH, rich_model(outside=True)], ids=["inside", "outside"])
def test_a_file_cut_anywhere_is_refused(content: bytes) -> None:
    assert [n for n in range(len(content)) if loads(content[:n])] == []


def test_a_large_file_cut_anywhere_is_refused() -> None:
    builder = ModelBuilder()
    tensors = [builder.constant(np.full(2000, i, np.float32)) for i in range(60)]
    builder.outputs(*tensors)
    content = builder.build()
    cuts = np.random.default_rng(0).integers(0, len(content), 400).tolist()
    assert [n for n in (*cuts, len(content) - 1) if loads(content[:n])] == []


@pytest.mark.slow
@pytest.mark.parametrize("value", one_of(3, [0x80, 0x7F, 1]))
def test_any_byte_may_have_another_value(value: int) -> None:
    changed = bytearray(RICH)
    for at, byte in enumerate(RICH):
        changed[at] = value
        loads(bytes(changed))
        changed[at] = byte


def first_of(count: int) -> list[Any]:
    """Numbers below `count`, exhaustive except 0."""
    return [0, *(pytest.param(i, marks=pytest.mark.exhaustive) for i in range(1, count))]


@pytest.mark.parametrize("turn", first_of(3))
def test_any_byte_may_be_damaged(turn: int) -> None:
    """It is 0, 255 or has a flipped bit, in turn."""
    changed = bytearray(RICH)
    for at, byte in enumerate(RICH):
        changed[at] = (0, 0xFF, byte ^ 1 << (at % 8))[(at + turn) % 3]
        loads(bytes(changed))
        changed[at] = byte


WORDS = [2**31 - 1, 2**31, 2**32 - 1, len(RICH), 0xFFFF0000, 4]


@pytest.mark.parametrize("turn", first_of(len(WORDS) // 2))
def test_any_word_may_have_another_value(turn: int) -> None:
    """Two values of each word, in turn."""
    for i, at in enumerate(range(0, len(RICH) - 3, 4)):
        for word in (WORDS[2 * ((i + turn) % 3) :])[:2]:
            loads(RICH[:at] + word.to_bytes(4, "little") + RICH[at + 4 :])


EDITS = st.lists(
    st.tuples(st.integers(0, len(RICH) - 1), st.binary(min_size=0, max_size=8), st.integers(0, 8)),
    min_size=1,
    max_size=6,
)


@hypothesis.settings(max_examples=300, deadline=None, derandomize=True, database=None)
@hypothesis.given(EDITS)
def test_any_edit_loads_or_is_refused(edits: list[tuple[int, bytes, int]]) -> None:
    content = RICH
    for at, inserted, removed in edits:
        content = content[:at] + inserted + content[at + removed :]
    loads(content)


@hypothesis.settings(max_examples=200, deadline=None, derandomize=True, database=None)
@hypothesis.given(st.binary(max_size=200))
def test_any_bytes_after_the_header_load_or_are_refused(tail: bytes) -> None:
    loads(b"\x10\0\0\0TFL3" + tail)


# Bombs: small files with many offsets to the same large object.

Bomb = Callable[[flatbuffers.Builder], int]
COUNT = 5_000


def vector(builder: flatbuffers.Builder, offsets: list[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())


def numbers(builder: flatbuffers.Builder, count: int) -> int:
    return int(builder.CreateNumpyVector(np.zeros(count, np.int32)))


def finish(builder: flatbuffers.Builder, graph: int, codes: list[int], *, copies: int = 1) -> bytes:
    graphs, code_vector = vector(builder, [graph] * copies), vector(builder, codes)
    schema.ModelStart(builder)
    schema.ModelAddVersion(builder, 3)
    schema.ModelAddSubgraphs(builder, graphs)
    schema.ModelAddOperatorCodes(builder, code_vector)
    builder.Finish(schema.ModelEnd(builder), b"TFL3")
    return bytes(builder.Output())


def tensor_bomb(*, name_size: int, subgraphs: int = 1) -> bytes:
    """A model that repeats one tensor with a long name."""
    b = flatbuffers.Builder()
    name = b.CreateString("x" * name_size)
    schema.TensorStart(b)
    schema.TensorAddName(b, name)
    tensors = vector(b, [schema.TensorEnd(b)] * COUNT)
    schema.SubGraphStart(b)
    schema.SubGraphAddTensors(b, tensors)
    return finish(b, schema.SubGraphEnd(b), [], copies=subgraphs)


def operator_bomb(*, inputs: int, new_shape: int) -> bytes:
    """A model that repeats one RESHAPE with many inputs or a long vector in its options."""
    b = flatbuffers.Builder()
    schema.OperatorCodeStart(b)
    schema.OperatorCodeAddBuiltinCode(b, schema.BuiltinOperator.RESHAPE)
    code = schema.OperatorCodeEnd(b)
    input_vector, shape_vector = numbers(b, inputs), numbers(b, new_shape)
    schema.ReshapeOptionsStart(b)
    schema.ReshapeOptionsAddNewShape(b, shape_vector)
    options = schema.ReshapeOptionsEnd(b)
    schema.OperatorStart(b)
    schema.OperatorAddInputs(b, input_vector)
    schema.OperatorAddBuiltinOptionsType(b, schema.BuiltinOptions.ReshapeOptions)
    schema.OperatorAddBuiltinOptions(b, options)
    operators = vector(b, [schema.OperatorEnd(b)] * COUNT)
    schema.TensorStart(b)
    tensors = vector(b, [schema.TensorEnd(b)])
    schema.SubGraphStart(b)
    schema.SubGraphAddTensors(b, tensors)
    schema.SubGraphAddOperators(b, operators)
    return finish(b, schema.SubGraphEnd(b), [code])


BOMBS = {
    "long names": lambda: tensor_bomb(name_size=100_000),
    "subgraphs of tensors": lambda: tensor_bomb(name_size=1, subgraphs=COUNT),
    "tensors": lambda: tensor_bomb(name_size=1),
    "operator inputs": lambda: operator_bomb(inputs=50_000, new_shape=1),
    "options": lambda: operator_bomb(inputs=1, new_shape=50_000),
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_offsets_to_shared_data_are_limited_by_the_size_of_the_file(
    bomb: Callable[[], bytes],
) -> None:
    content = bomb()
    tracemalloc.start()
    start = time.perf_counter()
    try:
        with pytest.raises(
            ModelError, match="the data that a file refers to must not exceed 4 times its size"
        ):
            read_model(content)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - start < 5
    assert peak < 50 * len(content)


def shared_options(code: str, data: bytes) -> bytes:
    """A model that repeats one custom operator."""
    b = flatbuffers.Builder()
    name, options = b.CreateString(code), b.CreateByteVector(data)
    schema.OperatorCodeStart(b)
    schema.OperatorCodeAddBuiltinCode(b, schema.BuiltinOperator.CUSTOM)
    schema.OperatorCodeAddCustomCode(b, name)
    operator_code = schema.OperatorCodeEnd(b)
    schema.OperatorStart(b)
    schema.OperatorAddCustomOptions(b, options)
    operators = vector(b, [schema.OperatorEnd(b)] * COUNT)
    schema.SubGraphStart(b)
    schema.SubGraphAddOperators(b, operators)
    return finish(b, schema.SubGraphEnd(b), [operator_code])


LONG = 1 << 17


@pytest.mark.parametrize("outside", [False, True], ids=["inside", "outside"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("edgetpu-custom-op", CustomOptions(bytes(LONG))),
        ("STABLEHLO_COMPOSITE", StableHLOCompositeOptions("f", 1, bytes(LONG))),
        ("STABLEHLO_CUSTOM_CALL", StablehloCustomCallOptions("f", backend_config="x" * LONG)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options_may_be_most_of_a_file(name: str, options: Options, *, outside: bool) -> None:
    builder = ModelBuilder()
    x, y = builder.input((2,)), builder.tensor((2,))
    builder.operator(name, [x], [y], options)
    builder.outputs(y)
    builder.subgraph("f")
    (operator,) = read_model(builder.build(outside=outside)).subgraphs[0].operators
    assert (
        sum(len(v) for v in vars(operator.options).values() if isinstance(v, str | bytes)) >= LONG
    )


@pytest.mark.parametrize(
    ("code", "data"),
    [
        ("edgetpu-custom-op", bytes(LONG)),
        ("AvgPool3D", bytes(flexbuffers.Dumps({"padding": "x" * (MAX_FLEXBUFFER - 100)}))),
    ],
)
def test_operators_that_share_custom_options_have_one_copy(code: str, data: bytes) -> None:
    content = shared_options(code, data)
    tracemalloc.start()
    try:
        operators = read_model(content).subgraphs[0].operators
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(operators) == COUNT
    assert operators[0].custom_options == data
    assert peak < 5 * len(data) + 1000 * COUNT


def test_a_million_tables_are_the_limit() -> None:
    b = flatbuffers.Builder()
    schema.TensorStart(b)
    tensors = vector(b, [schema.TensorEnd(b)] * 1_000_001)
    padding = b.CreateNumpyVector(np.zeros(1 << 25, np.uint8))  # raises the budget in bytes
    schema.SubGraphStart(b)
    schema.SubGraphAddTensors(b, tensors)
    schema.SubGraphAddName(b, padding)
    with pytest.raises(ModelError, match="must not have more than 1000000 tables"):
        read_model(finish(b, schema.SubGraphEnd(b), []))


def test_a_wrong_length_allocates_nothing() -> None:
    content = bytearray(RICH)
    at = content.index(np.int32([2, 1, 4]).tobytes())  # the shape [1, 4], after its length
    content[at : at + 4] = (2**30).to_bytes(4, "little")
    tracemalloc.start()
    try:
        with pytest.raises(
            ModelError, match=r"Tensor.shape at .*: must end within the file's \d+ bytes"
        ):
            read_model(bytes(content))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
