"""Many threads that share a model, a delegate, or an interpreter, which rejects them."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.compile.compiler import Compiler
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.reference.kernel import Kernel, same_shape
from jaxdelegate.reference.registry import KERNELS
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.running import random_inputs, run_once
from tests.support.networks import small_classifier

THREADS = 16


def at_once(call: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """The results of calls that start at the same time, each in a separate thread."""
    barrier = threading.Barrier(count)

    def begin(i: int) -> Any:
        barrier.wait()
        return call(i)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(begin, range(count)))


def inputs(seed: int) -> list[np.ndarray]:
    details = jd.Interpreter(model_content=small_classifier()).get_input_details()
    return random_inputs(details, seed)


def opened(delegate: jd.JaxDelegate) -> jd.Interpreter:
    return jd.Interpreter(model_content=small_classifier(), experimental_delegates=[delegate])


def result(interpreter: jd.Interpreter, seed: int) -> bytes:
    return b"".join(y.tobytes() for y in run_once(interpreter, inputs(seed)))


@pytest.fixture(scope="module")
def wanted() -> list[bytes]:
    """The results of a single thread."""
    interpreter = opened(jd.JaxDelegate())
    return [result(interpreter, seed) for seed in range(THREADS)]


def test_one_model_in_many_threads(wanted: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first calls are simultaneous: the model is compiled once, and all results are right."""
    compiled = []
    original = Compiler.newly_compiled

    def counted(*arguments: Any) -> Any:
        compiled.append(threading.get_ident())
        return original(*arguments)

    monkeypatch.setattr(Compiler, "newly_compiled", counted)
    model = jd.load(small_classifier())
    got = at_once(lambda i: b"".join(np.asarray(y).tobytes() for y in model(*inputs(i))))
    assert got == wanted
    assert len(compiled) == 1


def test_more_shapes_than_a_model_keeps() -> None:
    """Threads evict each other's programs, and results stay right."""
    model, one = jd.load(doubling()), np.ones(1, np.float32)

    def call(i: int) -> bool:
        sizes = np.random.default_rng(i).permutation(np.arange(1, 21))
        return all(np.array_equal(model(np.tile(one, n))[0], np.full(n, 2)) for n in sizes)

    assert all(at_once(call, 4))


@pytest.mark.parametrize("count", [4, pytest.param(THREADS, marks=pytest.mark.slow)])
def test_one_delegate_in_many_threads(wanted: list[bytes], tmp_path: Path, count: int) -> None:
    """All compile at once during calls of `partitions`; then with a cache, cold and warm."""
    delegate = jd.JaxDelegate()
    looked = threading.Event()

    def look() -> None:
        while not looked.is_set():
            delegate.partitions()

    monitor = threading.Thread(target=look)
    monitor.start()
    try:
        assert at_once(lambda i: result(opened(delegate), i), count) == wanted[:count]
    finally:
        looked.set()
        monitor.join()
    assert not delegate.report().left
    stored = jd.JaxDelegate(serialization_dir=str(tmp_path / "programs"))
    assert at_once(lambda i: result(opened(stored), i), count) == wanted[:count]
    assert at_once(lambda i: result(opened(stored), i), count) == wanted[:count]
    assert stored.programs is not None
    counted = stored.programs.statistics
    assert counted.stored == 1
    assert 1 <= counted.loaded < 2 * count


def test_calls_from_different_threads(wanted: list[bytes]) -> None:
    """Each step of an inference runs in another thread."""
    interpreter = opened(jd.JaxDelegate())
    (x,), index = inputs(0), interpreter.get_output_details()[0]["index"]

    def elsewhere(call: Callable[[], Any]) -> Any:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(call).result()

    elsewhere(interpreter.allocate_tensors)
    elsewhere(lambda: interpreter.set_tensor(0, x))
    elsewhere(interpreter.invoke)
    assert elsewhere(lambda: interpreter.get_tensor(index)).tobytes() == wanted[0]


