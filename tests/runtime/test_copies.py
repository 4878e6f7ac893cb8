"""Copies between host and device, and waits, of an invoke: as they are, and with the switches."""

import gc
import mmap
import os
from typing import Any

import jax
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate import host_memory
from jaxdelegate.delegate import delegate_kernel
from jaxdelegate.errors import InterpreterError, OptionError
from jaxdelegate.host_memory import pinned_zeros
from jaxdelegate.options import EARLY_COPIES, PINNED_INPUTS
from jaxdelegate.pjrt import client
from jaxdelegate.program import Program
from jaxdelegate.testing import ModelBuilder

X = np.arange(4, dtype=np.float32).reshape(1, 4)
LARGE = (1, 20_000)  # 80,000 bytes: more than one page


class Result:
    """An array on a device: reading it waits, and copies unless that was requested before."""

    def __init__(self, name: str, array: np.ndarray, events: list[str], error: str = "") -> None:
        self.name, self.array, self.events, self.error = name, array, events, error
        self.shape, self.dtype, self.host = array.shape, array.dtype, False

    def copy_to_host_async(self) -> None:
        self.events.append(f"request {self.name}")

    def block_until_ready(self) -> None:
        self.events.append(f"wait {self.name}")
        if self.error:
            raise RuntimeError(self.error)

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        if not self.host:
            self.events.append(f"read {self.name}")
        if self.error:
            raise RuntimeError(self.error)
        self.host = True
        return np.array(self.array, *args, **kwargs)


class Kernel(jd.SimpleDelegateKernel):
    returns_own_memory = True

    def __init__(self, device: "Device") -> None:
        self.device = device

    def init(self, context: Any, params: Any) -> None:
        pass

    def prepare(self, context: Any, node: Any) -> None:
        pass

    def eval(self, context: Any, node: Any) -> None:
        for name, index in zip("ab", node.outputs, strict=True):
            result = Result(name, X, self.device.events, self.device.error)
            context.assign(index, result)


class Device(jd.SimpleDelegate):
    name = "Device"

    def __init__(self, error: str = "", *, is_in_host_memory: bool = False) -> None:
        super().__init__()
        self.error, self.events = error, list[str]()
        self.is_in_host_memory = is_in_host_memory

    def is_node_supported(self, _node: Any) -> bool:
        return True

    def create_kernel(self) -> jd.SimpleDelegateKernel:
        return Kernel(self)


def two_outputs(shape: tuple[int, ...] = (1, 4)) -> bytes:
    builder = ModelBuilder()
    x = builder.input(shape, np.float32, "x")
    outputs = [builder.tensor(shape) for _ in range(2)]
    builder.operator("ADD", [x, x], [outputs[0]])
    builder.operator("MUL", [x, x], [outputs[1]])
    builder.outputs(*outputs)
    return builder.build()


def invoked(device: Device) -> list[str]:
    """What happens on a device from `set_tensor` to the results."""
    interpreter = jd.Interpreter(model_content=two_outputs(), experimental_delegates=[device])
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], X)
    interpreter.invoke()
    device.events.append("invoked")
    for detail in interpreter.get_output_details():
        np.testing.assert_array_equal(interpreter.get_tensor(detail["index"]), X)
    return device.events


PLAIN = ["wait a", "wait b", "invoked", "read a", "read b"]


def test_results_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(EARLY_COPIES, raising=False)
    assert invoked(Device()) == PLAIN
    monkeypatch.setenv(EARLY_COPIES, "0")
    assert invoked(Device()) == PLAIN


