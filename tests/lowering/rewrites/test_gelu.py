"""Fusion of GELU: the forms that are matched, and others that only look similar."""

import math
from typing import Any

import numpy as np
import pytest

from jaxdelegate.compile.precision_policy import emulated_policy
from jaxdelegate.op_lowering.options import ActivationFunctionType, AddOptions, GeluOptions
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.testing import assert_close

SLOPE = math.sqrt(2 / math.pi)
ALL = ["fuse_gelu"]


def as_jax(g: Any, x: int, half: float = 0.5, slope: float = SLOPE, cubic: float = 0.044715) -> int:
    cube = g("MUL", g("MUL", x, x), x)
    t = g("TANH", g("MUL", g("ADD", x, g("MUL", cube, cubic)), slope))
    return g("MUL", x, g("MUL", g("ADD", t, 1.0), half))


def as_keras(g: Any, x: int) -> int:
    inner = g("MUL", SLOPE, g("ADD", g("MUL", 0.044715, g("POW", x, 3.0)), x))
    return g("MUL", g("MUL", 0.5, x), g("ADD", 1.0, g("TANH", inner)))


def factored(g: Any, x: int) -> int:
    inner = g("MUL", g("MUL", x, SLOPE), g("ADD", 1.0, g("MUL", 0.044715, g("MUL", x, x))))
    return g("MUL", g("ADD", g("TANH", inner), 1.0), g("MUL", x, 0.5))


def multiplied_out(g: Any, x: int) -> int:
    cubic = g("MUL", g("MUL", x, 0.044715 * SLOPE), g("SQUARE", x))
    inner = g("SUB", cubic, g("NEG", g("MUL", x, SLOPE)))
    half = g("DIV", x, 2.0)
    return g("ADD", half, g("MUL", g("TANH", inner), half))


@pytest.mark.parametrize("write", [as_jax, as_keras, factored, multiplied_out])
def test_it_is_found_however_it_is_written(write: Any, graph: Any, lowered: Any) -> None:
    x = graph("ADD", graph.input(3, 40), graph.values(40))  # x is arithmetic itself
    content = graph.content(write(graph, x))
    partition, got = lowered(content, ALL, spread=3.0)
    assert [s.operator.name for s in partition.operators] == ["ADD", "GELU"]
    assert partition.operators[1].operator.options == GeluOptions(approximate=True)
    assert partition.operators[1].name in ("ADD", "MUL")  # profiles speak of the file's operator
    assert_close(got, lowered(content, spread=3.0)[1])


@pytest.mark.parametrize("write", [as_jax, as_keras, factored, multiplied_out])
def test_in_float16_less_is_rounded(write: Any, graph: Any, lowered: Any) -> None:
    """One rounding, of the result, in place of one after each operator."""
    content = graph.content(graph("ABS", write(graph, graph.input(3, 40))))
    half = LoweringContext(precision=emulated_policy("float16"))
    (want,), (apart,), (fused,) = (
        lowered(content, names, c)[1]
        for names, c in (([], LoweringContext()), ([], half), (ALL, half))
    )
    assert np.abs(fused - want).max() < np.abs(apart - want).max()


@pytest.mark.parametrize(
    "changed", [{"half": 0.51}, {"slope": 0.8}, {"cubic": 0.0447}], ids=lambda c: next(iter(c))
)
def test_other_constants_stay(changed: dict[str, float], graph: Any, lowered: Any) -> None:
    content = graph.content(as_jax(graph, graph.input(3, 40), **changed))
    assert len(lowered(content, ALL)[0].operators) == 9


def test_what_else_is_read_stays(graph: Any, lowered: Any) -> None:
    x = graph.input(3, 40)
    t = graph(
        "TANH", graph("MUL", SLOPE, graph("ADD", x, graph("MUL", 0.044715, graph("POW", x, 3.0))))
    )
    y = graph("MUL", graph("MUL", 0.5, x), graph("ADD", 1.0, t))
    assert len(lowered(graph.content(y, t), ALL)[0].operators) == 8


def test_another_gated_tensor_stays(graph: Any, lowered: Any) -> None:
    x, z = graph.input(3, 40), graph.input(3, 40)
    inner = graph("MUL", SLOPE, graph("ADD", x, graph("MUL", 0.044715, graph("POW", x, 3.0))))
    y = graph("MUL", graph("MUL", 0.5, z), graph("ADD", 1.0, graph("TANH", inner)))
    assert len(lowered(graph.content(y), ALL)[0].operators) == 8


def test_an_activation_between_stays(graph: Any, lowered: Any) -> None:
    x = graph.input(3, 40)
    inner = graph("MUL", SLOPE, graph("ADD", x, graph("MUL", 0.044715, graph("POW", x, 3.0))))
    relu = AddOptions(ActivationFunctionType.RELU6)
    y = graph("MUL", graph("MUL", 0.5, x), graph("ADD", 1.0, graph("TANH", inner), options=relu))
    assert len(lowered(graph.content(y), ALL)[0].operators) == 8


def test_a_constant_that_changes_the_shape_stays(graph: Any, lowered: Any) -> None:
    x = graph.input(3, 40)
    content = graph.content(as_jax(graph, x, half=np.full((1, 1, 1), 0.5, np.float32)))  # type: ignore[arg-type]
    assert len(lowered(content, ALL)[0].operators) == 9
