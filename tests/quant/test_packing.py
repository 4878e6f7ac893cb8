"""Packing against Python's integers."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdelegate.quant import packing

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
