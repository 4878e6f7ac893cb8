"""`tf.lite`'s interpreter as the host; `nox -s tf_lite` installs the requirements."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.measuring.tolerance import NETWORK, assert_close
from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    AddOptions,
    MulOptions,
    UnidirectionalSequenceLSTMOptions,
)
from jaxdelegate.simple_delegate import Node
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.running import random_inputs, run_once

tensorflow = pytest.importorskip("tensorflow", reason="tensorflow-cpu >= 2.19 is not installed")
pytestmark = pytest.mark.litert


def host(content: bytes, *delegates: jd.SimpleDelegate) -> Any:
    kinds = tensorflow.lite.experimental.OpResolverType
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that tf.lite has moved to ai_edge_litert
        return tensorflow.lite.Interpreter(
            model_content=content,
            experimental_delegates=list(delegates) or None,
            experimental_op_resolver_type=kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        )


def compared(content: bytes) -> jd.JaxDelegate:
    """Check that runs with and without a delegate agree; returns the delegate."""
    delegate = jd.JaxDelegate()
    plain, delegated = host(content), host(content, delegate)
    arrays = random_inputs(plain.get_input_details())
    for _ in range(2):  # the second invoke continues with the state of the first
        assert_close(run_once(delegated, arrays), run_once(plain, arrays), tolerance=NETWORK)
    assert delegate.last_error is None
    return delegate


def sums() -> bytes:
    builder = ModelBuilder()
    x, y = builder.input((2, 3), np.float32, "x"), builder.input((1, 3), np.float32, "y")
    a, b = builder.tensor((2, 3)), builder.tensor((2, 3))
    builder.operator("ADD", [x, y], [a], AddOptions())
    builder.operator("MUL", [a, y], [b], MulOptions())
    builder.outputs(b)
    return builder.build()


def lstm() -> bytes:
    """One layer, batch 2, 4 steps of 3 values, 5 cells; its state is kept between invokes."""
    builder, random = ModelBuilder(), np.random.default_rng(0)

    def weights(*shape: int) -> int:
        return builder.constant(random.normal(0, 0.3, shape).astype(np.float32))

    x = builder.input((2, 4, 3), np.float32, "x")
    inputs = [x, *(weights(5, 3) for _ in range(4)), *(weights(5, 5) for _ in range(4))]
    inputs += [-1] * 3 + [weights(5) for _ in range(4)] + [-1] * 2
    inputs += [builder.tensor((2, 5), is_variable=True) for _ in range(2)] + [-1] * 4
    y = builder.tensor((2, 4, 5))
    tanh = ActivationFunctionType.TANH
    options = UnidirectionalSequenceLSTMOptions(fused_activation_function=tanh)
    builder.operator("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [y], options)
    builder.outputs(y)
    return builder.build()


@pytest.mark.parametrize(
    "make", [sums, lstm, lambda: mobilenet_v1(size=64, width=0.25)], ids=["sums", "lstm", "network"]
)
def test_models_agree_and_are_delegated_whole(make: Callable[[], bytes]) -> None:
    report = compared(make()).report()
    assert report.left == ()
    assert report.n_partitions == 1


def run(interpreter: Any, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    for detail, array in zip(interpreter.get_input_details(), arrays, strict=True):
        interpreter.resize_tensor_input(detail["index"], array.shape)
    return run_once(interpreter, arrays)


@pytest.mark.parametrize("batches", [(1, 8, 3), (8, 1, 8)], ids=str)
def test_batches_change(batches: tuple[int, ...]) -> None:
    interpreter = host(sums(), jd.JaxDelegate())
    for n in batches:
        x, y = np.full((n, 3), 2, np.float32), np.array([[1, 2, 3]], np.float32)
        assert_close(run(interpreter, [x, y]), [(x + y) * y])


def test_an_error_names_the_operator() -> None:
    class Failing(jd.SimpleDelegate):
        name = "Failing"

        def is_node_supported(self, node: Node) -> bool:
            raise ValueError(f"cannot think about {node.name}")

        def create_kernel(self) -> jd.SimpleDelegateKernel:
            raise ValueError("not requested")

    with pytest.raises((RuntimeError, ValueError), match="cannot think about ADD"):
        run_once(host(sums(), Failing()), [np.ones((2, 3), np.float32), np.ones((1, 3), "f")])
