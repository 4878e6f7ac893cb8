"""What a model keeps belongs to the model: one state that all signatures take and return."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import CallOnceOptions, VarHandleOptions
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.builder import SubgraphBuilder

X = np.float32([1, -2])
FIRST = np.float32([10, 20])


def handle(graph: SubgraphBuilder, name: str, container: str = "") -> int:
    made = graph.tensor((1,), np.dtype("V4"))
    graph.operator("VAR_HANDLE", [], [made], VarHandleOptions(container, name))
    return made


def read(graph: SubgraphBuilder, name: str, result: str, container: str = "") -> int:
    value = graph.tensor((2,), name=result)
    graph.operator("READ_VARIABLE", [handle(graph, name, container)], [value])
    return value


def trained(*, is_initialized: bool = True) -> bytes:
    """Signatures that read w, that add to it, that read it as it is, and one that reads another.

    CALL_ONCE, of the second alone, makes w [10, 20].
    """
    builder = ModelBuilder()
    x, y = builder.input((2,), name="x"), builder.tensor((2,), name="y")
    builder.operator("MUL", [x, read(builder, "w", "read in infer")], [y])
    builder.outputs(y)
    builder.signature("infer", {"x": x}, {"y": y})

    train = builder.subgraph("train")
    if is_initialized:
        train.operator("CALL_ONCE", [], [], CallOnceOptions(init_subgraph_index=4))
    x, y = train.input((2,), name="x"), train.tensor((2,), name="y")
    train.operator("ADD", [x, read(train, "w", "read in train")], [y])
    train.operator("ASSIGN_VARIABLE", [handle(train, "w"), y], [])
    train.outputs(y)
    builder.signature("train", {"step": x}, {"y": y}, subgraph=1)

    weights = builder.subgraph("weights")
    value = read(weights, "w", "read in weights")
    weights.outputs(value)
    builder.signature("weights", {}, {"w": value}, subgraph=2)

    other = builder.subgraph("other")
    value = read(other, "w", "y", container="elsewhere")
    other.outputs(value)
    builder.signature("other", {}, {"w": value}, subgraph=3)

    first = builder.subgraph("initialize")
    if is_initialized:
        first.operator("ASSIGN_VARIABLE", [handle(first, "w"), first.constant(FIRST)], [])
    first.outputs()
    return builder.build()


def test_what_one_signature_assigns_another_reads() -> None:
    interpreter, model = jd.Interpreter(model_content=trained()), jd.load(trained())
    run = {key: interpreter.get_signature_runner(key) for key in ("infer", "train", "weights")}
    (train, _), (infer, _), (weights, _) = map(model.function, ("train", "infer", "weights"))
    state = model.initial_state()
    assert state.keys() == {"w", "elsewhere/w"}
    for _ in range(2):
        want = run["train"](step=X)["y"]
        (got,), state = jax.jit(train)({}, X, state=state)
        np.testing.assert_array_equal(got, want)
        for key, function, inputs in (("infer", infer, {"x": X}), ("weights", weights, {})):
            found, same = function({}, *inputs.values(), state=state)
            np.testing.assert_array_equal(found, list(run[key](**inputs).values()))
            assert same.keys() == state.keys()
            np.testing.assert_array_equal(same["w"], state["w"])
    np.testing.assert_array_equal(state["w"], FIRST + 2 * X)


def test_each_call_without_a_state_begins_anew() -> None:
    model = jd.load(trained())
    for _ in range(2):
        np.testing.assert_array_equal(model(x=X)["y"], FIRST * X)
        np.testing.assert_array_equal(model(step=X)["y"], FIRST + X)
    np.testing.assert_array_equal(model.function("weights")[0]({})[0], FIRST)


def test_states_of_single_signatures_suffice_for_them() -> None:
    model = jd.load(trained())
    assert model.initial_state("train").keys() == {"w"}
    assert model.initial_state("other").keys() == {"elsewhere/w"}
    infer, _ = model.function("infer")
    (y,), _ = infer({}, X, state=model.initial_state("train"))
    np.testing.assert_array_equal(y, FIRST * X)
    with pytest.raises(jd.TensorError, match=r"state has no 'w'.*model.initial_state\(\) returns"):
        infer({}, X, state=model.initial_state("other"))
    with pytest.raises(jd.TensorError, match=r"state\['w'\]: expected the shape \[2\], got \[3\]"):
        infer({}, X, state={"w": jnp.zeros(3)})


def test_transformations_and_batches_pass_the_states_of_others_on() -> None:
    model = jd.load(trained())
    train, _ = model.function("train")

    def step(state: Any, x: jax.Array) -> Any:
        (y,), state = train({}, x, state=state)
        return state, y

    state, _ = jax.lax.scan(step, model.initial_state(), jnp.stack([X, X, X]))
    np.testing.assert_array_equal(state["w"], FIRST + 3 * X)
    slope = jax.grad(lambda s: model.function("infer")[0]({}, X, state=s)[0][0].sum())(state)
    np.testing.assert_array_equal(slope["w"], X)
    batch = model.batched(2)
    (y,), states = batch.function("train")[0]({}, np.stack([X, 2 * X]), state=batch.initial_state())
    np.testing.assert_array_equal(y, [FIRST + X, FIRST + 2 * X])
    np.testing.assert_array_equal(states["w"], y)
    assert states["elsewhere/w"].shape == (2, 2)
    np.testing.assert_array_equal(batch(x=np.stack([X, 2 * X]))["y"], [FIRST * X, FIRST * 2 * X])


def test_what_nothing_assigns_cannot_be_read() -> None:
    model = jd.load(trained(is_initialized=False))
    infer, _ = model.function("infer")
    for call in (lambda: model(x=X), lambda: infer({}, X), lambda: jax.jit(infer)({}, X)):
        with pytest.raises(jd.TensorError, match=r"reads the variable 'w', which has not been"):
            call()
    interpreter = jd.Interpreter(model_content=trained(is_initialized=False))
    with pytest.raises(jd.InterpreterError, match="read before anything was assigned"):
        interpreter.get_signature_runner("infer")(x=X)
    with pytest.raises(jd.UnassignedError, match="reads the variable 'w'"):
        model(step=X)  # it assigns the variable, but reads it before
    _, state = model.function("train")[0]({}, X, state=model.initial_state())
    np.testing.assert_array_equal(infer({}, X, state=state)[0][0], X * X)


def test_variable_tensors_of_two_signatures_have_two_names() -> None:
    """Both are called "memory", and the second's resource variable, too."""
    builder = ModelBuilder()
    graphs = builder, builder.subgraph("second")
    for number, graph in enumerate(graphs):
        x = graph.input((2,), name="x")
        memory = graph.tensor((2,), name="memory", is_variable=True)
        y = graph.tensor((2,), name="y")
        graph.operator("ADD", [x, memory], [y])
        z = graph.tensor((2,), name="z")
        graph.operator("ASSIGN_VARIABLE", [handle(graph, "memory"), y], [])
        graph.operator("MUL", [y, y], [z])
        graph.outputs(z)
        builder.signature(f"s{number}", {f"x{number}": x}, {"z": z}, subgraph=number)
    model = jd.load(builder.build())
    state = model.initial_state()
    assert state.keys() == {"memory", "memory#1", "memory#1.1"}
    given = {**state, "memory#1": np.float32([3, 3]), "memory#1.1": np.float32([5, 5])}
    for number, y in enumerate((X + 3, X + 5)):
        (z,), new = model.function(f"s{number}")[0]({}, X, state=given)
        np.testing.assert_array_equal(z, y * y)
        np.testing.assert_array_equal(new["memory"], y)
