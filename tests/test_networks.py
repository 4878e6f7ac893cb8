"""Whole small models have LiteRT's results in every engine."""

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from ai_edge_litert.interpreter import OpResolverType

import jaxdelegate as jd
from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.measuring.tolerance import NETWORK
from jaxdelegate.testing import assert_close


def run(interpreter: jd.Interpreter | StockInterpreter, x: np.ndarray) -> np.ndarray:
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return np.array(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))


@pytest.fixture(scope="module")
def content() -> bytes:
    return mobilenet_v1(size=64, width=0.5)


@pytest.mark.litert
@pytest.mark.parametrize("batch", [1, 3])
def test_mobilenet_v1(content: bytes, batch: int, rng: np.random.Generator) -> None:
    x = rng.uniform(-1, 1, (batch, 64, 64, 3)).astype(np.float32)
    kind = OpResolverType.BUILTIN_REF
    stock = StockInterpreter(model_content=content, experimental_op_resolver_type=kind)
    reference = jd.Interpreter(model_content=content)
    delegate = jd.JaxDelegate(require_full_delegation=True)
    delegated = jd.Interpreter(model_content=content, experimental_delegates=[delegate])
    for interpreter in (stock, reference, delegated):
        interpreter.resize_tensor_input(0, x.shape)
    want = run(stock, x)
    for got in (run(reference, x), run(delegated, x), np.asarray(jd.load(content)(x)[0])):
        assert_close([got], [want], tolerance=NETWORK)


def test_every_intermediate_of_a_delegated_network(
    content: bytes, rng: np.random.Generator
) -> None:
    x = rng.uniform(-1, 1, (1, 64, 64, 3)).astype(np.float32)
    interpreters = [
        jd.Interpreter(
            model_content=content,
            experimental_delegates=delegates,
            experimental_preserve_all_tensors=True,
        )
        for delegates in (None, [jd.JaxDelegate()])
    ]
    for interpreter in interpreters:
        run(interpreter, x)
    for detail in interpreters[0].get_tensor_details():
        want, got = (i.get_tensor(detail["index"]) for i in interpreters)
        assert_close([got], [want], tolerance=NETWORK)


def test_the_builder_is_reproducible() -> None:
    assert mobilenet_v1(size=32, width=0.25) == mobilenet_v1(size=32, width=0.25)
    assert mobilenet_v1(size=32, width=0.25) != mobilenet_v1(size=32, width=0.25, seed=1)
