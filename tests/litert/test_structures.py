"""Supported interpreters, and reading and writing arrays of the C API."""

import ctypes
import sys
import types

import pytest

from jaxdelegate.errors import InterpreterError
from jaxdelegate.litert import structures
from jaxdelegate.op_lowering.options import TensorType
from jaxdelegate.op_lowering.records.c_struct import TENSOR_TYPES


def test_this_host_is_supported() -> None:
    structures.check_host()
    assert structures.host_version("ai_edge_litert")


def test_sizes_are_those_of_the_headers() -> None:
    for cls, size in structures.SIZES.items():
        assert ctypes.sizeof(cls) == size, cls
    assert structures.Tensor.data.offset == 8
    assert structures.Node.user_data.offset == 32
    assert structures.Context.tensors.offset == 16


@pytest.mark.parametrize(
    ("package", "version", "words"),
    [
        ("tflite_runtime", "2.14.0", "built for numpy 1"),
        ("ai_edge_litert", "1.2.0", "ai_edge_litert 1.2.0 is too old .* 1.4 or newer"),
        ("tensorflow", "2.18.1", "tensorflow 2.18.1 is too old .* 2.19 or newer"),
    ],
)
def test_refuses_other_hosts(
    monkeypatch: pytest.MonkeyPatch, package: str, version: str, words: str
) -> None:
    module = types.ModuleType(package)
    module.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package, module)
    with pytest.raises(InterpreterError, match=words):
        structures.check_host()


def test_refuses_structures_of_another_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(structures.SIZES, structures.Tensor, 64)
    with pytest.raises(InterpreterError, match="64-bit Linux and macOS, not on"):
        structures.check_host()


@pytest.mark.parametrize("values", [[], [3], [1, -1, 7]])
def test_int_arrays(values: list[int]) -> None:
    array = structures.int_array(values)
    assert structures.elements(ctypes.addressof(array)) == values
    address = structures.allocated_int_array(values)
    assert structures.elements(address) == values
    free = ctypes.CDLL(None).free
    free.argtypes = (ctypes.c_void_p,)
    free(address)


def test_a_null_pointer_is_an_empty_array() -> None:
    assert structures.elements(None) == []


def test_every_tensor_type_has_a_number() -> None:
    assert set(TENSOR_TYPES.values()) == set(TensorType)
