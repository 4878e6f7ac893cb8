"""Shapes that a file only declares are not believed, and a loop may be ended."""

import gc
import threading
import time
import tracemalloc
import weakref
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import Conv2DOptions, IfOptions, WhileOptions
from jaxdelegate.op_lowering.spec import DimensionSparsity, Sparsity, TensorSpec
from jaxdelegate.passes.limits import Limits, usable_memory
from jaxdelegate.testing.builder import ModelBuilder
from tests.support.networks import broadcast

ONE = np.ones((1, 1), np.float32)


def interpreter_of(file: bytes, delegated: bool, **limits: float) -> jd.Interpreter:
    delegates = [jd.JaxDelegate(min_gain=0)] if delegated else []
    return jd.Interpreter(model_content=file, experimental_delegates=delegates, **limits)


@pytest.mark.parametrize("delegated", [False, True])
def test_a_tensor_that_takes_too_much_is_named_before_it_is_allocated(delegated: bool) -> None:
    interpreter = interpreter_of(broadcast(1 << 20), delegated)
    message = r"tensor 2 'y' is float32 \[1048576, 1048576\], which takes 4398046511104 bytes"
    with pytest.raises(jd.InterpreterError, match=message):
        interpreter.allocate_tensors()
    with pytest.raises(jd.InterpreterError, match=message):
        jd.load(broadcast(1 << 20))(ONE)


def test_the_limit_is_the_users() -> None:
    jd.Interpreter(model_content=broadcast(8), max_tensor_bytes=256).allocate_tensors()
    assert jd.load(broadcast(8), max_tensor_bytes=256)(ONE)[0].size == 64
    with pytest.raises(jd.InterpreterError, match="max_tensor_bytes is 255"):
        jd.Interpreter(model_content=broadcast(8), max_tensor_bytes=255).allocate_tensors()
    with pytest.raises(jd.InterpreterError, match="max_tensor_bytes is 255"):
        jd.load(broadcast(8), max_tensor_bytes=255)(ONE)


def test_so_is_the_shape_of_a_resized_input() -> None:
    interpreter = jd.Interpreter(model_content=broadcast(8), max_tensor_bytes=1 << 20)
    interpreter.resize_tensor_input(0, (1 << 20, 1))
    with pytest.raises(jd.InterpreterError, match=r"input 0 'x' has the shape \[1048576, 1\]"):
        interpreter.allocate_tensors()


def test_a_tensor_is_named_by_its_own_number() -> None:
    spec = TensorSpec("w", (3,), np.dtype(np.float32))
    Limits(12).check_sizes([(7, spec)])
    with pytest.raises(jd.InterpreterError, match=r"tensor 7 'w' is float32 \[3\]"):
        Limits(11).check_sizes([(7, spec)])


# ---- many tensors


def many(count: int, size: int, *, summed: bool = False) -> bytes:
    """`count` broadcasts of [1, 1] to [size, size], all of them outputs or added up one by one."""
    m = ModelBuilder()
    x = m.input((1, 1), name="x")
    shape = m.constant(np.array([size, size], np.int32))
    outputs = []
    for number in range(count):
        outputs.append(m.tensor((size, size), name=f"y{number}"))
        m.operator("BROADCAST_TO", [x, shape], outputs[-1:])
        if summed and number:
            outputs.append(m.tensor((size, size), name=f"sum{number}"))
            m.operator("ADD", outputs[-3:-1], outputs[-1:])
    m.outputs(*(outputs[-1:] if summed else outputs))
    return m.build()


@pytest.mark.parametrize("delegated", [False, True])
def test_many_tensors_that_are_each_small_enough(delegated: bool) -> None:
    message = r"take \d+ bytes of host memory; .* The largest: tensor 2 'y0' is float32 \[20000, 2"
    with pytest.raises(jd.InterpreterError, match=message):
        interpreter_of(many(1000, 20_000), delegated).allocate_tensors()
    if delegated:
        with pytest.raises(jd.InterpreterError, match=message):
            jd.load(many(1000, 20_000))(ONE)


