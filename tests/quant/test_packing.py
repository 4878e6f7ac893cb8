"""Packing against Python's integers."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdelegate.quant import packing
from tests.support.unpacking import watch_unpacking

INT4, UINT4, INT2 = (np.dtype(t) for t in (ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2))
BITS = {INT4: 4, UINT4: 4, INT2: 2}


def _bytes(values: list[int], bits: int) -> bytes:
    """One large integer, the first value lowest."""
    whole = sum((v % 2**bits) << (bits * i) for i, v in enumerate(values))
    return whole.to_bytes(-(-len(values) * bits // 8), "little")


@pytest.mark.parametrize("dtype", BITS, ids=str)
@given(data=st.data())
def test_round_trip(dtype: np.dtype, data: st.DataObject) -> None:
    low = 0 if dtype == UINT4 else -(2 ** (BITS[dtype] - 1))
    element = st.integers(low, low + 2 ** BITS[dtype] - 1)
    values = data.draw(st.lists(element, max_size=30))
    packed = packing.pack(np.array(values, np.int8).astype(dtype))
    assert packed.dtype == np.uint8
    assert packed.tobytes() == _bytes(values, BITS[dtype])
    unpacked = packing.unpack(packed, len(values), dtype)
    assert unpacked.dtype == dtype
    assert unpacked.astype(int).tolist() == values


def test_the_first_value_is_lowest() -> None:
    assert packing.pack(np.array([1, -2, 7], INT4)).tolist() == [0xE1, 0x07]
    assert packing.pack(np.array([1, -2, 0, -1, 1], INT2)).tolist() == [0b11001001, 0b01]
    assert packing.unpack(np.uint8([0xE1, 0xF7]), 3, UINT4).astype(int).tolist() == [1, 14, 7]


def test_shapes_are_flattened() -> None:
    assert packing.pack(np.zeros((3, 5), INT4)).shape == (8,)
    assert packing.pack(np.zeros((0, 5), INT2)).shape == (0,)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="int8 is not packed"):
        packing.pack(np.zeros(3, np.int8))
    with pytest.raises(ValueError, match="3 elements of int4 do not fit 1 bytes"):
        packing.unpack(np.zeros(1, np.uint8), 3, INT4)


def constant(dtype: np.dtype, shape: tuple[int, ...]) -> tuple[packing.PackedConstant, np.ndarray]:
    """A packed constant, and the array that it stands for."""
    low = 0 if dtype == UINT4 else -(2 ** (BITS[dtype] - 1))
    values = np.random.default_rng(0).integers(low, low + 2 ** BITS[dtype], shape, np.int8)
    array = values.astype(dtype)
    return packing.PackedConstant(packing.pack(array), shape, dtype), array


@pytest.mark.parametrize("dtype", BITS, ids=str)
@pytest.mark.parametrize("shape", [(9, 8), (3, 5, 4), (4, 7), (70_000,), (0, 4)], ids=str)
def test_a_packed_constant_acts_as_an_array(dtype: np.dtype, shape: tuple[int, ...]) -> None:
    packed, array = constant(dtype, shape)
    assert (packed.shape, packed.dtype) == (array.shape, array.dtype)
    assert (packed.ndim, packed.size, packed.nbytes) == (array.ndim, array.size, array.nbytes)
    assert len(packed) == len(array)
    np.testing.assert_array_equal(packed, array)
    np.testing.assert_array_equal(packed.astype(np.int8).sum(0), array.astype(np.int8).sum(0))
    np.testing.assert_array_equal(packed.reshape(-1), array.reshape(-1))
    np.testing.assert_array_equal(packed == 1, array == 1)
    np.testing.assert_array_equal(np.moveaxis(packed, 0, -1), np.moveaxis(array, 0, -1))


@pytest.mark.parametrize("dtype", BITS, ids=str)
@pytest.mark.parametrize("columns", [8, 7])  # rows of whole bytes, and others
def test_rows_of_a_packed_constant(dtype: np.dtype, columns: int) -> None:
    packed, array = constant(dtype, (9, columns))
    keys = [2, -1, np.int32(3), slice(2, 5), slice(None, None, 2), slice(5, 5), (1, 2), ...]
    for key in [*keys, np.int32([[3, 0], [8, 8]]), np.int64([]), array[:, 0] == 1]:
        np.testing.assert_array_equal(packed[key], array[key], str(key))
    assert [row.tolist() for row in packed] == array.tolist()
    with pytest.raises(IndexError):
        packed[9]


def test_rows_are_unpacked_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    packed, array = constant(INT4, (500, 64))
    counts = watch_unpacking(monkeypatch)
    np.testing.assert_array_equal(packed[np.int32([7, 3])], array[[7, 3]])
    assert counts == [2 * 64]
    assert np.shares_memory(packing.in_memory(packed), packed.packed)
    assert packing.packed_rows(packed).tobytes() == packing.pack(array).tobytes()
    assert counts == [2 * 64]


def test_a_packed_constant_is_read_only_and_has_no_memory_of_its_elements() -> None:
    packed, array = constant(INT4, (9, 8))
    assert not np.asarray(packed).flags.writeable
    assert np.array(packed).flags.writeable
    assert np.asarray(packed, np.float32).dtype == np.float32
    with pytest.raises(ValueError, match="cannot be read without a copy"):
        np.asarray(packed, copy=False)
    for name in ("__array_interface__", "__jax_array__", "_private", "copy_to_host_async"):
        assert not hasattr(packed, name)
    assert repr(packed) == "PackedConstant(int4 [9, 8])"
    assert packing.packed_rows(array) is None
    assert packing.in_memory(array) is array
