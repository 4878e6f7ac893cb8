"""Buffers that XLA reads without a copy, regions that arrays occupy, views that users hold."""

import numpy as np
import pytest

from jaxdelegate.host_memory import HeldViews, Regions, aligned_copy, aligned_zeros, is_view


@pytest.mark.parametrize("shape", [(), (0,), (3,), (5, 7)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.complex128])
def test_buffers_are_aligned(shape: tuple[int, ...], dtype: type) -> None:
    buffer = aligned_zeros(shape, np.dtype(dtype))
    assert buffer.shape == shape
    assert buffer.dtype == dtype
    assert not buffer.size or buffer.ctypes.data % 64 == 0
    assert not buffer.any()


def test_a_copy_is_aligned_and_has_the_same_elements() -> None:
    array = np.arange(24.0).reshape(4, 6)[::2, 1::2]
    copy = aligned_copy(array)
    np.testing.assert_array_equal(copy, array)
    assert copy.ctypes.data % 64 == 0
    assert not np.shares_memory(copy, array)


def test_buffers_of_strings_are_empty_bytes() -> None:
    assert aligned_zeros((2,), np.dtype(object)).tolist() == [b"", b""]


def test_views() -> None:
    array = np.zeros(3)
    assert not is_view(array)
    assert is_view(array[1:])
    assert not is_view("text")


def test_regions() -> None:
    memory = np.zeros(100, np.uint8)
    regions = Regions([memory[10:20], memory[40:60:2], "no array", memory[:0]])
    assert regions.overlap(memory[19:25])
    assert regions.overlap(memory[41:42])  # a gap between elements
    assert not regions.overlap(memory[20:40])
    assert not regions.overlap(memory[60:])
    assert not regions.overlap(memory[15:15])
    assert not Regions([]).overlap(memory)


def test_a_view_counts_until_it_and_its_slices_are_gone() -> None:
    held, buffer = HeldViews(), np.zeros((2, 3), np.float32)
    assert not held
    view = held.of(buffer)
    row = view[0]
    row[...] = 5
    np.testing.assert_array_equal(buffer[0], [5, 5, 5])
    del view
    assert held
    del row
    assert not held
