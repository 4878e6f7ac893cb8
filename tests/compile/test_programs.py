"""Programs and weights of a process: one for all that run the same graph with the same options."""

import gc
import logging
import pickle
import threading
import weakref
from pathlib import Path

import jax
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as StockInterpreter

import jaxdelegate as jd
from jaxdelegate.compile.compiler import Compiler
from jaxdelegate.compile.programs import ModelPrograms, ProgramKey
from jaxdelegate.op_lowering.options import FullyConnectedOptions, TensorType, UniqueOptions
from jaxdelegate.options import DelegateOptions
from jaxdelegate.program import Program
from jaxdelegate.report.tuning import Choice
from jaxdelegate.runtime import open_model as runtime_open_model
from jaxdelegate.testing import ModelBuilder

WIDTH = 256
W = np.random.default_rng(0).normal(size=(WIDTH, WIDTH)).astype(np.float32)


def dense(rows: int = 1, scale: float = 1.0) -> bytes:
    builder = ModelBuilder()
    x = builder.input((rows, WIDTH), np.float32, "x", shape_signature=(-1, WIDTH))
    y = builder.tensor((rows, WIDTH))
    w = builder.constant(W * np.float32(scale), "w")
    builder.operator("FULLY_CONNECTED", [x, w, -1], [y], FullyConnectedOptions())
    builder.outputs(y)
    return builder.build()


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[Compiler]:
    """The compilers that compiled a program, one for each."""
    found: list[Compiler] = []
    original = Compiler.newly_compiled

    def counted(self: Compiler, *arguments: object) -> object:
        found.append(self)
        return original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Compiler, "newly_compiled", counted)
    return found


