"""Programs that run without XLA's runtime: their results, memory, and what is left to XLA."""

import collections
import contextlib
import ctypes
import errno
import itertools
import logging
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxdelegate.host_memory import aligned_copy
from jaxdelegate.kernels import library
from jaxdelegate.kernels.library import BATCH_MATMUL
from jaxdelegate.pjrt import client
from jaxdelegate.thunks import calls, compiled, linker
from tests.support.children import compiling_quickly

pytestmark = pytest.mark.usefixtures("built")


class Compiled:
    """What jax has compiled, as `DirectCalls` takes it."""

    def __init__(self, function: Callable[..., Any], values: Sequence[np.ndarray]) -> None:
        lowered = jax.jit(function, keep_unused=True).lower(*values)
        # As for partitions: without the library that direct calls cannot run.
        option = {"xla_cpu_experimental_ynn_fusion_type": ""}
        self.executable = lowered.compile(compiler_options=option)
        self.runs = 0

    def __call__(self, values: Sequence[Any]) -> Sequence[jax.Array]:
        self.runs += 1
        results = self.executable(*values)
        return results if isinstance(results, tuple) else (results,)

    def memory_analysis(self) -> Any:
        return self.executable.memory_analysis()

    def serialized(self) -> bytes:
        return client.serialized(self.executable.runtime_executable())


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return aligned_copy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def prepared(
    monkeypatch: pytest.MonkeyPatch,
    function: Callable[..., Any],
    *values: np.ndarray,
    states: int = 0,
) -> tuple[calls.DirectCalls, Compiled]:
    """A function after its third run, whatever took less time."""
    monkeypatch.setattr(calls, "_seconds", lambda _: 0.0)
    program = Compiled(function, values)
    direct = calls.DirectCalls(program, (), states)
    for _ in range(3):
        direct.run(values, program)
    return direct, program


def loop(x: jax.Array, n: jax.Array) -> jax.Array:
    return lax.while_loop(lambda c: c[1] < n, lambda c: (jnp.sin(c[0]) * 1.5, c[1] + 1), (x, 0))[0]


