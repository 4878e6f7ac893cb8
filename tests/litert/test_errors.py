"""Python exceptions become errors of the stock interpreter that name the cause."""

import gc
import logging
import weakref
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

import jaxdelegate as jd
from jaxdelegate.simple_delegate import SimpleDelegateOptions
from jaxdelegate.testing import assert_close
from jaxdelegate.testing.running import run_once

Stock = Callable[..., Interpreter]
X, Y = np.arange(4, dtype=np.float32), np.full(4, 3, np.float32)


class Failing(jd.SimpleDelegate):
    """Delegates ADD and SUB; raises `error` in the named step."""

    name = "Failing"

    def __init__(self, step: str, error: BaseException) -> None:
        super().__init__()
        self.step, self.error = step, error

    def fail(self, step: str) -> None:
        if step == self.step:
            raise self.error

    def initialize(self, context: Any) -> None:  # noqa: ARG002
        self.fail("initialize")

    def is_node_supported(self, node: Any) -> bool:
        self.fail("is_node_supported")
        return node.name in ("ADD", "SUB")

    def on_partitioned(self, report: Any) -> None:
        super().on_partitioned(report)
        self.fail("on_partitioned")

    def create_kernel(self) -> "FailingKernel":
        self.fail("create_kernel")
        return FailingKernel(self)


class FailingKernel(jd.SimpleDelegateKernel):
    def __init__(self, delegate: Failing) -> None:
        self.delegate = delegate

    def init(self, context: Any, params: Any) -> None:  # noqa: ARG002
        self.delegate.fail("init")

    def prepare(self, context: Any, node: Any) -> None:  # noqa: ARG002
        self.delegate.fail("prepare")

    def eval(self, context: Any, node: Any) -> None:
        self.delegate.fail("eval")
        for n in node.nodes:
            a, b = (context.array(i) for i in n.operator.inputs)
            context.assign(n.operator.outputs[0], a + b if n.name == "ADD" else a - b)


STEPS = {
    "initialize": "Failing: selecting operators: OSError: no such luck",
    "is_node_supported": "Failing: selecting operators: OSError: no such luck",
    "on_partitioned": "Failing: selecting operators: OSError: no such luck",
    "create_kernel": "Failing: creating a kernel: OSError: no such luck",
    "init": "Failing: creating a kernel: OSError: no such luck",
    "prepare": "Failing: prepare of ADD #0: OSError: no such luck",
    "eval": "Failing: eval of ADD #0: OSError: no such luck",
}


@pytest.mark.parametrize("step", STEPS)
def test_every_step_is_guarded(stock: Stock, add_mul_sub: bytes, step: str) -> None:
    delegate = Failing(step, OSError("no such luck"))
    with pytest.raises(RuntimeError) as caught:
        run_once(stock(add_mul_sub, [delegate]), [X, Y])
    assert STEPS[step] in str(caught.value)
    assert delegate.last_error == STEPS[step]


class MuteError(Exception):
    def __str__(self) -> str:
        raise OSError("not even that")


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(3), MemoryError(), KeyError(2), MuteError()]
)
def test_every_exception_is_caught(stock: Stock, add_mul_sub: bytes, error: BaseException) -> None:
    interpreter = stock(add_mul_sub, [Failing("eval", error)])
    with pytest.raises(RuntimeError, match=type(error).__name__):
        run_once(interpreter, [X, Y])


def test_an_interpreter_works_after_an_error(stock: Stock, add_mul_sub: bytes) -> None:
    delegate = Failing("eval", ValueError("once"))
    interpreter = stock(add_mul_sub, [delegate])
    for _ in range(2):
        with pytest.raises(RuntimeError, match="once"):
            run_once(interpreter, [X, Y])
    delegate.step = "none"
    assert_close(run_once(interpreter, [X, Y]), [(X + Y) * Y - X])


@pytest.mark.skipif(
    version("ai-edge-litert").startswith("1."), reason="1.4 reports it at allocate_tensors only"
)
def test_a_failed_application_leaves_the_graph_as_it_was(stock: Stock, add_mul_sub: bytes) -> None:
    interpreter = stock(add_mul_sub)
    delegate = Failing("create_kernel", ValueError("no"))
    with pytest.raises(RuntimeError, match="Restored original execution plan"):
        interpreter._interpreter.ModifyGraphWithDelegate(delegate._get_native_delegate_pointer())
    assert_close(run_once(interpreter, [X, Y]), [(X + Y) * Y - X])


