"""Constants of every type are read: packed, quantized, blockwise or sparse ones, too."""

import dataclasses
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from jaxdelegate.model.records import Tensor, read_model
from jaxdelegate.op_lowering.dtypes import TENSOR_TYPES
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.op_lowering.spec import Sparsity
from jaxdelegate.quant.affine import dequantize
from jaxdelegate.quant.packing import BITS, MANY, in_memory, is_packed
from jaxdelegate.quant.params import Blockwise, Quantization
from jaxdelegate.testing import ModelBuilder
from tests.support.sparse import BLOCKS, csr

Edit = Callable[[schema.ModelT], None]


def constant_of(array: Any, edit: Edit | None = None, **details: Any) -> Tensor:
    """The tensor read from a file with this one constant, after an edit."""
    builder = ModelBuilder()
    builder.outputs(builder.constant(array, "c", **details))
    return read_model(builder.build(edit=edit)).subgraphs[0].tensors[0]


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


@pytest.mark.parametrize("dtype", BITS, ids=str)
def test_large_packed_constants_stay_packed(dtype: Any) -> None:
    values = (np.arange(MANY) % 2).astype(dtype).reshape(64, -1)
    tensor = constant_of(values)
    const = tensor.spec().const
    assert is_packed(const)
    assert np.shares_memory(in_memory(const), tensor.stored)
    assert const is tensor.constant
    np.testing.assert_array_equal(tensor.data, values)
    assert isinstance(tensor.data, np.ndarray)
    assert tensor.data is not tensor.data  # nothing keeps it
    assert not is_packed(constant_of(values[:, :-1]).spec().const)


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


def test_booleans_are_true_if_not_zero() -> None:
    builder = ModelBuilder()
    builder.outputs(builder.constant(np.array([True, False, True])))

    def odd(t: schema.ModelT) -> None:
        t.buffers[1].data = np.array([2, 0, 255], np.uint8)

    assert read_model(builder.build(edit=odd)).subgraphs[0].tensors[0].data.view(
        np.uint8
    ).tolist() == [1, 0, 1]


def test_more_bytes_than_the_shape_needs_are_ignored() -> None:
    def longer(t: schema.ModelT) -> None:
        t.buffers[1].data = np.arange(1, 6, dtype=np.float32).view(np.uint8)

    tensor = constant_of(np.zeros(4, np.float32), longer)
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


def test_scales_next_to_blockwise_quantization_are_ignored() -> None:
    def scales(t: schema.ModelT) -> None:
        q = t.subgraphs[0].tensors[0].quantization
        q.scale, q.zeroPoint = [1.0, 2.0, 3.0], [0]

    builder = ModelBuilder()
    values = np.zeros((3, 2), np.int8)
    builder.outputs(builder.constant(values, quantization=QUANTIZATIONS["blockwise"]))
    builder.tensor((1,))
    quantization = read_model(builder.build(edit=scales)).subgraphs[0].tensors[0].quantization
    assert (quantization.scale.size, quantization.zero_point.size) == (0, 0)


def test_blockwise_scales_are_read_from_their_tensors() -> None:
    scale, points = np.array([[0.5], [2.0], [1.0]], np.float16), np.int32([[1], [0], [-1]])
    blocks = Blockwise(-1, -1, 2, (), scale, points)
    q = Quantization(FLOATS[:0], np.empty(0, np.int64), blockwise=blocks)
    builder = ModelBuilder()
    builder.outputs(builder.constant(np.ones((3, 2), np.int8), "w", quantization=q))
    (tensor,) = [t for t in read_model(builder.build()).subgraphs[0].tensors if t.name == "w"]
    got = tensor.spec().quantization.blockwise
    assert got.block_size == 2
    np.testing.assert_array_equal(got.scale, scale)
    np.testing.assert_array_equal(got.zero_point, points)
    assert tensor.spec().is_quantized
    np.testing.assert_array_equal(
        dequantize(tensor.data, tensor.quantization), [[0, 0], [2, 2], [2, 2]]
    )


def test_blockwise_scales_without_data_are_unknown() -> None:
    """The first tensor has no data, the second one is not a scale."""
    for scales in (0, 1):
        builder = ModelBuilder()
        builder.tensor((3, 1), np.float16)
        builder.constant(np.int32([1, 2, 3]))
        q = Quantization(FLOATS[:0], np.empty(0, np.int64), blockwise=Blockwise(scales, -1, 2))
        builder.outputs(builder.constant(np.ones((3, 2), np.int8), quantization=q))
        got = read_model(builder.build()).subgraphs[0].tensors[2].quantization
        assert got.blockwise.scale is None


def test_an_empty_quantization_table_is_none() -> None:
    def nothing(t: schema.ModelT) -> None:
        t.subgraphs[0].tensors[0].quantization = schema.QuantizationParametersT()

    assert constant_of(np.zeros(4, np.float32), nothing).quantization is None


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