def scan(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    last, all_ = lax.scan(lambda c, row: (c * 0.5 + row, c.sum()), x[0], x)
    return last, all_


def switch(i: jax.Array, x: jax.Array) -> jax.Array:
    return lax.switch(i, [jnp.sin, jnp.cos, lambda v: v.cumsum(0)], x)


def choose(x: jax.Array) -> jax.Array:
    return lax.cond(x[0, 0] > 0, lambda v: v.sum(1), lambda v: v.max(1), x)


def constants(x: jax.Array) -> tuple[jax.Array, ...]:
    table = np.arange(-40, 40, dtype=np.int32) * 65537
    flags = np.arange(16) % 3 == 0
    halves = jnp.asarray(np.linspace(-3, 3, 16).astype(np.float16))
    big = np.arange(16, dtype=np.int64) - (1 << 40)
    return (
        jnp.asarray(table)[(x[:, 0] * 10).astype(int) % 80],
        jnp.where(flags[None], x, 0),
        x * halves.astype(jnp.float32)[None],
        jnp.asarray(big.astype(np.float32))[None] + x,
        jnp.asarray(np.uint8([200, 3, 255, 4]))[(x[0, :3] > 0).astype(int)],
    )


def native(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    y_type = jax.ShapeDtypeStruct((1, 8, 8), jnp.float32)
    product = jax.ffi.ffi_call(BATCH_MATMUL, y_type)
    y = product(x[None], x[None] + 1, is_transposed=np.array([1], np.int64))
    return y[0] * 2, x.T


X = array(8, 16)
N = aligned_copy(np.int32([5]))[0:1].reshape(())
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "one result": (lambda x: x * 2 + 1, (X,)),
    "no argument": (lambda: jnp.arange(5.0) * 3, ()),
    "loop": (loop, (X, N)),
    "scan": (scan, (X,)),
    "switch": (switch, (N, X)),
    "choose": (choose, (X,)),
    "constants": (constants, (X,)),
    "native kernel": (native, (X,)),
    "the same result twice": (lambda x: (x + 1, x + 1), (X,)),
    "an argument as a result": (lambda x: (x, x + 1), (X,)),
    "a constant as a result": (lambda x: (jnp.float32(3), x + 1), (X,)),
    "bool and int8": (lambda x: (x > 0, (x * 50).astype(jnp.int8)), (X,)),
    "bfloat16": (lambda x: x.astype(jnp.bfloat16) * 2, (X,)),
    "transposed": (
        lambda x: (x.T, x.reshape(2, 4, 16).transpose(2, 0, 1), x.astype(jnp.int8).T),
        (X,),
    ),
    "empty": (lambda x: (x[:0], x + 1), (X,)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_those_of_xla(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    function, values = FUNCTIONS[name]
    direct, program = prepared(monkeypatch, function, *values)
    assert direct.is_ready
    before = program.runs
    for seed in range(1, 6):
        new = tuple(
            aligned_copy(np.full_like(v, seed - 2))
            if v.dtype == np.int32
            else array(*v.shape, seed=seed)
            for v in values
        )
        found = direct.run(new, program)
        assert program.runs == before
        wanted = program.executable(*new)
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        for own, other in zip(found, wanted, strict=True):
            assert (own.shape, own.dtype) == (other.shape, other.dtype)
            assert own.tobytes() == np.asarray(other).tobytes()


def test_subnormal_numbers_are_zeros_as_by_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = aligned_copy(np.full((4,), 1e-39, np.float32))
    direct, program = prepared(monkeypatch, lambda x: (x * 1, x / 3, x + 1e-38), tiny)
    own, other = direct.run((tiny,), program), program((tiny,))
    assert [a.tobytes() for a in own] == [np.asarray(a).tobytes() for a in other]
    assert np.float32(1e-39) * np.float32(1) > 0  # the thread's own arithmetic is as before


def test_held_results_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    direct, program = prepared(monkeypatch, lambda x: (x + 1, x * 2), X)
    held, copies = [], []
    for seed in range(12):
        results = direct.run((array(8, 16, seed=seed),), program)
        held.append([results[0], results[0][2:], results[1].T, memoryview(results[1])][seed % 4])
        copies.append(np.array(held[-1]))
        del results
    for value, copy in zip(held, copies, strict=True):
        np.testing.assert_array_equal(value, copy)


def test_results_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    direct, program = prepared(monkeypatch, lambda x: x + 1, X)
    (result,) = direct.run((X,), program)
    with pytest.raises(ValueError, match="read-only"):
        result[0] = 1


def test_memory_of_results_that_nobody_holds_is_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    direct, program = prepared(monkeypatch, lambda x: x + 1, X)
    places = {direct.run((X,), program)[0].ctypes.data for _ in range(20)}
    assert len(places) <= 2


def test_states_are_results_of_the_run_before(monkeypatch: pytest.MonkeyPatch) -> None:
    direct, program = prepared(monkeypatch, lambda x, s: (s.sum(), s + x), X, X, states=1)
    state: Any = X
    wanted = X
    for seed in range(1, 8):
        x = array(8, 16, seed=seed)
        total, state = direct.run((x, state), program)
        np.testing.assert_array_equal(total, np.asarray(program((x, wanted))[0]))
        wanted = wanted + x
        np.testing.assert_array_equal(state, wanted)


def test_addresses_of_states_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    direct, program = prepared(monkeypatch, lambda x, s: (s.sum(), s + x), X, X, states=1)
    state: Any = X
    for _ in range(4):
        _, state = direct.run((X, state), program)
    given: list[int] = []
    monkeypatch.setattr(calls._Frame, "give", lambda _self, position, *_: given.append(position))
    for _ in range(4):
        _, state = direct.run((X, state), program)
    assert given == []
    np.testing.assert_allclose(state, X * 9, rtol=1e-5)


def test_states_that_xla_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    direct, program = prepared(monkeypatch, lambda x, s: s + x, X, X, states=1)
    before = program.runs
    (state,) = direct.run((X, jnp.asarray(X)), program)
    assert program.runs == before
    np.testing.assert_array_equal(state, X + X)


@pytest.mark.parametrize(
    "given",
    {
        "not aligned": lambda: np.append(np.zeros(1, np.float32), X)[1:].reshape(8, 16),
        "not contiguous": lambda: np.asfortranarray(X),
        "with gaps": lambda: np.repeat(X, 2, axis=1)[:, ::2],
        "read-only": lambda: np.frombuffer(X.tobytes(), np.float32).reshape(8, 16),
    }.items(),
    ids=lambda item: item[0],
)
def test_other_memory_is_copied(monkeypatch: pytest.MonkeyPatch, given) -> None:
    direct, program = prepared(monkeypatch, lambda x: x * 2, X)
    before = program.runs
    (result,) = direct.run((given[1](),), program)
    assert program.runs == before
    np.testing.assert_array_equal(result, X * 2)


def test_an_array_whose_memory_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    direct, program = prepared(monkeypatch, lambda x: x * 2, X)
    own = np.array(X)
    for _ in range(3):
        direct.run((own,), program)
        own.resize((1 << 20,), refcheck=False)
        own.resize((8, 16), refcheck=False)
        own[...] += 1
        np.testing.assert_array_equal(direct.run((own,), program)[0], own * 2)


@pytest.mark.filterwarnings("ignore:Setting the strides:DeprecationWarning")
def test_an_array_whose_strides_change(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = array(8, 16)
    x = memory[:4, :]
    direct, program = prepared(monkeypatch, lambda x: x * 2, x)
    for strides in (x.strides, (128, 4), (64, 8), (4, 16), (0, 4), (64, 4)):
        x.strides = strides
        np.testing.assert_array_equal(direct.run((x,), program)[0], x * 2)


def test_another_shape_or_dtype_is_left_to_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    direct, _ = prepared(monkeypatch, lambda x: x * 2, X)
    for wrong in (X[:4], X.astype(np.float64)):
        with pytest.raises(LookupError):
            direct.run((wrong,), lambda _: {}["XLA"])


def test_device_arrays_are_left_to_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    direct, program = prepared(monkeypatch, lambda x: x * 2, X)
    (result,) = direct.run((jnp.asarray(X),), program)
    assert isinstance(result, jax.Array)


def test_many_threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    direct, program = prepared(monkeypatch, loop, X, N)

    def run(seed: int) -> bool:
        x = array(8, 16, seed=seed)
        wanted = np.asarray(program((x, N))[0])
        return all(np.array_equal(direct.run((x, N), program)[0], wanted) for _ in range(50))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(16)))


def test_a_thread_that_runs_next_leaves_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    direct, program = prepared(monkeypatch, lambda x: x + 1, X)
    run, count = direct._program, calls.processor.thread_count()
    assert run is not None

    class Threads(collections.deque):
        """Another thread runs when memory is free."""

        def append(self, frames: Any) -> None:
            super().append(frames)
            run._idle[count] = collections.deque(self)
            run.run((array(8, 16, seed=1),))

    run._idle[count] = Threads(run._idle[count])
    (result,) = direct.run((X,), program)
    np.testing.assert_array_equal(result, X + 1)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: jnp.sort(x, 0), "not serializable"),
        (jnp.fft.rfft, "a step of the kind fft"),
        (lambda x: x @ x.T, "a step of the kind dot"),
    ],
)
def test_programs_that_only_xla_can_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, function, why
) -> None:
    caplog.set_level(logging.DEBUG, "jaxdelegate")
    direct, program = prepared(monkeypatch, function, X)
    assert not direct.is_ready
    assert why in caplog.text
    before = program.runs
    direct.run((X,), program)
    assert program.runs == before + 1


