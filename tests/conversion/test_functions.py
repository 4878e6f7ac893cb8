"""The numbers of functions in stock LiteRT, our interpreter and `load` are those of JAX."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from ai_edge_litert.interpreter import OpResolverType

import jaxdelegate
from jaxdelegate.model.open_models import open_model
from tests.conversion.functions import FUNCTIONS, wide_integers

TOLERANCE = 1e-5
# The resolver of reference kernels does not have these operators.
NOT_IN_REFERENCE = {"CEIL", "ROUND", "ELU", "CUMSUM", "STABLEHLO_SCATTER", "STABLEHLO_AND"}
KERNELS = {
    "reference": OpResolverType.BUILTIN_REF,
    "optimized": OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    "xnnpack": OpResolverType.AUTO,
}


def operators(content: bytes) -> list[str]:
    return [op.name for s in open_model(content).subgraphs for op in s.operators]


def inputs_of(content: bytes, examples: Any) -> dict[str, np.ndarray]:
    names = list(open_model(content).signatures[0].inputs)
    return dict(zip(names, map(np.asarray, jax.tree.leaves(examples)), strict=True))


def expected(function: Callable[..., Any], examples: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(function)(*examples))]


def compare(got: Any, want: list[np.ndarray], names: list[str]) -> None:
    assert len(names) == len(want)
    for name, value in zip(names, want, strict=True):
        result = np.asarray(got[name])
        assert result.shape == value.shape, name
        assert result.dtype == value.dtype, name
        rounding = TOLERANCE if value.dtype.kind == "f" else 0
        np.testing.assert_allclose(result, value, rtol=rounding, atol=rounding, err_msg=name)


@pytest.fixture(params=FUNCTIONS, scope="module")
def written(request: pytest.FixtureRequest) -> tuple[bytes, Any, list[np.ndarray], list[str]]:
    function, examples = FUNCTIONS[request.param]
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        content = jaxdelegate.from_jax(function, *examples)
        want = expected(function, examples)
    names = list(open_model(content).signatures[0].outputs)
    return content, inputs_of(content, examples), want, names


@pytest.mark.litert
@pytest.mark.parametrize("kernels", KERNELS)
def test_stock_interpreters(written: Any, kernels: str) -> None:
    content, inputs, want, names = written
    if kernels == "reference" and NOT_IN_REFERENCE.intersection(operators(content)):
        pytest.skip("the resolver of reference kernels does not have an operator")
    stock = StockInterpreter(model_content=content, experimental_op_resolver_type=KERNELS[kernels])
    compare(stock.get_signature_runner()(**inputs), want, names)


def test_interpreter(written: Any) -> None:
    content, inputs, want, names = written
    compare(
        jaxdelegate.Interpreter(model_content=content).get_signature_runner()(**inputs), want, names
    )


def test_load(written: Any) -> None:
    content, inputs, want, names = written
    compare(jaxdelegate.load(content)(**inputs), want, names)


@pytest.mark.litert
def test_integers_of_64_bits() -> None:
    with jax.enable_x64(True):
        a, b = np.array([5, -7, 2**40 + 3, -(2**41) - 5]), np.array([3, 2, -7, 10])
        content = jaxdelegate.from_jax(wide_integers, a, b)
        want = expected(wide_integers, (a, b))
    names = list(open_model(content).signatures[0].outputs)
    runner = StockInterpreter(model_content=content).get_signature_runner()
    compare(runner(**inputs_of(content, (a, b))), want, names)
