"""When `invoke` waits for a device, what it leaves alone meanwhile, and errors that come later."""

from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.errors import InterpreterError
from jaxdelegate.runtime.execution_plan import must_wait
from jaxdelegate.runtime.subgraph import SubgraphRunner
from jaxdelegate.testing import ModelBuilder

X = np.arange(4, dtype=np.float32).reshape(1, 4)


def chain() -> bytes:
    """y = (x + x) * (x + x)."""
    builder = ModelBuilder()
    x = builder.input((1, 4), np.float32, "x")
    total, y = builder.tensor((1, 4)), builder.tensor((1, 4))
    builder.operator("ADD", [x, x], [total])
    builder.operator("MUL", [total, total], [y])
    builder.outputs(y)
    return builder.build()


class Pending:
    """A result that is available only after a wait."""

    def __init__(self, array: np.ndarray, error: str = "") -> None:
        self.array, self.error, self.waits = array, error, 0
        self.shape, self.dtype = array.shape, array.dtype

    def block_until_ready(self) -> None:
        self.waits += 1
        if self.error:
            raise RuntimeError(self.error)

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        self.block_until_ready()
        return np.array(self.array, *args, **kwargs)


class Device(jd.SimpleDelegate):
    """Returns the given results for any operator; takes the nodes up to the last one."""

    name = "Device"

    def __init__(self, *results: Pending, last: int = 1) -> None:
        super().__init__()
        self.results, self.last = list(results), last

    def is_node_supported(self, node: Any) -> bool:
        return bool(node.index <= self.last)

    def create_kernel(self) -> jd.SimpleDelegateKernel:
        return Kernel(self.results)


class Kernel(jd.SimpleDelegateKernel):
    def __init__(self, results: list[Pending]) -> None:
        self.results = results

    def init(self, context: Any, params: Any) -> None:
        pass

    def prepare(self, context: Any, node: Any) -> None:
        pass

    def eval(self, context: Any, node: Any) -> None:
        (output,) = node.outputs
        context.assign(output, self.results.pop(0))


def host(*delegates: jd.SimpleDelegate) -> SubgraphRunner:
    interpreter = jd.Interpreter(model_content=chain(), experimental_delegates=delegates)
    interpreter.allocate_tensors()
    made = interpreter._runner(0)
    made.write(made.subgraph.inputs[0], Pending(X))
    return made


@pytest.mark.parametrize(
    ("asked", "inputs", "waits"),
    [
        (None, [X], True),
        (None, [X, Pending(X)], True),
        (None, [], True),
        (None, [Pending(X)], False),
        (True, [Pending(X)], True),
        (False, [X], False),
    ],
)
def test_when_invoke_waits(asked: bool | None, inputs: list[Any], waits: bool) -> None:
    assert must_wait(asked, inputs) is waits


def test_invoke_waits_when_asked() -> None:
    first, second, third = (Pending(X) for _ in range(3))
    made = host(Device(first, second, third))
    made.invoke()
    assert first.waits == 0
    made.invoke(wait=True)
    assert second.waits == 1
    made.write(made.subgraph.inputs[0], X)
    made.invoke()
    assert third.waits == 1


def test_buffers_that_a_program_may_read_are_left_alone() -> None:
    made = host(Device(*(Pending(X) for _ in range(3))))
    x = made.subgraph.inputs[0]
    made.write(x, X)
    read = made.value(x)
    made.invoke(wait=False)
    made.write(x, X + 1)
    np.testing.assert_array_equal(read, X)
    made.invoke(wait=True)
    kept = made.value(x)
    made.write(x, X + 2)
    assert made.value(x) is kept


BOOM = "the device is gone"
FAILED = rf"Nodes number 0 \(ADD\) to 1 \(MUL\) failed to invoke on Device: {BOOM}"


def test_errors_of_a_device_name_the_nodes() -> None:
    made = host(Device(Pending(X, BOOM), Pending(X, BOOM)))
    with pytest.raises(InterpreterError, match=FAILED):
        made.invoke(wait=True)
    made.invoke(wait=False)
    with pytest.raises(InterpreterError, match=FAILED):
        made.array(made.subgraph.outputs[0])


def test_errors_of_several_partitions() -> None:
    """A result fails with what it is computed from; what was released cannot be asked."""
    first = Device(*(Pending(X, BOOM) for _ in range(2)), last=0)
    with pytest.raises(InterpreterError, match=r"1 \(MUL\) or a partition before it failed"):
        host(first, Device(Pending(X, BOOM))).invoke(wait=True)
    with pytest.raises(InterpreterError, match=rf"^Node number 0 \(ADD\) failed .*: {BOOM}"):
        host(first).invoke(wait=True)  # MUL on the host reads it