def test_a_result_in_the_memory_of_an_argument() -> None:
    lowered = jax.jit(lambda x: x + 1, donate_argnums=0).lower(X)
    serialized = client.serialized(lowered.compile().runtime_executable())
    with pytest.raises(compiled.UnknownError, match="takes the memory of an argument"):
        compiled.Compiled(serialized)


@pytest.mark.parametrize(("most", "is_direct"), [(4 * 128, True), (4 * 128 - 1, False)])
def test_memory_is_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, most: int, is_direct: bool
) -> None:
    caplog.set_level(logging.DEBUG, "jaxdelegate")
    monkeypatch.setattr(calls, "_MOST_BYTES", most)
    direct, _ = prepared(monkeypatch, lambda x: x + 1, X)
    assert direct.is_ready == is_direct
    assert ("it takes 512 bytes of memory" in caplog.text) != is_direct


def test_long_runs_are_not_tried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "jaxdelegate")
    monkeypatch.setattr(calls, "_LONGEST_SECONDS", 0.0)
    direct, program = prepared(monkeypatch, lambda x: x + 1, X)
    assert not direct.is_ready
    assert program.runs == 3
    assert "a run takes 0.0 seconds" in caplog.text


@pytest.mark.parametrize(
    ("threads", "seconds", "is_direct"),
    [
        (2, [1.3, 1.0] * 3, False),
        (2, [1.3, 1.0] * 2 + [1.2, 1.0], True),  # disturbed twice
        (2, [1.2, 1.0], True),
        (1, [2.0], True),
    ],
)
def test_with_several_threads_xla_goes_on_if_it_is_clearly_quicker(
    monkeypatch: pytest.MonkeyPatch, threads: int, seconds: list[float], is_direct: bool
) -> None:
    """`seconds`: of own runs and of XLA's, in turn."""
    times = iter([*seconds, 9.0])
    monkeypatch.setattr(calls, "_seconds", lambda _: next(times))
    monkeypatch.setattr(calls.processor, "thread_count", lambda: threads)
    program = Compiled(lambda x: x + 1, [X])
    direct = calls.DirectCalls(program, (), 0)
    for _ in range(3):
        direct.run((X,), program)
    assert direct.is_ready == is_direct


