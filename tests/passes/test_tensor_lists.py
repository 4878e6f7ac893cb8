"""Tensor lists that a loop's body writes by slices of run-time size."""

import jax
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.model.records import read_model
from jaxdelegate.op_lowering.options import (
    AddOptions,
    ConcatenationOptions,
    MulOptions,
    ReshapeOptions,
    WhileOptions,
)
from jaxdelegate.passes.tensor_lists import with_list_updates
from jaxdelegate.testing import ModelBuilder

STEPS, WIDTH = 5, 3


def scan(*, step: int = 1, start: int = 0, axis: int = 0, last: int = -1) -> bytes:
    """state = 2 * state + x[i]; list[i] = state: as the converter writes a recurrent layer."""
    builder = ModelBuilder()
    x = builder.input((STEPS, WIDTH), name="x")
    zero = builder.constant(np.int32(0))
    items = builder.constant(np.full((STEPS, 1, WIDTH), 7, np.float32))
    state = builder.constant(np.zeros((1, WIDTH), np.float32))
    i = builder.tensor((), np.int32)
    left, y = builder.tensor((1, WIDTH)), builder.tensor((STEPS, 1, WIDTH))
    xs = builder.tensor((STEPS, WIDTH))
    builder.operator("WHILE", [zero, items, state, x], [i, y, left, xs], WhileOptions(1, 2))
    builder.outputs(y, left)
    _condition(builder)
    _body(builder, step, start, axis, last)
    return builder.build()


def _condition(builder: ModelBuilder) -> None:
    graph = builder.subgraph("condition")
    i = graph.input((), np.int32)
    for shape in ((STEPS, 1, WIDTH), (1, WIDTH), (STEPS, WIDTH)):
        graph.input(shape)
    goes_on = graph.tensor((), np.bool_)
    graph.operator("LESS", [i, graph.constant(np.int32(STEPS))], [goes_on])
    graph.outputs(goes_on)


def _body(builder: ModelBuilder, step: int, start: int, axis: int, last: int) -> None:
    graph = builder.subgraph("body")
    i, items = graph.input((), np.int32), graph.input((STEPS, 1, WIDTH))
    state, x = graph.input((1, WIDTH)), graph.input((STEPS, WIDTH))
    following, row, doubled, new = (
        graph.tensor((), np.int32), *(graph.tensor((1, WIDTH)) for _ in range(3))
    )  # fmt: skip
    graph.operator("ADD", [i, graph.constant(np.int32(step))], [following], AddOptions())
    at = graph.tensor((1,), np.int32)
    one = graph.constant(np.array([1], np.int32))
    graph.operator("RESHAPE", [i, one], [at], ReshapeOptions())
    graph.operator("GATHER", [x, at], [row])
    two = graph.constant(np.float32(2))
    graph.operator("MUL", [state, two], [doubled], MulOptions())
    graph.operator("ADD", [doubled, row], [new], AddOptions())
    rest = graph.constant(np.full(3, -1, np.int32))
    nowhere = graph.constant(np.full(3, start, np.int32))
    before = _slice(graph, items, nowhere, _vector(graph, at, last))
    behind_at = graph.tensor((1,), np.int32)
    graph.operator("RESHAPE", [following, one], [behind_at], ReshapeOptions())
    behind = _slice(graph, items, _vector(graph, behind_at, 0), rest)
    element, written = graph.tensor((1, 1, WIDTH)), graph.tensor((STEPS, 1, WIDTH))
    shape = graph.constant(np.array([1, 1, WIDTH], np.int32))
    graph.operator("RESHAPE", [new, shape], [element], ReshapeOptions())
    graph.operator(
        "CONCATENATION", [before, element, behind], [written], ConcatenationOptions(axis)
    )
    graph.outputs(following, written, new, x)


def _vector(graph: object, first: int, rest: int) -> int:
    whole = graph.tensor((3,), np.int32)
    others = graph.constant(np.full(2, rest, np.int32))
    graph.operator("CONCATENATION", [first, others], [whole], ConcatenationOptions())
    return whole


def _slice(graph: object, items: int, begin: int, size: int) -> int:
    part = graph.tensor((1, 1, WIDTH))
    graph.operator("SLICE", [items, begin, size], [part])
    return part


def expected(x: np.ndarray) -> np.ndarray:
    states, state = [], np.zeros((1, WIDTH), np.float32)
    for row in x:
        state = 2 * state + row
        states.append(state)
    return np.stack(states)


X = np.random.default_rng(0).normal(size=(STEPS, WIDTH)).astype(np.float32)


@pytest.mark.parametrize("delegates", [0, 1], ids=["reference", "delegated"])
def test_the_loop_is_delegated_whole(delegates: int) -> None:
    delegate = jd.JaxDelegate()
    interpreter = jd.Interpreter(
        model_content=scan(), experimental_delegates=[delegate][:delegates] or None
    )
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, X)
    interpreter.invoke()
    y = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    np.testing.assert_allclose(y, expected(X), rtol=1e-6)
    if delegates:
        assert [n.op for n in delegate.report().delegated] == ["WHILE"]


def test_as_a_function_it_has_a_gradient_of_its_first_step() -> None:
    apply, params = jd.load(scan()).function()
    (y, _) = jax.jit(apply)(params, X)
    np.testing.assert_allclose(y, expected(X), rtol=1e-6)


def body(**changes: int) -> list[str]:
    return [o.name for o in with_list_updates(read_model(scan(**changes)).subgraphs[2]).operators]


def test_only_the_update_is_left() -> None:
    assert body() == [
        "ADD", "RESHAPE", "GATHER", "MUL", "ADD", "CONCATENATION", "RESHAPE",
        "DYNAMIC_UPDATE_SLICE",
    ]  # fmt: skip


@pytest.mark.parametrize("changes", [{"step": 2}, {"start": 1}, {"axis": 1}, {"last": 1}], ids=str)
def test_other_slices_stay_as_they_are(changes: dict[str, int]) -> None:
    assert "DYNAMIC_UPDATE_SLICE" not in body(**changes)


def test_a_graph_without_lists_is_itself() -> None:
    subgraph = read_model(scan()).subgraphs[1]
    assert with_list_updates(subgraph) is subgraph
