"""Interpreters whose plan is one small program: the way without XLA's runtime, and out of it."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import (
    CallOnceOptions,
    VarHandleOptions,
)
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.thunks import calls
from tests.support.recurrent import remembering

pytestmark = pytest.mark.usefixtures("built")
HANDLE = np.dtype("V4")
OFTEN = 5  # invokes, after which there is a shortcut


@pytest.fixture(autouse=True)
def quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Direct calls are taken to be quicker than XLA's."""
    monkeypatch.setattr(calls, "_seconds", lambda _: 0.0)


def plain() -> bytes:
    """y = x * 3 + 1, of [2, 3]."""
    builder = ModelBuilder()
    x = builder.input((2, 3), np.float32, "x")
    half, y = builder.tensor((2, 3)), builder.tensor((2, 3), name="y")
    builder.operator("MUL", [x, builder.constant(np.float32(3))], [half])
    builder.operator("ADD", [half, builder.constant(np.float32(1))], [y])
    builder.outputs(y)
    builder.signature("serve", {"x": x}, {"y": y})
    return builder.build()


def counter() -> bytes:
    """The sum of all x so far and of ten, where a CALL_ONCE begins."""
    builder = ModelBuilder()
    x = builder.input((1, 3), name="x")
    body = builder.subgraph("initialize")
    inner = body.tensor((1,), HANDLE)
    body.operator("VAR_HANDLE", [], [inner], VarHandleOptions(shared_name="v"))
    body.operator("ASSIGN_VARIABLE", [inner, body.constant(np.full((1, 3), 10, np.float32))], [])
    body.outputs()
    handle, old, new = builder.tensor((1,), HANDLE), builder.tensor((1, 3)), builder.tensor((1, 3))
    y = builder.tensor((1, 3))
    builder.operator("CALL_ONCE", [], [], CallOnceOptions(init_subgraph_index=1))
    builder.operator("VAR_HANDLE", [], [handle], VarHandleOptions(shared_name="v"))
    builder.operator("READ_VARIABLE", [handle], [old])
    builder.operator("ADD", [old, x], [new])
    builder.operator("ASSIGN_VARIABLE", [handle, new], [])
    builder.operator("MUL", [new, builder.constant(np.float32(1))], [y])
    builder.outputs(y)
    return builder.build()


def opened(model: bytes, *, is_delegated: bool = True, **more: Any) -> jd.Interpreter:
    delegates = [jd.JaxDelegate(platform="cpu")] if is_delegated else []
    interpreter = jd.Interpreter(model_content=model, experimental_delegates=delegates, **more)
    interpreter.allocate_tensors()
    return interpreter


def run(interpreter: jd.Interpreter, x: Any) -> np.ndarray:
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def has_shortcut(interpreter: jd.Interpreter) -> bool:
    return interpreter._main is not None and interpreter._main._shortcut is not None


def warm(model: bytes, **more: Any) -> jd.Interpreter:
    interpreter = opened(model, **more)
    shape = interpreter.get_input_details()[0]["shape"]
    for _ in range(OFTEN):
        run(interpreter, np.zeros(shape, np.float32))
    return interpreter


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9, 9, shape).astype(np.float32)


@pytest.mark.parametrize("model", [plain, remembering, counter])
def test_results_and_states_are_those_of_the_reference(model: Callable[[], bytes]) -> None:
    own, other = opened(model()), opened(model(), is_delegated=False)
    shape = own.get_input_details()[0]["shape"]
    for seed in range(3 * OFTEN):
        x = values(*shape, seed=seed)
        np.testing.assert_array_equal(run(own, x), run(other, x))
    assert has_shortcut(own)
    own.reset_all_variables()
    other.reset_all_variables()
    for _ in range(3):
        np.testing.assert_array_equal(run(own, values(*shape)), run(other, values(*shape)))


def test_copies_stay_as_they_are() -> None:
    interpreter = warm(plain())
    index = interpreter.get_output_details()[0]["index"]
    kept = [run(interpreter, values(2, 3, seed=seed)) for seed in range(6)]
    for seed, y in enumerate(kept):
        np.testing.assert_array_equal(y, values(2, 3, seed=seed) * 3 + 1)
    kept[-1][...] = 0
    np.testing.assert_array_equal(interpreter.get_tensor(index), values(2, 3, seed=5) * 3 + 1)


def test_an_output_of_another_invoke_stays_as_it_is() -> None:
    interpreter = warm(plain())
    runner = interpreter.get_signature_runner("serve")
    results = [runner(x=values(2, 3, seed=seed))["y"] for seed in range(2 * OFTEN)]
    for seed, y in enumerate(results):
        np.testing.assert_array_equal(y, values(2, 3, seed=seed) * 3 + 1)