@pytest.mark.parametrize("limit", [1, 5])
def test_seconds_of_long_functions_are_measured_once(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    clock = itertools.count(step=calls._TIMED_SECONDS * 2 if limit == 1 else 1e-6)
    monkeypatch.setattr(calls.time, "perf_counter", lambda: next(clock))
    runs: list[None] = []
    assert calls._seconds(lambda: runs.append(None)) > 0
    assert len(runs) == limit


def large(x: jax.Array) -> tuple[jax.Array, ...]:
    """Kernels of XLA with several work groups, and one of ours with several tasks."""
    y_type = jax.ShapeDtypeStruct((1, len(x), len(x)), jnp.float32)
    product = jax.ffi.ffi_call(BATCH_MATMUL, y_type)
    y = product(x[None], x[None], is_transposed=np.array([1], np.int64))
    return y, jnp.tanh(x) * 2, x.sum(0), jnp.exp(x.T)


@pytest.mark.parametrize(("threads", "asked"), [(1, None), (4, None), (4, 1)])
def test_threads_share_the_work(
    monkeypatch: pytest.MonkeyPatch, threads: int, asked: int | None
) -> None:
    monkeypatch.setattr(calls.processor, "thread_count", lambda: threads)
    inputs = [array(512, 512, seed=seed) for seed in range(4)]
    direct, program = prepared(monkeypatch, large, inputs[0])
    assert direct.is_ready
    wanted = [[np.asarray(y).tobytes() for y in program((x,))] for x in inputs]

    def run(number: int) -> bool:
        x, right = inputs[number % 4], wanted[number % 4]
        return all(
            [y.tobytes() for y in direct.run((x,), program, asked)] == right for _ in range(10)
        )

    before = sum(team_nanoseconds())
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(8)))
    assert (sum(team_nanoseconds()) > before) == ((asked or threads) > 1)


