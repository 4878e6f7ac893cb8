"""Values that one partition passes to another stay on the device; counts copies to the host."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.simple_delegate import Node
from jaxdelegate.testing import ModelBuilder, assert_close
from jaxdelegate.testing.running import run_once

Stock = Callable[..., Any]


class DeviceArray:
    """Simulates an array on a device, and counts the copies to numpy."""

    def __init__(self, value: np.ndarray, copies: list[tuple[int, ...]]) -> None:
        self._value, self._copies = value, copies
        self.shape, self.dtype = value.shape, value.dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        self._copies.append(self.shape)
        return self._value

    def on_device(self) -> np.ndarray:
        return self._value


class Kernel(jd.SimpleDelegateKernel):
    def __init__(self, copies: list[tuple[int, ...]]) -> None:
        self._copies = copies

    def init(self, context: Any, params: Any) -> None:
        pass

    def prepare(self, context: Any, node: Any) -> None:
        pass

    def eval(self, context: Any, node: Any) -> None:
        for n in node.nodes:
            a, b = (self._on_device(context.value(i)) for i in n.operator.inputs)
            y = a + b if n.name == "ADD" else a - b
            context.assign(n.operator.outputs[0], DeviceArray(y, self._copies))

    def _on_device(self, value: Any) -> np.ndarray:
        return value.on_device() if isinstance(value, DeviceArray) else value


class Sums(jd.SimpleDelegate):
    name = "Sums"

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[tuple[int, ...]] = []

    def is_node_supported(self, node: Node) -> bool:
        return node.name in ("ADD", "SUB")

    def create_kernel(self) -> Kernel:
        return Kernel(self.copies)


def two_partitions(*, host_reads_link: bool = False, ones: tuple[int, ...] = (2, 3)) -> bytes:
    """s = x + x; y = s - host(x + 1 or s): s goes from the first partition to the second."""
    builder = ModelBuilder()
    x = builder.input((2, 3), name="x")
    s, t, m, y = (builder.tensor((2, 3)) for _ in range(4))
    builder.operator("ADD", [x, x], [s])
    builder.operator("ADD", [x, builder.constant(np.ones(ones, np.float32))], [t])
    builder.operator("MUL", [s if host_reads_link else t, x], [m])
    builder.operator("SUB", [s, m], [y])
    builder.outputs(y)
    return builder.build()


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_a_tensor_that_only_our_partitions_read_is_not_copied(stock: Stock) -> None:
    delegate = Sums()
    interpreter = stock(two_partitions(), [delegate])
    for x in (X, X + 1):
        delegate.copies.clear()
        assert_close(run_once(interpreter, [x]), [2 * x - (x + 1) * x])
        # `t`, which MUL reads, and the result; not `s`
        assert delegate.copies == [(2, 3)] * 2


def test_the_host_gets_a_copy_when_it_reads(stock: Stock) -> None:
    delegate = Sums()
    interpreter = stock(two_partitions(host_reads_link=True), [delegate])
    for x in (X, X + 1, X - 3):
        assert_close(run_once(interpreter, [x]), [2 * x - 2 * x * x])


@pytest.mark.parametrize("host_reads_link", [False, True])
def test_after_a_resize(stock: Stock, host_reads_link: bool) -> None:
    interpreter = stock(two_partitions(host_reads_link=host_reads_link, ones=(1, 3)), [Sums()])
    for rows in (2, 5, 1, 5):
        x = np.full((rows, 3), rows, np.float32)
        interpreter.resize_tensor_input(interpreter.get_input_details()[0]["index"], x.shape)
        factor = 2 * x if host_reads_link else x + 1
        assert_close(run_once(interpreter, [x]), [2 * x - factor * x])


def test_every_intermediate_can_be_preserved(stock: Stock) -> None:
    interpreter = stock(two_partitions(), [Sums()], preserve=True)
    run_once(interpreter, [X])
    assert_close([interpreter.get_tensor(i) for i in (1, 2)], [2 * X, X + 1])


def test_arrays_of_jax_stay_on_their_device(stock: Stock, monkeypatch: pytest.MonkeyPatch) -> None:
    from jaxdelegate.litert.context import PartitionContext

    given: list[Any] = []
    value = PartitionContext.value
    monkeypatch.setattr(
        PartitionContext,
        "value",
        lambda self, index: given.append((index, v := value(self, index))) or v,
    )

    class AllButMul(jd.JaxDelegate):
        def why_not(self, node: Node) -> str | None:
            return "not here" if node.name == "MUL" else super().why_not(node)

    interpreter = stock(two_partitions(), [AllButMul(min_gain=0)])
    assert_close(run_once(interpreter, [X]), [2 * X - (X + 1) * X])
    link = [v for index, v in given if index == 1]
    assert link
    assert all(isinstance(v, jax.Array) for v in link)