@pytest.mark.parametrize("delegated", [False, True])
def test_only_tensors_that_are_held_at_once_count(delegated: bool) -> None:
    file, three = many(20, 16, summed=True), 3 * 16 * 16 * 4 + 4
    interpreter = interpreter_of(file, delegated, max_host_memory=3 * three)
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, ONE)
    interpreter.invoke()
    (last,) = interpreter.get_output_details()
    assert interpreter.get_tensor(last["index"])[0, 0] == 20
    with pytest.raises(jd.InterpreterError, match="max_host_memory is 3000"):
        interpreter_of(file, delegated, max_host_memory=3000).allocate_tensors()
    everything = jd.Interpreter(
        model_content=file, experimental_preserve_all_tensors=True, max_host_memory=3 * three
    )
    with pytest.raises(jd.InterpreterError, match="max_host_memory"):
        everything.allocate_tensors()


def test_a_batch_that_takes_too_much_is_named() -> None:
    m = ModelBuilder()
    x, y = m.input((1, 1000), name="image"), m.tensor((1, 1000))
    m.operator("RELU", [x], [y])
    m.outputs(y)
    interpreter = jd.Interpreter(model_content=m.build(), max_host_memory=1 << 20)
    interpreter.resize_tensor_input(0, (4096, 1000))
    message = r"A smaller batch takes less; .*input 0 'image' has the shape \[4096, 1000\]"
    with pytest.raises(jd.InterpreterError, match=message):
        interpreter.allocate_tensors()
    interpreter.resize_tensor_input(0, (16, 1000))
    interpreter.allocate_tensors()


def test_inputs_count_without_any_operator() -> None:
    m = ModelBuilder()
    m.outputs(m.input((1, 1000)))
    with pytest.raises(jd.InterpreterError, match="max_host_memory is 3999"):
        jd.Interpreter(model_content=m.build(), max_host_memory=3999).allocate_tensors()


def test_weights_in_the_file_count_nothing() -> None:
    m = ModelBuilder()
    x, y = m.input((1, 1000)), m.tensor((1, 1000))
    m.operator("ADD", [x, m.constant(np.ones((1, 1000), np.float32))], [y])
    m.outputs(y)
    jd.Interpreter(model_content=m.build(), max_host_memory=8000).allocate_tensors()


def test_the_default_is_a_share_of_what_the_process_may_use() -> None:
    assert 0 < Limits().host_memory < usable_memory()


# ---- constants that the file only describes


def test_folding_does_not_turn_a_small_file_into_a_large_one() -> None:
    m = ModelBuilder()
    x = m.input((1,), name="x")
    tensor, times = m.constant(np.ones(1 << 16, np.float32)), m.constant(np.array([4], np.int32))
    for number in range(1, 7):  # 256 KiB to 1 GiB
        tensor, before = m.tensor((4**number << 16,)), tensor
        m.operator("TILE", [before, times], [tensor])
    ones = []
    for _ in range(200):  # 200 MB
        ones.append(m.tensor((1 << 18,)))
        m.operator(
            "FILL",
            [m.constant(np.array([1 << 18], np.int32)), m.constant(np.float32(1))],
            ones[-1:],
        )
    y = m.tensor((1,))
    m.operator("RELU", [x], [y])
    m.outputs(y)
    tracemalloc.start()
    try:
        interpreter = jd.Interpreter(model_content=m.build())
        interpreter.allocate_tensors()
        assert tracemalloc.get_traced_memory()[1] < 400 << 20
    finally:
        tracemalloc.stop()


def test_sparse_constants_count_as_what_they_unfold_to() -> None:
    m = ModelBuilder()
    x, y = m.input((1,)), m.tensor((1,))
    m.operator("RELU", [x], [y])
    one = DimensionSparsity(0, np.array([0, 1], np.int32), np.zeros(1, np.int32))
    levels = Sparsity((0, 1), (), (DimensionSparsity(1, None, None), one))
    for _ in range(4):
        m.constant(np.ones(1, np.float32), shape=(1, 1 << 20), sparsity=levels)
    m.outputs(y)
    with pytest.raises(jd.InterpreterError, match="sparse constants take 16777216 bytes"):
        jd.Interpreter(model_content=m.build(), max_host_memory=(1 << 24) - 1)


