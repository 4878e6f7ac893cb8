"""Call batches: one call that gives the same bits, and what it refuses."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

from jaxdelegate.kernels import library
from jaxdelegate.kernels.call_times import batch_number, timed_calls
from jaxdelegate.op_lowering.common.fusion_barrier import fusion_barrier
from jaxdelegate.op_lowering.convolution import cpu_kernel
from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.reduction.rule import mean_by_kernel
from jaxdelegate.op_lowering.rule import KernelSet, LoweringContext
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.xla.call_batching import with_call_batches

pytestmark = pytest.mark.usefixtures("built")

Numbers = Callable[..., np.ndarray]


@pytest.fixture
def numbers(rng: np.random.Generator) -> Numbers:
    return lambda *shape: rng.uniform(-1, 1, shape).astype(np.float32)


def layer(x: Any, w: Any, act: Act = Act.RELU) -> Any:
    """x [rows, depth], w [units, depth] -> [rows, units], by a kernel."""
    shapes = x.shape, w.shape, w.shape[:1], (len(x), len(w))
    tensors = tuple(TensorSpec("", shape, np.dtype(np.float32)) for shape in shapes)
    bias = np.linspace(-1, 1, len(w), dtype=np.float32)
    (y,) = cpu_kernel.fully_connected(cpu_kernel.NATIVE, tensors, act)(x, w, bias)
    return y


def targets(function: Callable[..., Any], *arrays: Any) -> list[str]:
    eqns = jax.make_jaxpr(function)(*arrays).eqns
    return [e.params["target_name"] for e in eqns if e.primitive.name == "ffi_call"]


def batched(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its call lists as constants."""

    def run(*arrays: Any) -> tuple[Any, ...]:
        closed, call_lists = with_call_batches(jax.make_jaxpr(function)(*arrays), below=64 * 1024)
        return tuple(core.jaxpr_as_fun(closed)(*call_lists, *arrays))

    return run


def check(function: Callable[..., Any], *arrays: np.ndarray, batches: int) -> None:
    """Call batches instead of all calls, and the same bits."""
    assert library.PRODUCT in targets(function, *arrays)
    assert targets(batched(function), *arrays) == [library.CALL_BATCH] * batches
    want, got = jax.jit(function)(*arrays), jax.jit(batched(function))(*arrays)
    assert len(got) == len(want)
    for ours, plain in zip(got, want, strict=True):
        np.testing.assert_array_equal(ours, plain)


# ---- what becomes one


def test_calls_that_follow_each_other(numbers: Numbers) -> None:
    weights = [numbers(n, m) for m, n in ((20, 37), (37, 16), (16, 90))]

    def function(x: Any) -> Any:
        for w in weights:
            x = layer(x, w)
        return (x,)

    check(function, numbers(5, 20), batches=1)


def test_views_between_them_are_no_reason_to_part(numbers: Numbers) -> None:
    w, v = numbers(32, 20), numbers(18, 16)

    def function(x: Any) -> Any:
        y = fusion_barrier(layer(x, w))  # [6, 32]
        return (layer(y.reshape(3, 64).reshape(12, 16), v),)

    check(function, numbers(6, 20), batches=1)


def test_other_operators_between_them_are(numbers: Numbers) -> None:
    w, v, u = numbers(32, 20), numbers(18, 32), numbers(18, 20)
    check(lambda x: (layer(jnp.sin(layer(x, w)), v), layer(x, u)), numbers(6, 20), batches=2)


def test_what_others_read_is_a_result(numbers: Numbers) -> None:
    w, v = numbers(32, 20), numbers(18, 32)

    def function(x: Any) -> Any:
        y = fusion_barrier(layer(x, w))
        z = layer(y, v)
        return z, y + jnp.float32(1), y.reshape(-1), jnp.sin(z)

    check(function, numbers(6, 20), batches=1)


def test_branches(numbers: Numbers) -> None:
    weights = [numbers(24, 24) for _ in range(6)]

    def function(x: Any) -> Any:
        return (jnp.concatenate([layer(layer(x, w), w) for w in weights], axis=-1),)

    check(function, numbers(6, 24), batches=1)


def test_kernels_of_several_kinds(numbers: Numbers) -> None:
    spec = TensorSpec("x", (2, 5, 3, 32), np.dtype(np.float32))
    reduced = mean_by_kernel(LoweringContext(kernels=KernelSet(cpu=True)), spec, (1, 2))
    assert reduced is not None
    w, v = numbers(32, 20), numbers(18, 32)

    def function(x: Any) -> Any:
        return (layer(reduced(layer(x, w).reshape(2, 5, 3, 32)), v),)

    check(function, numbers(30, 20), batches=1)


def test_large_weights_are_operands_and_small_ones_in_the_call_list(numbers: Numbers) -> None:
    small, large = numbers(16, 20), numbers(1040, 16)
    given = numbers(3, 1040)

    def function(x: Any, w: Any) -> Any:
        return (layer(layer(layer(x, small), large), w),)

    check(function, numbers(4, 20), given, batches=1)
    eqns = jax.make_jaxpr(batched(function))(numbers(4, 20), given).eqns
    (batch,) = [e for e in eqns if e.primitive.name == "ffi_call"]
    call_list, *operands = (v.aval for v in batch.invars)
    assert call_list.dtype == np.uint8
    assert call_list.size >= small.nbytes
    assert sorted(v.shape for v in operands) == [(1, 1040, 16), (4, 20), (65, 16, 16)]


