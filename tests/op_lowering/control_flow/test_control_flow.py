"""Operators that call subgraphs: delegated, by the reference, and the expected results."""

from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import (
    AddOptions,
    CallOptions,
    IfOptions,
    MulOptions,
    Options,
    StablehloCaseOptions,
    StablehloWhileOptions,
    WhileOptions,
)
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.running import run_once

X = np.array([1.5, -2.0, 4.0], np.float32)


def branches(name: str, options: Options, dtype: object, count: int) -> bytes:
    """`name` chooses among subgraphs 1..count by its first input; the n-th multiplies by n + 2."""
    builder = ModelBuilder()
    which, x, y = builder.input((), dtype), builder.input((3,)), builder.tensor((3,))
    builder.operator(name, [which, x], [y], options)
    builder.outputs(y)
    for n in range(count):
        _scaled(builder, n + 2)
    return builder.build()


def _scaled(builder: ModelBuilder, factor: float) -> None:
    graph = builder.subgraph(f"times_{factor}")
    x, y = graph.input((3,)), graph.tensor((3,))
    graph.operator("MUL", [x, graph.constant(np.float32(factor))], [y], MulOptions())
    graph.outputs(y)


def loop(name: str, options: Options) -> bytes:
    """Doubles x as often as i is below 5."""
    builder = ModelBuilder()
    i, x = builder.input((), np.int32), builder.input((3,))
    last, y = builder.tensor((), np.int32), builder.tensor((3,))
    builder.operator(name, [i, x], [last, y], options)
    builder.outputs(last, y)
    graph = builder.subgraph("condition")
    i, _x, goes_on = graph.input((), np.int32), graph.input((3,)), graph.tensor((), np.bool_)
    graph.operator("LESS", [i, graph.constant(np.int32(5))], [goes_on])
    graph.outputs(goes_on)
    graph = builder.subgraph("body")
    i, x = graph.input((), np.int32), graph.input((3,))
    following, doubled = graph.tensor((), np.int32), graph.tensor((3,))
    graph.operator("ADD", [i, graph.constant(np.int32(1))], [following], AddOptions())
    graph.operator("MUL", [x, graph.constant(np.float32(2))], [doubled], MulOptions())
    graph.outputs(following, doubled)
    return builder.build()


def call() -> bytes:
    builder = ModelBuilder()
    x, y = builder.input((3,)), builder.tensor((3,))
    builder.operator("CALL", [x], [y], CallOptions(1))
    builder.outputs(y)
    _scaled(builder, 3)
    return builder.build()


IF = branches("IF", IfOptions(1, 2), np.bool_, 2)
CASE = branches("STABLEHLO_CASE", StablehloCaseOptions((1, 2, 3)), np.int32, 3)
WHILE = loop("WHILE", WhileOptions(1, 2))
STABLEHLO_WHILE = loop("STABLEHLO_WHILE", StablehloWhileOptions(1, 2))


@pytest.mark.parametrize(
    ("model", "first", "want"),
    [
        (IF, np.bool_(True), [2 * X]),
        (IF, np.bool_(False), [3 * X]),
        (CASE, np.int32(0), [2 * X]),
        (CASE, np.int32(1), [3 * X]),
        (CASE, np.int32(2), [4 * X]),
        (CASE, np.int32(7), [4 * X]),  # out of range: the last one, as StableHLO has it
        (CASE, np.int32(-1), [4 * X]),
        (WHILE, np.int32(2), [np.int32(5), 8 * X]),
        (WHILE, np.int32(5), [np.int32(5), X]),  # the body never runs
        (STABLEHLO_WHILE, np.int32(4), [np.int32(5), 2 * X]),
        (call(), None, [3 * X]),
    ],
)
def test_the_right_subgraph_runs_as_often_as_it_must(
    model: bytes, first: np.generic | None, want: list[np.ndarray]
) -> None:
    inputs = [X] if first is None else [np.asarray(first), X]
    delegate = jd.JaxDelegate(platform="cpu", require_full_delegation=True)
    for delegates in ([], [delegate]):
        interpreter = jd.Interpreter(model_content=model, experimental_delegates=delegates)
        for got, expected in zip(run_once(interpreter, inputs), want, strict=True):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("options", [WhileOptions, StablehloWhileOptions])
@pytest.mark.parametrize("delegates", [list, lambda: [jd.JaxDelegate()]], ids=["host", "delegate"])
def test_a_condition_that_is_not_a_boolean_is_refused(
    options: type[WhileOptions | StablehloWhileOptions], delegates: Any
) -> None:
    name = "WHILE" if options is WhileOptions else "STABLEHLO_WHILE"
    content = loop(name, options(2, 2))
    interpreter = jd.Interpreter(model_content=content, experimental_delegates=delegates())
    message = "the condition must be one boolean, subgraph 2 returns int32, float32"
    with pytest.raises(jd.InterpreterError, match=message):
        interpreter.allocate_tensors()
