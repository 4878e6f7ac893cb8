"""Any kernel may have a shortcut: the runner reads its inputs and keeps its results."""

from typing import Any

import numpy as np

import jaxdelegate as jd
from jaxdelegate.simple_delegate import (
    DelegateContext,
    DelegateParams,
    Node,
    Shortcut,
    SimpleDelegate,
    SimpleDelegateKernel,
)
from jaxdelegate.testing import ModelBuilder


class Doubles(SimpleDelegateKernel):
    def __init__(self) -> None:
        self.evaluated = self.shortened = 0
        self.is_ready = True

    def init(self, context: DelegateContext, params: DelegateParams) -> None:  # noqa: ARG002
        self._params = params

    def prepare(self, context: DelegateContext, node: DelegateParams) -> None:
        pass

    def eval(self, context: DelegateContext, node: DelegateParams) -> None:
        self.evaluated += 1
        context.assign(node.outputs[0], 2 * context.array(node.inputs[0]))

    def shortcut(self) -> Shortcut | None:
        return Shortcut(self._params.inputs, self._params.outputs, self._doubled)

    def _doubled(self, values: Any) -> list[np.ndarray] | None:
        if not self.is_ready:
            return None
        self.shortened += 1
        (x,) = values
        return [2 * x]


class Delegate(SimpleDelegate):
    def __init__(self) -> None:
        super().__init__()
        self.kernel = Doubles()

    def is_node_supported(self, node: Node) -> bool:  # noqa: ARG002
        return True

    def create_kernel(self) -> SimpleDelegateKernel:
        return self.kernel


def test_a_shortcut_takes_the_place_of_eval_while_it_can() -> None:
    builder = ModelBuilder()
    x, y = builder.input((2,)), builder.tensor((2,))
    builder.operator("ADD", [x, x], [y])
    builder.outputs(y)
    delegate = Delegate()
    interpreter = jd.Interpreter(model_content=builder.build(), experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    for i in range(6):
        delegate.kernel.is_ready = i != 4
        interpreter.set_tensor(x, np.full(2, i, np.float32))
        interpreter.invoke()
        np.testing.assert_array_equal(interpreter.get_tensor(y), [2 * i, 2 * i])
    assert (delegate.kernel.evaluated, delegate.kernel.shortened) == (2, 4)