@pytest.mark.parametrize("text", ["100% %s %n of it", "a\0b", "naïve ☃ " * 300, "%" * 3000])
def test_any_text_can_be_a_message(stock: Stock, add_mul_sub: bytes, text: str) -> None:
    delegate = Failing("prepare", ValueError(text))
    with pytest.raises(RuntimeError) as caught:
        run_once(stock(add_mul_sub, [delegate]), [X, Y])
    shown = text.replace("\0", "?")
    assert f"ValueError: {shown[:100]}" in str(caught.value)
    assert delegate.last_error == f"Failing: prepare of ADD #0: ValueError: {text}"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros(3, np.float32), r"tensor 2 't2': expected the shape \[4\], got \[3\]"),
        (np.zeros(4, np.int32), "tensor 2 't2': expected float32, got int32"),
    ],
)
def test_wrong_results_are_refused(
    stock: Stock, add_mul_sub: bytes, value: np.ndarray, words: str
) -> None:
    class Wrong(FailingKernel):
        def eval(self, context: Any, node: Any) -> None:
            context.assign(node.outputs[0], value)

    class Delegate(Failing):
        def create_kernel(self) -> Wrong:
            return Wrong(self)

    interpreter = stock(add_mul_sub, [Delegate("none", ValueError())])
    with pytest.raises(RuntimeError, match=words):
        run_once(interpreter, [X, Y])


def test_no_traceback_is_kept(stock: Stock, add_mul_sub: bytes) -> None:
    class Held:
        pass

    held = Held()
    alive = weakref.ref(held)

    class Holding(Failing):
        def fail(self, step: str, local: Any = None) -> None:
            local = alive()  # in the frame that raises
            if step == "eval":
                raise ValueError(f"failed in {type(local).__name__}'s frame")

    delegate = Holding("", ValueError())
    interpreter = stock(add_mul_sub, [delegate])
    with pytest.raises(RuntimeError, match="failed in Held's frame"):
        run_once(interpreter, [X, Y])
    del held
    gc.collect()
    assert alive() is None


def test_full_delegation_can_be_required(stock: Stock, add_mul_sub: bytes) -> None:
    delegate = jd.JaxDelegate(require_full_delegation=True, last_delegate_node_index=1)
    with pytest.raises(RuntimeError, match="1 of 3 operators cannot be delegated"):
        stock(add_mul_sub, [delegate])
    assert "SUB: outside of first_delegate_node_index" in str(delegate.last_error)
    stock(add_mul_sub, [jd.JaxDelegate(require_full_delegation=True)])


def test_fallback_on_error(
    stock: Stock, add_mul_sub: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    class Falling(Failing):
        options = SimpleDelegateOptions(fallback_on_error=True)

    delegate = Falling("prepare", jd.LoweringError("node 0 (ADD): no such luck"))
    with caplog.at_level(logging.WARNING, "jaxdelegate"):
        interpreter = stock(add_mul_sub, [delegate])
        assert_close(run_once(interpreter, [X, Y]), [(X + Y) * Y - X])
    warning = "Failing: node 0 (ADD): no such luck; the partition runs on the CPU"
    assert warning in caplog.messages
    delegate.step, delegate.error = "eval", ValueError("its own kernel, for another shape")
    with pytest.raises(RuntimeError, match="its own kernel"):
        run_once(interpreter, [X[:3], Y[:3]])


def test_a_dropped_delegate_is_an_error_not_a_crash(stock: Stock, add_mul_sub: bytes) -> None:
    delegates = [Failing("none", ValueError())]
    interpreter = stock(add_mul_sub, [])
    address = delegates[0]._get_native_delegate_pointer()
    native = vars(delegates[0])["_native"]  # keeps the structure, not its owner
    delegates.clear()
    gc.collect()
    with pytest.raises(RuntimeError, match="the delegate was dropped while an interpreter used it"):
        interpreter._interpreter.ModifyGraphWithDelegate(address)
    assert native.owner() is None