# ---- one interpreter in two threads


def doubling() -> bytes:
    builder = ModelBuilder()
    x, y = builder.input((4,), np.float32, "x"), builder.tensor((4,), np.float32, "y")
    builder.operator("ADD", [x, x], [y])
    builder.outputs(y)
    builder.signature("serve", {"x": x}, {"y": y})
    return builder.build()


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch):
    """A model whose operator waits, and two events: it has started, it may continue."""
    begun, go_on = threading.Event(), threading.Event()

    def run(_options: Any, _inputs: Any, _outputs: Any, x: np.ndarray) -> tuple[np.ndarray]:
        begun.set()
        assert go_on.wait(60)
        return (x,)

    monkeypatch.setitem(KERNELS, "Waits", Kernel(run, same_shape))
    builder = ModelBuilder()
    x, y = builder.input((1,), np.float32, "x"), builder.tensor((1,), np.float32, "y")
    builder.operator("Waits", [x], [y])
    builder.outputs(y)
    builder.signature("serve", {"x": x}, {"y": y})
    return builder.build(), begun, go_on


@pytest.mark.parametrize("by_signature", [False, True])
def test_a_second_thread_is_rejected(waiting, by_signature: bool) -> None:
    content, begun, go_on = waiting
    interpreter = jd.Interpreter(model_content=content)
    interpreter.allocate_tensors()
    runner, one = interpreter.get_signature_runner(), np.ones(1, np.float32)
    view = interpreter.tensor(1)
    uses: tuple[Callable[[], Any], ...] = (
        interpreter.allocate_tensors,
        interpreter.invoke,
        interpreter.reset_all_variables,
        lambda: interpreter.resize_tensor_input(0, [2]),
        lambda: interpreter.set_tensor(0, 2 * one),
        lambda: interpreter.get_tensor(0),
        lambda: interpreter.get_device_tensor(0),
        view,
        lambda: runner(x=2 * one),
        lambda: runner.on_device(x=2 * one),
    )
    with ThreadPoolExecutor(1) as other:
        interpreter.set_tensor(0, one)
        running = other.submit(runner, x=one) if by_signature else other.submit(interpreter.invoke)
        try:
            assert begun.wait(60)
            for use in uses:
                with pytest.raises(jd.InterpreterError, match="another thread is using"):
                    use()
        finally:
            go_on.set()
        running.result()
    np.testing.assert_array_equal(interpreter.get_tensor(1), one)
    np.testing.assert_array_equal(runner(x=3 * one)["y"], 3 * one)


def test_threads_with_one_runner_never_mix() -> None:
    """Each call returns the result for its own input, or raises because of another thread."""
    interpreter = jd.Interpreter(
        model_content=doubling(), experimental_delegates=[jd.JaxDelegate()]
    )
    runner = interpreter.get_signature_runner()
    runner(x=np.ones(4, np.float32))

    def call(i: int) -> list[bool]:
        rights = []
        for _ in range(100):
            try:
                y = runner(x=np.full(4, i, np.float32))["y"]
            except jd.InterpreterError:
                continue
            rights.append(bool(np.all(y == 2 * i)))
        return rights

    results = [right for rights in at_once(call, 4) for right in rights]
    assert results
    assert all(results)


# ---- custom operators


def test_operators_are_registered_at_once() -> None:
    """Each name is registered once: of threads with the same name, one succeeds."""

    def register(i: int) -> bool:
        kernel = Kernel(lambda *arrays: arrays[3:], same_shape)
        jd.register_operator(f"Own{i}", kernel)
        try:
            jd.register_operator("OwnShared", kernel)
        except ValueError:
            return False
        return True

    try:
        assert sum(at_once(register)) == 1
        assert all(f"Own{i}" in KERNELS for i in range(THREADS))
    finally:
        for name in ("OwnShared", *(f"Own{i}" for i in range(THREADS))):
            KERNELS.pop(name, None)
            RULES.pop(name, None)