def team_nanoseconds() -> list[int]:
    """The processor times of the threads of direct calls (kernels/team.cc)."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # another thread ends
            if (task / "comm").read_text() == "jaxdelegate\n":
                found.append(int((task / "schedstat").read_text().split()[0]))
    return found


_PROCESS = """
import pytest
from jaxdelegate.kernels import library
from tests.thunks.test_calls import array, large, prepared, team_nanoseconds

assert library.why_not() is None
x = array(512, 512)
with pytest.MonkeyPatch.context() as patch:
    direct, program = prepared(patch, large, x)
before = team_nanoseconds()
for _ in range(30):
    direct.run((x,), program)
print([now > past for past, now in zip(before, team_nanoseconds(), strict=True)])
"""


def test_every_thread_gets_a_task() -> None:
    environment = {**compiling_quickly(), "NPROC": "4"}
    done = subprocess.run(
        [sys.executable, "-c", _PROCESS],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[True, True, True]\n"


def test_other_results_are_reported_and_left_to_xla(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(calls._Program, "run", lambda *_: [np.zeros((8, 16), np.float32)])
    direct, program = prepared(monkeypatch, lambda x: x + 1, X)
    assert not direct.is_ready
    assert "direct calls return other results" in caplog.text
    np.testing.assert_array_equal(direct.run((X,), program)[0], X + 1)


def test_an_error_of_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    direct, program = prepared(monkeypatch, native, X)
    run = direct._program
    assert run is not None
    address = ctypes.cast(library.opened(library.LIBRARY).jaxdelegate_mean, ctypes.c_void_p).value
    own = ctypes.cast(
        library.opened(library.LIBRARY).jaxdelegate_batch_matmul, ctypes.c_void_p
    ).value
    run._steps[run._steps == own] = address  # the operands do not fit this kernel
    with pytest.raises(RuntimeError, match="x"):
        direct.run((X,), program)


def test_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    direct, program = prepared(monkeypatch, lambda x: x + 1, X)
    call = direct.fast_call()
    assert call is not None
    before = program.runs
    with calls.by_xla():
        assert isinstance(direct.run((X,), program)[0], jax.Array)
        assert call([X]) is None
    assert program.runs == before + 1
    (result,) = call([X]) or ()
    np.testing.assert_array_equal(result, X + 1)


def test_a_fast_call_takes_the_place_of_idle_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    direct, program = prepared(monkeypatch, lambda x: x + 1, X)
    assert direct._program is not None
    assert len(direct._program._idle) == 1
    call = direct.fast_call()
    assert call is not None
    assert not direct._program._idle
    (result,) = call([X]) or ()
    np.testing.assert_array_equal(result, direct.run((X,), program)[0])


@pytest.mark.parametrize(
    ("function", "keeps"),
    [(lambda x, n: x + n.astype(x.dtype), True), (lambda x, _: scan(x), True), (loop, False)],
    ids=["sum", "scan", "loop"],
)
def test_other_threads_wait_for_short_programs_alone(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], keeps: bool
) -> None:
    direct, _ = prepared(monkeypatch, function, X, N)
    assert direct._program is not None
    assert (direct._program._function is calls._function(ctypes.PyDLL)) == keeps


def test_where_memory_may_not_become_executable(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forbidden(*_: int) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    caplog.set_level(logging.DEBUG, "jaxdelegate")
    monkeypatch.setattr(linker, "_make_executable", forbidden)
    direct, program = prepared(monkeypatch, lambda x: x + 1, X)
    assert not direct.is_ready
    assert "Permission denied" in caplog.text
    np.testing.assert_array_equal(direct.run((X,), program)[0], X + 1)


def test_without_native_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "absent")
    calls._function.cache_clear()
    direct, _ = prepared(monkeypatch, lambda x: x + 1, X)
    calls._function.cache_clear()
    assert not direct.is_ready