@pytest.mark.parametrize("delegated", [False, True])
def test_tensors_of_called_subgraphs_count(delegated: bool) -> None:
    m = ModelBuilder()
    c, x, y = m.input((1,), np.bool_), m.input((1, 1)), m.tensor((1,))
    for number in range(2):
        branch = m.subgraph(f"branch{number}")
        a, shape = branch.input((1, 1)), branch.constant(np.array([1 << 20] * 2, np.int32))
        large, total = branch.tensor((1, 1), name="large"), branch.tensor((1,))
        branch.operator("BROADCAST_TO", [a, shape], [large])
        branch.operator("SUM", [large, branch.constant(np.array([0, 1], np.int32))], [total])
        branch.outputs(total)
    m.operator("IF", [c, x], [y], IfOptions(1, 2))
    m.outputs(y)
    with pytest.raises(jd.InterpreterError, match=r"'large' is float32 \[1048576, 1048576\]"):
        interpreter_of(m.build(), delegated).allocate_tensors()


# ---- shapes that data tell


def test_a_shape_that_comes_with_the_data_is_not_believed() -> None:
    m = ModelBuilder()
    x, shape, y = m.input((1, 1)), m.input((2,), np.int32), m.tensor((1, 1), name="y")
    m.operator("BROADCAST_TO", [x, shape], [y])
    m.outputs(y)
    interpreter = jd.Interpreter(model_content=m.build(), max_host_memory=1 << 24)
    interpreter.allocate_tensors()
    for sizes, message in (((1 << 20,) * 2, "max_tensor_bytes"), ((4096,) * 2, "max_host_memory")):
        interpreter.set_tensor(shape, np.array(sizes, np.int32))
        with pytest.raises(jd.InterpreterError, match=message):
            interpreter.invoke()
    interpreter.set_tensor(shape, np.array([2, 2], np.int32))
    interpreter.invoke()
    assert interpreter.get_tensor(y).shape == (2, 2)


def test_windows_that_dilation_spreads_do_not_take_gigabytes() -> None:
    m = ModelBuilder()
    x, y = m.input((1, 1, 1, 1)), m.tensor((1, 1, 1, 1))
    weights = m.constant(np.ones((1, 2, 2, 1), np.float32))
    options = Conv2DOptions(
        stride_w=1, stride_h=1, dilation_w_factor=1 << 20, dilation_h_factor=1 << 20
    )
    m.operator("CONV_2D", [x, weights, m.constant(np.zeros(1, np.float32))], [y], options)
    m.outputs(y)
    interpreter = jd.Interpreter(model_content=m.build())
    interpreter.allocate_tensors()
    tracemalloc.start()
    try:
        interpreter.invoke()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


# ---- time


def counting() -> bytes:
    """Adds `step` to `i` as long as that is below 3."""
    m = ModelBuilder()
    values = m.input((1,), np.int32, "i"), m.input((1,), np.int32, "step")
    condition, body = m.subgraph("condition"), m.subgraph("body")
    i, _ = condition.input((1,), np.int32), condition.input((1,), np.int32)
    less = condition.tensor((1,), np.bool_)
    condition.operator("LESS", [i, condition.constant(np.array([3], np.int32))], [less])
    condition.outputs(less)
    i, step = body.input((1,), np.int32), body.input((1,), np.int32)
    following = body.tensor((1,), np.int32)
    body.operator("ADD", [i, step], [following])
    body.outputs(following, step)
    results = m.tensor((1,), np.int32), m.tensor((1,), np.int32)
    m.operator("WHILE", values, results, WhileOptions(1, 2))
    m.outputs(*results)
    return m.build()


def runs(interpreter: jd.Interpreter) -> None:
    interpreter.set_tensor(1, np.array([1], np.int32))
    interpreter.invoke()
    (first, _) = interpreter.get_output_details()
    assert interpreter.get_tensor(first["index"]) == 3


@pytest.mark.parametrize("delegated", [False, True])
def test_a_loop_that_never_ends_is_ended_by_the_timeout(delegated: bool) -> None:
    interpreter = interpreter_of(counting(), delegated, timeout=0.5)
    interpreter.allocate_tensors()  # the step is 0
    begin = time.monotonic()
    with pytest.raises(jd.StoppedError, match=r"more than its timeout of 0\.5 s"):
        interpreter.invoke()
    assert time.monotonic() - begin >= 0.5
    interpreter._open().store.stop.timeout = 60.0  # what is not compiled yet may take its time
    runs(interpreter)