def test_memory_is_used_again_but_never_too_early(numbers: Numbers) -> None:
    sizes = [20, *np.random.default_rng(0).integers(16, 200, 40)]
    weights = [numbers(n, m) for m, n in itertools.pairwise(sizes)]
    across = [numbers(16, m) for m in sizes]

    def function(x: Any) -> Any:
        made = [x]
        late = []
        for i, w in enumerate(weights):
            made.append(layer(made[-1], w))
            late.append(layer(made[i // 2], across[i // 2]))
        return made[-1], *late

    x = numbers(7, 20)
    check(function, x, batches=1)
    (batch,) = [e for e in jax.make_jaxpr(batched(function))(x).eqns if len(e.outvars) > 1]
    assert batch.outvars[-1].aval.size < 0.8 * sum(4 * 7 * n for n in sizes)


def test_nothing_to_batch() -> None:
    def function(x: Any) -> Any:
        return jnp.sin(x), x

    x = np.ones(3, np.float32)
    assert not targets(batched(function), x)
    for got, want in zip(batched(function)(x), function(x), strict=True):
        np.testing.assert_array_equal(got, want)


def test_in_a_loop(numbers: Numbers) -> None:
    w, v = numbers(20, 20), numbers(20, 20)
    xs = numbers(3, 5, 20)

    def twice(x: Any) -> Any:
        return (layer(layer(x, w), v),)

    (got,) = jax.jit(lambda xs: jax.lax.map(batched(twice), xs))(xs)
    for x, y in zip(xs, got, strict=True):
        np.testing.assert_array_equal(y, jax.jit(twice)(x)[0])


# ---- profiles


def test_times_of_single_calls(numbers: Numbers) -> None:
    w, v = numbers(32, 20), numbers(18, 32)

    def function(x: Any) -> Any:
        with jax.named_scope("A.1"):
            x = layer(x, w)
        with jax.named_scope("B.2+C.3"):
            return (layer(x, v),)

    x = numbers(6, 20)
    run = jax.jit(batched(function)).lower(x).compile()
    assert "/A.1,B.2+C.3/" in run.as_text()
    with timed_calls() as calls:
        for _ in range(2):
            jax.block_until_ready(run(x))
    jax.block_until_ready(run(x))
    number = batch_number("A.1,B.2+C.3")
    assert [(c.batch, c.call) for c in calls] == [(number, 0), (number, 1)] * 2
    assert all(0 < c.nanoseconds < 1e9 for c in calls)
    assert calls[0].result_bytes == 4 * 6 * 32
    assert calls[0].bytes == 4 * (6 * 20 + 20 * 32 + 32 + 6 * 32)


# ---- call lists that are none


def words(*values: int) -> np.ndarray:
    return np.array(values, np.int64).view(np.uint8)


def tensor(place: int, at: int, *shape: int, dtype: int = 11) -> list[int]:
    return [place, at, dtype, len(shape), *shape]


MEAN = library.BATCHED.index(library.MEAN)
X, Y = tensor(0, 1, 2, 3, 16), tensor(1, 0, 2, 16)
PLANS = {
    "fits": words(1, 0, 0, MEAN, 1, *X, *Y, 0),
    "empty": words(),
    "ends early": words(1, 0, 0, MEAN, 1, *X, *Y),
    "no such kernel": words(1, 0, 0, len(library.BATCHED), 1, *X, *Y, 0),
    "a negative kernel": words(1, 0, 0, -1, 1, *X, *Y, 0),
    "too many arguments": words(1, 0, 0, MEAN, 99, *X, *Y, 0),
    "no such argument": words(1, 0, 0, MEAN, 1, *tensor(0, 2, 2, 3, 16), *Y, 0),
    "no such place": words(1, 0, 0, MEAN, 1, *tensor(4, 0, 2, 3, 16), *Y, 0),
    "a larger tensor": words(1, 0, 0, MEAN, 1, *tensor(0, 1, 2, 4, 16), *Y, 0),
    "a longer type": words(1, 0, 0, MEAN, 1, *X, *tensor(1, 0, 2, 16, dtype=12), 0),
    "no type": words(1, 0, 0, MEAN, 1, *X, *tensor(1, 0, 2, 16, dtype=99), 0),
    "a result after scratch": words(1, 0, 0, MEAN, 1, *X, *tensor(2, 64, 2, 16), 0),
    "a negative offset": words(1, 0, 0, MEAN, 1, *X, *tensor(2, -8, 2, 16), 0),
    "a constant after the call list": words(1, 64, 0, MEAN, 1, *tensor(3, 0, 2, 3, 16), *Y, 0),
    "negative dimensions": words(1, 0, 0, MEAN, 1, *tensor(0, 1, -2, -3, 16), *Y, 0),
}


@pytest.mark.parametrize("name", PLANS)
def test_plans_are_checked(name: str) -> None:
    x = np.arange(96, dtype=np.float32).reshape(2, 3, 16)
    types = [jax.ShapeDtypeStruct((2, 16), np.float32), jax.ShapeDtypeStruct((64,), np.uint8)]
    call = jax.jit(jax.ffi.ffi_call(library.CALL_BATCH, types))
    if name == "fits":
        np.testing.assert_allclose(call(PLANS[name], x)[0], x.mean(axis=1), rtol=1e-6)
    else:
        with pytest.raises(jax.errors.JaxRuntimeError, match="call list"):
            jax.block_until_ready(call(PLANS[name], x))