def test_results_requested_at_once_are_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both copies are requested before the first wait, and nothing is copied or waited for later.

    Then the later waits return at once.
    """
    monkeypatch.setenv(EARLY_COPIES, "1")
    events = invoked(Device())
    assert events[:4] == ["request a", "request b", "read a", "read b"]
    assert events[4:] == ["wait a", "wait b", "invoked"]


def test_results_in_host_memory_are_not_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EARLY_COPIES, "1")
    assert invoked(Device(is_in_host_memory=True)) == PLAIN


def test_results_for_the_device_are_not_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EARLY_COPIES, "1")
    device = Device()
    interpreter = jd.Interpreter(model_content=two_outputs(), experimental_delegates=[device])
    interpreter.allocate_tensors()
    interpreter.invoke(wait=False)
    assert device.events == []


def test_errors_name_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EARLY_COPIES, "1")
    with pytest.raises(InterpreterError, match=r"0 \(ADD\) to 1 \(MUL\) failed .* Device: gone"):
        invoked(Device("gone"))


def test_a_guard_against_implicit_transfers_lets_copies_pass() -> None:
    array, seen = Result("a", X, []), list[bool]()
    here = client._GUARDS.thread_local_state()
    array.copy_to_host_async = lambda: seen.append(here.explicit_device_get)  # type: ignore[method-assign]
    with jax.transfer_guard("disallow"):
        host_memory.fetch([array, X, None])
    assert seen == [True]
    assert not here.explicit_device_get


@pytest.mark.parametrize("name", [EARLY_COPIES, PINNED_INPUTS])
def test_switches_are_0_or_1(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "sometimes")
    with pytest.raises(OptionError, match=f"{name}: must be 0 or 1, got 'sometimes'"):
        jd.options.is_on(name)


# ---- inputs


class Client:
    """What a client of a GPU knows of host memory."""

    def __init__(self, error: str = "") -> None:
        self.mapped: dict[int, int] = {}
        self.error = error

    def dma_map(self, address: int, size: int) -> None:
        if self.error:
            raise RuntimeError(self.error)
        self.mapped[address] = size

    def dma_unmap(self, address: int) -> None:
        del self.mapped[address]


def test_pinned_buffers_have_pages_of_their_own() -> None:
    gpu = Client()
    buffer = pinned_zeros((3, 30_000), np.dtype(np.int16), gpu)
    assert buffer is not None
    assert (buffer.shape, buffer.dtype, buffer.any()) == ((3, 30_000), np.int16, False)
    pages = -(-180_000 // mmap.PAGESIZE) * mmap.PAGESIZE
    assert gpu.mapped == {buffer.ctypes.data: pages}
    assert buffer.ctypes.data % mmap.PAGESIZE == 0
    buffer[...] = 7
    part = buffer[1:, ::2].view()
    del buffer
    gc.collect()
    assert len(gpu.mapped) == 1  # a view still shows it
    assert (part == 7).all()
    del part
    gc.collect()
    assert gpu.mapped == {}


def test_what_cannot_be_pinned_is_ordinary_memory() -> None:
    floats, shape = np.dtype(np.float32), (100_000,)
    assert pinned_zeros(shape, floats, Client("no such memory")) is None
    assert pinned_zeros(shape, floats, object()) is None  # an older jaxlib
    assert pinned_zeros((10,), floats, Client()) is None
    assert pinned_zeros(shape, np.dtype(object), Client()) is None
    assert pinned_zeros(shape, floats, jax.devices("cpu")[0].client) is None  # not on a CPU


def test_a_forked_process_leaves_the_mapping_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Client()
    buffer = pinned_zeros(LARGE, np.dtype(np.float32), gpu)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    del buffer
    gc.collect()
    assert len(gpu.mapped) == 1


def test_only_a_gpu_pins_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PINNED_INPUTS, raising=False)
    assert not any(map(delegate_kernel.pins_inputs, ("cpu", "gpu", "tpu")))
    monkeypatch.setenv(PINNED_INPUTS, "1")
    assert [*map(delegate_kernel.pins_inputs, ("cpu", "gpu", "tpu"))] == [False, True, False]


@pytest.mark.parametrize("is_pinned", [False, True])
def test_programs_read_the_pinned_buffer_itself(
    monkeypatch: pytest.MonkeyPatch, is_pinned: bool
) -> None:
    """`set_tensor` copies into it, and nothing else is copied on the host."""
    gpu, seen = Client(), []
    monkeypatch.setattr(delegate_kernel, "pins_inputs", lambda _: is_pinned)
    monkeypatch.setattr(
        delegate_kernel, "pinned_zeros", lambda shape, dtype, _: pinned_zeros(shape, dtype, gpu)
    )
    call = Program.__call__
    monkeypatch.setattr(
        Program, "__call__", lambda self, values: seen.append(values) or call(self, values)
    )
    delegate = jd.JaxDelegate(platform="cpu")
    content = two_outputs(LARGE)
    interpreter = jd.Interpreter(model_content=content, experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    (x,), (total, _) = interpreter.get_input_details(), interpreter.get_output_details()
    for run in range(3):
        values = np.full(LARGE, run, np.float32)
        interpreter.set_tensor(x["index"], values)
        interpreter.invoke()
        np.testing.assert_array_equal(interpreter.get_tensor(total["index"]), 2 * values)
    addresses = {value.ctypes.data for (value,) in seen}
    assert len(addresses) == 1
    assert ([*gpu.mapped] == [*addresses]) is is_pinned
    interpreter.resize_tensor_input(x["index"], (2, 20_000))
    interpreter.allocate_tensors()
    del values, seen[:]
    gc.collect()
    assert len(gpu.mapped) == is_pinned  # the old buffer is gone