def test_only_a_timeout_keeps_loops_on_the_host() -> None:
    for timeout, is_delegated in ((None, True), (1.0, False)):
        delegate = jd.JaxDelegate(min_gain=0)
        jd.Interpreter(model_content=counting(), experimental_delegates=[delegate], timeout=timeout)
        (node,) = delegate.report().nodes
        assert node.delegated == is_delegated
    assert node.reason is not None
    assert "the interpreter has a timeout" in node.reason
    with pytest.raises(ValueError, match="timeout: expected a positive number of seconds, got 0"):
        jd.Interpreter(model_content=counting(), timeout=0)


def test_a_stored_program_with_a_loop_is_not_taken_where_there_is_a_timeout(
    tmp_path: Path,
) -> None:
    options = {"serialization_dir": str(tmp_path), "model_token": "counting"}
    for timeout in (None, None, 60.0):
        delegate = jd.JaxDelegate(options, min_gain=0)
        interpreter = jd.Interpreter(
            model_content=counting(), experimental_delegates=[delegate], timeout=timeout
        )
        interpreter.allocate_tensors()
        runs(interpreter)
        (node,) = delegate.report().nodes
        assert node.delegated == (timeout is None)


def test_another_thread_can_cancel() -> None:
    interpreter = jd.Interpreter(model_content=counting())
    interpreter.allocate_tensors()
    interpreter.cancel()  # nothing runs
    timer = threading.Timer(0.3, interpreter.cancel)
    timer.start()
    with pytest.raises(jd.StoppedError, match=r"cancel\(\) was called while it ran"):
        interpreter.invoke()
    timer.join()
    runs(interpreter)


# ---- programs


def test_only_the_latest_programs_stay_in_memory() -> None:
    m = ModelBuilder()
    x, y = m.input((1, 4)), m.tensor((1, 4))
    m.operator("RELU", [x], [y])
    m.outputs(y)
    delegate = jd.JaxDelegate(max_programs=2)
    interpreter = jd.Interpreter(model_content=m.build(), experimental_delegates=[delegate])

    def program(batch: int) -> weakref.ref[object]:
        interpreter.resize_tensor_input(0, (batch, 4))
        interpreter.allocate_tensors()
        interpreter.invoke()
        return weakref.ref(delegate.partitions()[0].program.executable)

    first, second = program(1), program(2)
    assert program(1)() is first()  # kept, and now the latest
    third = program(3)
    gc.collect()
    assert (first() is None, second() is None, third() is None) == (False, True, False)


def test_old_shapes_leave_no_objects_of_ours() -> None:
    """What stays are caches of JAX's, which `jax.clear_caches` empties; programs stay compiled."""
    m = ModelBuilder()
    x, y = m.input((1, 4)), m.tensor((1, 4))
    m.operator("MUL", [x, x], [y])
    m.outputs(y)
    delegate = jd.JaxDelegate(max_programs=2, min_gain=0)
    interpreter = jd.Interpreter(model_content=m.build(), experimental_delegates=[delegate])
    model = jd.load(m.build(), max_programs=2)

    def objects(batches: range) -> Counter[str]:
        for batch in batches:
            interpreter.resize_tensor_input(0, (batch, 4))
            interpreter.allocate_tensors()
            interpreter.invoke()
            model(np.ones((batch, 4), np.float32))
        gc.collect()
        names = (f"{type(o).__module__}.{type(o).__name__}" for o in gc.get_objects())
        return Counter(name for name in names if name.startswith("jaxdelegate"))

    before = objects(range(1, 8))
    assert objects(range(8, 15)) == before
    program = delegate.partitions()[0].program
    jax.clear_caches()
    interpreter.invoke()
    assert delegate.partitions()[0].program is program
    np.testing.assert_array_equal(model(np.full((14, 4), 3, np.float32))[0], np.full((14, 4), 9))


def test_a_function_gives_back_what_jax_compiled_for_old_shapes() -> None:
    m = ModelBuilder()
    x, y = m.input((1, 4), shape_signature=(-1, 4)), m.tensor((1, 4))
    m.operator("RELU", [x], [y])
    m.outputs(y)
    apply, params = jd.load(m.build(), max_programs=2).function()
    counts = []
    for batch in range(1, 8):
        apply(params, np.ones((batch, 4), np.float32))
        gc.collect()
        counts.append(len(jax.devices()[0].client.live_executables()))
    assert counts[2:] == counts[1:2] * 5