def opened(
    content: bytes, kind: type = jd.Interpreter, delegate: jd.JaxDelegate | None = None
) -> jd.Interpreter:
    delegate = delegate or jd.JaxDelegate(platform="cpu", min_gain=0)
    interpreter: jd.Interpreter = kind(model_content=content, experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    return interpreter


def run(interpreter: jd.Interpreter, rows: int = 1) -> np.ndarray:
    (x,), (y,) = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.set_tensor(x["index"], np.full((rows, WIDTH), 0.5, np.float32))
    interpreter.invoke()
    result: np.ndarray = interpreter.get_tensor(y["index"])
    return result


@pytest.mark.parametrize("kind", [jd.Interpreter, StockInterpreter])
def test_interpreters_of_one_model_share_a_program(
    kind: type, compilations: list[Compiler]
) -> None:
    content = dense()
    interpreters = [opened(content, kind) for _ in range(4)]
    results = [run(interpreter) for interpreter in interpreters]
    assert len(compilations) == 1
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("kind", [jd.Interpreter, StockInterpreter])
def test_an_interpreter_that_replaces_another_has_its_program(
    kind: type, compilations: list[Compiler]
) -> None:
    content, delegate = dense(), jd.JaxDelegate(platform="cpu", min_gain=0)
    for _ in range(2):
        interpreter = kind(model_content=content, experimental_delegates=[delegate])
        gc.collect()  # the first is gone before the second is allocated
        interpreter.allocate_tensors()
    assert len(compilations) == 1


def test_interpreters_of_two_models_do_not(compilations: list[Compiler]) -> None:
    first, second = opened(dense()), opened(dense(scale=2.0))
    np.testing.assert_allclose(2 * run(first), run(second), rtol=1e-5, atol=1e-5)
    assert len(compilations) == 2


def test_other_options_are_other_programs(compilations: list[Compiler]) -> None:
    content = dense()
    kept = [
        opened(content, delegate=jd.JaxDelegate(platform="cpu", min_gain=0, rewrites=rewrites))
        for rewrites in ("all", "none", "all")
    ]
    assert len(compilations) == 2
    assert len(kept) == 3


def test_other_jax_settings_are_other_programs(compilations: list[Compiler]) -> None:
    content = dense()
    first = opened(content)
    with jax.default_matmul_precision("bfloat16"):
        second = opened(content)
    assert len(compilations) == 2
    np.testing.assert_allclose(run(first), run(second), rtol=1e-2, atol=1e-1)


def test_loads_share_a_program(compilations: list[Compiler], tmp_path: Path) -> None:
    path = tmp_path / "dense.tflite"
    path.write_bytes(dense())
    x = np.ones((1, WIDTH), np.float32)
    models = [jd.load(path) for _ in range(3)]
    results = [np.asarray(model(x)[0]) for model in models]
    assert len(compilations) == 1
    np.testing.assert_array_equal(results[0], results[2])


def test_a_replaced_file_is_another_model(compilations: list[Compiler], tmp_path: Path) -> None:
    path = tmp_path / "dense.tflite"
    x = np.ones((1, WIDTH), np.float32)
    path.write_bytes(dense())
    first = jd.load(path)
    before = np.asarray(first(x)[0])
    path.write_bytes(dense(scale=2.0))
    second = jd.load(path)
    np.testing.assert_allclose(np.asarray(second(x)[0]), 2 * before, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(np.asarray(first(x)[0]), before)
    assert len(compilations) == 2


def test_threads_that_ask_at_once_compile_once(compilations: list[Compiler]) -> None:
    content, delegate = dense(), jd.JaxDelegate(platform="cpu", min_gain=0)
    barrier, results = threading.Barrier(8), [np.empty(0)] * 8

    def one(i: int) -> None:
        barrier.wait()
        results[i] = run(opened(content, delegate=delegate))

    threads = [threading.Thread(target=one, args=[i]) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compilations) == 1
    for result in results:
        np.testing.assert_array_equal(result, results[0])


@pytest.fixture
def live() -> int:
    """How many bytes JAX's arrays took before."""
    gc.collect()
    return live_bytes()


def live_bytes() -> int:
    return sum(array.nbytes for array in jax.live_arrays())


def signatures(lengths: tuple[int, ...]) -> bytes:
    """A signature for each length of a prompt, all of the same weights."""
    model = ModelBuilder()
    buffer = model.buffer(W.tobytes())
    for number, rows in enumerate(lengths):
        graph = model if number == 0 else model.subgraph(f"prefill_{rows}")
        x = graph.input((rows, WIDTH), np.float32, "x")
        y = graph.tensor((rows, WIDTH), name="y")
        w = graph.tensor(W.shape, name="w")
        graph._t.tensors[w].buffer = buffer
        graph.operator("FULLY_CONNECTED", [x, w, -1], [y], FullyConnectedOptions())
        graph.outputs(y)
        model.signature(f"prefill_{rows}", {"x": x}, {"y": y}, number)
    return model.build()


def test_signatures_share_weights(live: int) -> None:
    content = signatures((2, 4, 16))
    interpreter = opened(content)
    model = jd.load(content)
    for rows in (2, 4, 16):
        x = np.ones((rows, WIDTH), np.float32)
        ours = interpreter.get_signature_runner(f"prefill_{rows}")(x=x)["y"]
        assert ours.shape == (rows, WIDTH)
        np.testing.assert_allclose(model(x=x)["y"], ours, rtol=1e-4, atol=1e-4)
    assert live_bytes() - live < 1.1 * W.nbytes
    params = [model.function(f"prefill_{rows}")[1] for rows in (2, 4, 16)]
    assert live_bytes() - live < 2.2 * W.nbytes  # params may be donated: programs have their own
    assert len(params) == 3


def test_signatures_are_compiled_ahead(compilations: list[Compiler]) -> None:
    delegate = jd.JaxDelegate(platform="cpu", min_gain=0)
    interpreter = jd.Interpreter(
        model_content=signatures((2, 4, 16)), experimental_delegates=[delegate]
    )
    interpreter.allocate_tensors(signatures="all")
    assert len(compilations) == 3
    for rows in (2, 4, 16):
        interpreter.get_signature_runner(f"prefill_{rows}")(x=np.ones((rows, WIDTH), np.float32))
    assert len(compilations) == 3


def test_chosen_signatures_are_compiled_ahead(compilations: list[Compiler]) -> None:
    delegate = jd.JaxDelegate(platform="cpu", min_gain=0)
    interpreter = jd.Interpreter(
        model_content=signatures((2, 4, 16)), experimental_delegates=[delegate]
    )
    with pytest.raises(ValueError, match="has 'prefill_2', 'prefill_4', 'prefill_16', got 'x'"):
        interpreter.allocate_tensors(signatures=["x"])
    interpreter.allocate_tensors(signatures=["prefill_16"])
    assert len(compilations) == 2  # and the main subgraph


def test_weights_are_on_a_device_once(live: int) -> None:
    kept = []
    for rows in (1, 4, 16):
        interpreter = opened(dense())
        interpreter.resize_tensor_input(0, [rows, WIDTH])
        interpreter.allocate_tensors()
        kept.append((interpreter, run(interpreter, rows)))
    model = jd.load(dense())
    kept.append((model, model(np.ones((1, WIDTH), np.float32))))
    assert live_bytes() - live < 1.5 * W.nbytes
    del kept, model, interpreter
    gc.collect()
    assert live_bytes() - live < 0.1 * W.nbytes


def test_params_are_shared_by_signatures_and_not_by_models(live: int) -> None:
    """A model's params are its caller's, who may donate them; another load is not affected."""
    first, second = jd.load(dense()), jd.load(dense())
    (apply, params), (_, again), (_, others) = (m.function() for m in (first, first, second))
    assert params["w"] is again["w"]
    assert params["w"] is not others["w"]
    assert live_bytes() - live < 2.1 * W.nbytes
    donating = jax.jit(lambda p, x: (p, apply(p, x)), donate_argnums=0)
    donating(params, np.ones((1, WIDTH), np.float32))
    assert not others["w"].is_deleted()


def test_programs_of_other_shapes_are_dropped(compilations: list[Compiler]) -> None:
    delegate = jd.JaxDelegate(platform="cpu", min_gain=0, max_programs=2)
    interpreter = opened(dense(), delegate=delegate)
    for rows in (1, 2, 3, 3, 2, 1):
        interpreter.resize_tensor_input(0, [rows, WIDTH])
        interpreter.allocate_tensors()
    assert len(compilations) == 4


def two_partitions() -> bytes:
    """UNIQUE stays on the host, between two RELUs."""
    builder = ModelBuilder()
    x, a = builder.input((4,), shape_signature=(-1,)), builder.tensor((4,))
    unique, indices = builder.tensor((4,)), builder.tensor((4,), np.int32)
    builder.operator("RELU", [x], [a])
    builder.operator("UNIQUE", [a], [unique, indices], UniqueOptions(TensorType.INT32))
    y = builder.tensor((4,), np.int32)
    builder.operator("ADD", [indices, indices], [y])
    builder.outputs(unique, y)
    return builder.build()


def test_shapes_count_and_not_partitions(
    compilations: list[Compiler], caplog: pytest.LogCaptureFixture
) -> None:
    """Programs of the latest shapes are kept for each partition; the warning comes once."""
    delegate = jd.JaxDelegate(platform="cpu", min_gain=0, max_programs=6)
    interpreter = opened(two_partitions(), delegate=delegate)
    assert delegate.report().n_partitions == 2
    for size in (1, 2, 3, 5, 6, 6, 5, 3, 2, 1):
        with caplog.at_level(logging.WARNING, "jaxdelegate"):
            interpreter.resize_tensor_input(0, [size])
            interpreter.allocate_tensors()
    assert len(compilations) == 2 * 6
    (said,) = (r.getMessage() for r in caplog.records if "input shapes" in r.getMessage())
    assert "XLA compiled 5 programs for as many input shapes, in" in said
    assert "max_programs=6, and serialization_dir" in said


def test_programs_in_use_are_shared_beyond_the_limit(compilations: list[Compiler]) -> None:
    content, delegate = dense(), jd.JaxDelegate(platform="cpu", min_gain=0, max_programs=1)
    interpreters = []
    for rows in (1, 2, 3, 1, 2, 3):
        interpreter = opened(content, delegate=delegate)
        interpreter.resize_tensor_input(0, [rows, WIDTH])
        interpreter.allocate_tensors()
        interpreters.append(interpreter)
    assert len(compilations) == 3


def test_each_delegate_keeps_as_many_programs_as_its_options_say(
    compilations: list[Compiler],
) -> None:
    content, interpreters = dense(), []
    for most in (1, 3):
        delegate = jd.JaxDelegate(platform="cpu", min_gain=0, max_programs=most)
        interpreters.append(opened(content, delegate=delegate))
    for rows in (1, 2, 3, 1, 2, 3):
        interpreters[1].resize_tensor_input(0, [rows, WIDTH])
        interpreters[1].allocate_tensors()
    assert len(compilations) == 3


def test_a_program_whose_arrays_were_deleted_is_compiled_again() -> None:
    content, delegate = dense(), jd.JaxDelegate(platform="cpu", min_gain=0)
    first = opened(content, delegate=delegate)
    before = run(first)
    (partition,) = delegate.partitions()
    for array in partition.program.constants:  # as those who delete all of jax.live_arrays()
        array.delete()
    np.testing.assert_array_equal(run(opened(content, delegate=delegate)), before)


def test_a_program_that_cannot_run_is_forgotten_once() -> None:
    programs = ModelPrograms()
    recent = programs.recent("group", DelegateOptions())

    def asked(program: Program) -> Program:
        key = ProgramKey((0,), (), (), ())
        return programs.get("group", key, recent, 0, lambda: program)

    bad, good = (
        Program(executable=None, weights=(), inputs=(), outputs=(), states={})  # type: ignore[arg-type]
        for _ in range(2)
    )
    assert asked(bad) is bad
    for _ in range(2):  # two kernels have it
        programs.forget("group", bad)
        assert asked(good) is good
    assert asked(bad) is good


def test_an_unpickled_model_shares_programs(compilations: list[Compiler], tmp_path: Path) -> None:
    path = tmp_path / "dense.tflite"
    path.write_bytes(dense())
    x, model = np.ones((1, WIDTH), np.float32), jd.load(path)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(model(x)[0], again(x)[0])
    assert len(compilations) == 1


def test_signatures_are_compiled_with_the_settings_of_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = []

    def noted(self: Compiler, *arguments: object) -> object:
        settings.append(jax.config.jax_default_matmul_precision)
        return original(self, *arguments)  # type: ignore[arg-type]

    original = Compiler.newly_compiled
    monkeypatch.setattr(Compiler, "newly_compiled", noted)
    monkeypatch.setattr(runtime_open_model, "core_count", lambda: 4)
    delegate = jd.JaxDelegate(platform="cpu", min_gain=0)
    interpreter = jd.Interpreter(
        model_content=signatures((2, 4, 16)), experimental_delegates=[delegate]
    )
    with jax.default_matmul_precision("bfloat16"):
        interpreter.allocate_tensors(signatures="all")
    assert settings == ["bfloat16"] * 3


def test_other_stored_choices_are_other_programs(
    compilations: list[Compiler], tmp_path: Path
) -> None:
    def balanced() -> jd.JaxDelegate:
        return jd.JaxDelegate(
            platform="cpu",
            min_gain=0,
            inference_preference="balanced",
            serialization_dir=str(tmp_path),
        )

    content, delegate = dense(), balanced()
    interpreters = [opened(content, delegate=delegate), opened(content, delegate=balanced())]
    assert len(compilations) == 1
    assert delegate.programs is not None
    store = delegate.programs.choices(delegate.device)
    assert store is not None
    store.add({"an operator": Choice("other", "default", {"default": 2.0, "other": 1.0})})
    interpreters.append(opened(content, delegate=balanced()))
    assert len(compilations) == 2


def test_programs_go_with_the_last_delegate_that_uses_them() -> None:
    """Although the model is open: a search for the best options would fill the memory."""
    content = dense()
    first = opened(content)
    gone = []
    for index in range(3):
        delegate = jd.JaxDelegate(platform="cpu", min_gain=0, float32_operators=str(index))
        interpreter = opened(content, delegate=delegate)
        gone += [weakref.ref(partition.program) for partition in delegate.partitions()]
        del delegate, interpreter
    second = opened(content)
    del first
    gc.collect()
    assert [program() for program in gone] == [None] * 3
    run(second)
