"""Delegates written in Python, in our interpreter."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.options import NoOptions
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.simple_delegate import Node
from jaxdelegate.testing import ModelBuilder, assert_close


def tutorial_delegate() -> type[jd.SimpleDelegate]:
    """MyDelegate of docs/api/extend.md."""
    text = (Path(__file__).parents[1] / "docs" / "api" / "extend.md").read_text()
    (code,) = re.findall(r"```python\n(import numpy as np\n.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "extend.md", "exec"), names)
    return names["MyDelegate"]


def add_mul_sub() -> bytes:
    """((x + y) * y) - x."""
    builder = ModelBuilder()
    x, y = builder.input((4,), np.float32, "x"), builder.input((4,), np.float32, "y")
    a, b, c = (builder.tensor((4,)) for _ in range(3))
    builder.operator("ADD", [x, y], [a])
    builder.operator("MUL", [a, y], [b])
    builder.operator("SUB", [b, x], [c])
    builder.outputs(c)
    return builder.build()


def run(*delegates: jd.SimpleDelegate) -> np.ndarray:
    interpreter = jd.Interpreter(model_content=add_mul_sub(), experimental_delegates=delegates)
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, np.arange(4, dtype=np.float32))
    interpreter.set_tensor(1, np.full(4, 3, np.float32))
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


WANTED = (np.arange(4) + 3) * 3 - np.arange(4)


def test_the_tutorial_delegate() -> None:
    delegate = tutorial_delegate()()
    assert_close([run(delegate)], [WANTED.astype(np.float32)])
    report = delegate.report()
    assert [n.delegated for n in report.nodes] == [True, False, True]
    assert report.nodes[1].reason == "not supported by MyDelegate"
    assert "2 operations will run on MyDelegate" in report.summary()


def test_two_delegates_in_one_interpreter() -> None:
    mine, xla = tutorial_delegate()(), jd.JaxDelegate(min_gain=0)
    assert_close([run(mine, xla)], [WANTED.astype(np.float32)])
    assert [n.delegated for n in xla.report().nodes] == [False, True, False]
    assert xla.report().nodes[0].reason == "taken by MyDelegate"


def test_partition_options_of_a_simple_delegate() -> None:
    from jaxdelegate.simple_delegate import SimpleDelegateOptions

    class Small(tutorial_delegate()):  # type: ignore[misc]
        options = SimpleDelegateOptions(max_delegated_partitions=1)

    delegate = Small()
    assert_close([run(delegate)], [WANTED.astype(np.float32)])
    assert len(delegate.report().delegated) == 1


def test_an_error_in_a_kernel_reaches_the_caller() -> None:
    class Kernel(jd.SimpleDelegateKernel):
        def init(self, context: Any, params: Any) -> None:
            pass

        def prepare(self, _context: Any, _node: Any) -> None:
            raise RuntimeError("no such luck")

        def eval(self, context: Any, node: Any) -> None:
            pass

    class Broken(tutorial_delegate()):  # type: ignore[misc]
        def create_kernel(self) -> Kernel:
            return Kernel()

    with pytest.raises(RuntimeError, match="no such luck"):
        run(Broken())


def test_a_node_has_the_specs_of_its_tensors() -> None:
    x, y, inner = (TensorSpec(n, (2,), np.dtype(np.float32)) for n in ("x", "y", "inner"))
    operator = Operator(
        index=0,
        name="LSTM",
        builtin_code=16,
        inputs=(4, -1),
        outputs=(7,),
        intermediates=(9,),
        options=NoOptions(),
    )
    node = Node(operator, (x, None), (y,), (inner,))
    assert node.specs == {4: x, 7: y, 9: inner}
    assert Node(operator, (x, None), (y,)).specs == {4: x, 7: y}  # a host may not know them