def test_an_output_that_was_set_is_computed_again() -> None:
    builder = ModelBuilder()
    x = builder.input((2, 3), np.float32, "x")
    ends = [builder.tensor((2, 3), name=name) for name in "ab"]
    for end, factor in zip(ends, (2, 3), strict=True):
        builder.operator("MUL", [x, builder.constant(np.float32(factor))], [end])
    builder.outputs(*ends)
    interpreter = warm(builder.build())
    assert has_shortcut(interpreter)
    for index in ends:
        run(interpreter, np.full((2, 3), 5, np.float32))
        interpreter.set_tensor(index, np.zeros((2, 3), np.float32))
        run(interpreter, np.ones((2, 3), np.float32))
        found = [interpreter.get_tensor(end) for end in ends]
        np.testing.assert_array_equal(found, [np.full((2, 3), 2), np.full((2, 3), 3)])


def test_another_shape() -> None:
    interpreter = warm(plain())
    interpreter.resize_tensor_input(0, [4, 3])
    with pytest.raises(jd.InterpreterError, match="allocate_tensors"):
        interpreter.invoke()
    interpreter.allocate_tensors()
    for seed in range(2 * OFTEN):
        x = values(4, 3, seed=seed)
        np.testing.assert_array_equal(run(interpreter, x), x * 3 + 1)
    assert has_shortcut(interpreter)


def test_live_views() -> None:
    interpreter = warm(plain())
    x, y = (
        interpreter.tensor(d[0]["index"])
        for d in (interpreter.get_input_details(), interpreter.get_output_details())
    )
    x()[...] = 5
    view = y()
    with pytest.raises(RuntimeError, match="reference to internal data"):
        interpreter.invoke()
    del view
    interpreter.invoke()
    np.testing.assert_array_equal(y(), np.full((2, 3), 16))
    assert not has_shortcut(interpreter)


def test_device_arrays() -> None:
    interpreter = warm(plain())
    np.testing.assert_array_equal(run(interpreter, jnp.full((2, 3), 2.0)), np.full((2, 3), 7))
    np.testing.assert_array_equal(run(interpreter, np.ones((2, 3), np.float32)), np.full((2, 3), 4))
    on_device = interpreter.get_device_tensor(interpreter.get_output_details()[0]["index"])
    run(interpreter, np.zeros((2, 3), np.float32))
    np.testing.assert_array_equal(on_device, np.full((2, 3), 4))


def test_the_memory_of_results_is_allocated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = warm(plain())
    run(interpreter, jnp.zeros((2, 3)))
    made = []
    monkeypatch.setattr(calls, "_Results", lambda *_: made.append(1))
    for _ in range(3):
        run(interpreter, jnp.zeros((2, 3)))  # by XLA
        run(interpreter, np.zeros((2, 3), np.float32))
    assert not made


@pytest.mark.parametrize("wrong", [np.zeros((2, 3)), np.zeros((3, 2), np.float32), "text"])
def test_wrong_values_are_the_same_errors(wrong: Any) -> None:
    cold, hot = opened(plain()), warm(plain())
    errors = []
    for interpreter in (cold, hot):
        with pytest.raises((jd.TensorError, ValueError)) as caught:
            interpreter.set_tensor(0, wrong)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


@pytest.mark.parametrize(
    "more", [{"timeout": 5.0}, {"experimental_preserve_all_tensors": True}], ids=str
)
def test_what_has_to_be_checked_or_kept_has_no_shortcut(more: dict[str, Any]) -> None:
    interpreter = warm(plain(), **more)
    assert not has_shortcut(interpreter)
    np.testing.assert_array_equal(run(interpreter, np.ones((2, 3), np.float32)), np.full((2, 3), 4))


def test_states_from_before_the_initialization() -> None:
    interpreter = opened(counter())
    store = interpreter._open().store
    before = store.states()
    for _ in range(OFTEN):
        run(interpreter, np.ones((1, 3), np.float32))
    store.set_states(before)
    np.testing.assert_array_equal(
        run(interpreter, np.ones((1, 3), np.float32)), np.full((1, 3), 11)
    )


def test_states_that_were_taken_stay_as_they_are() -> None:
    interpreter = warm(remembering())
    host = interpreter._runner(0)
    taken = host.states()
    copies = {index: array.copy() for index, array in taken.items()}
    first = [run(interpreter, values(1, 2, seed=seed)) for seed in range(OFTEN)]
    for index, array in taken.items():
        np.testing.assert_array_equal(array, copies[index])
    host.set_states(taken)
    for seed, y in enumerate(first):
        np.testing.assert_array_equal(run(interpreter, values(1, 2, seed=seed)), y)


def test_errors_name_nodes_and_device(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = warm(plain())

    def fail(*_: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(calls._Program, "fast_call", lambda *_, **__: fail)
    interpreter._main._shortcut = interpreter._main._found_shortcut()
    with pytest.raises(jd.InterpreterError, match=r"Nodes number 0 \(MUL\) to 1 \(ADD\) failed"):
        interpreter.invoke()


def test_what_watches_steps_sees_them() -> None:
    interpreter = warm(plain())
    seen = []

    class Watch:
        def __init__(self, step: Any) -> None:
            seen.append(step)

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            pass

    interpreter._main.watch = Watch
    interpreter.invoke()
    assert len(seen) == 1
