"""Updates of caches by the TPU kernel, which Pallas interprets here."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.experimental import pallas as pl

from jaxdelegate.compile.compiler import Compiler
from jaxdelegate.compile.target import Target
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import KernelSet, LoweringContext
from jaxdelegate.options import DelegateOptions
from jaxdelegate.testing import Arg, Case, value

TPU = LoweringContext("tpu", kernels=KernelSet(mosaic=True))
COUNT = 3
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# Keys, values, and caches whose places are neither of the last two dimensions.
CACHES = {
    "keys": ((1, 2, 64, 128), 2, np.dtype(np.float32)),
    "values": ((1, 2, 32, 256), 3, np.dtype(np.float32)),
    "places first": ((1, 40, 8, 128), 1, np.dtype(np.float32)),
    "bfloat16": ((2, 32, 128), 1, BFLOAT16),
    "int8": ((2, 64, 384), 2, np.dtype(np.int8)),
}
LEFT = {
    "two places": ((1, 2, 64, 128), (1, 2, 2, 128), np.float32),
    "a part of a place": ((1, 2, 64, 128), (1, 1, 1, 128), np.float32),
    "parts of tiles": ((1, 2, 64, 64), (1, 2, 1, 64), np.float32),
    "fewer rows than a tile": ((2, 2, 20, 128), (2, 2, 1, 128), np.float32),
    "few dimensions": ((64, 128), (1, 128), np.float32),
    "float16": ((1, 2, 64, 128), (1, 2, 1, 128), np.float16),
    "small": ((2, 8, 128), (2, 1, 128), np.float32),
    "large windows": ((64, 128, 256), (64, 128, 1), np.float32),
}


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pl, "pallas_call", functools.partial(pl.pallas_call, interpret=True))


def lowered(
    x: np.ndarray, update: np.ndarray, context: LoweringContext = TPU, start_type: Any = np.int32
) -> Any:
    start = value(np.zeros(x.ndim, start_type))
    case = Case("DYNAMIC_UPDATE_SLICE", "cache", [Arg(x), Arg(update), start])
    call = RULES[case.name].lower(case.op(context))
    return lambda *arrays: call(*arrays)[0]


def drawn(
    rng: np.random.Generator, shape: Sequence[int], axis: int, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """Caches [COUNT, *shape], and an update of one place along the axis for each."""
    one = [1 if i == axis else n for i, n in enumerate(shape)]
    x, update = (rng.integers(-99, 99, (COUNT, *s)).astype(dtype) for s in (shape, one))
    return x, update


def expected(x: np.ndarray, update: np.ndarray, place: int, axis: int) -> np.ndarray:
    first = min(max(place, 0), x.shape[axis] - 1)
    y = np.moveaxis(x.copy(), axis, 0)
    y[first] = np.moveaxis(update, axis, 0)[0]
    return np.moveaxis(y, 0, axis)


@pytest.mark.parametrize(("shape", "axis", "dtype"), CACHES.values(), ids=CACHES)
@pytest.mark.parametrize("start_type", [np.int32, np.int64])
def test_one_place_is_written(
    shape: Sequence[int], axis: int, dtype: np.dtype, start_type: Any, rng: np.random.Generator
) -> None:
    """The first place and the last one, also for a start outside."""
    (x, *_), (update, *_) = drawn(rng, shape, axis, dtype)
    with jax.enable_x64(True):
        run = jax.jit(lowered(x, update, start_type=start_type))
        for place in (0, 9, shape[axis] - 1, shape[axis] + 5, -3):
            start = np.zeros(len(shape), start_type)
            start[axis] = place
            np.testing.assert_array_equal(
                run(x, update, start), expected(x, update, place, axis), strict=True
            )


@pytest.mark.parametrize("axes", [(0, 0, 0), (0, 0, None), (None, 0, 0), (0, None, 0)])
def test_each_cache_of_a_batch_is_updated_at_its_place(
    axes: tuple[int | None, ...], rng: np.random.Generator
) -> None:
    """By one kernel if each has a cache, an update and a place of its own, else by XLA."""
    shape, axis, dtype = CACHES["values"]
    x, update = drawn(rng, shape, axis, dtype)
    starts = np.zeros((COUNT, len(shape)), np.int32)
    starts[:, axis] = 200, 0, 131
    run = jax.vmap(lowered(x[0], update[0]), axes)
    given = [a[0] if own is None else a for own, a in zip(axes, (x, update, starts), strict=True)]
    got = jax.jit(run)(*given)
    for i in range(COUNT):
        own, new, start = (
            a[0] if axes[n] is None else a[i] for n, a in enumerate((x, update, starts))
        )
        np.testing.assert_array_equal(got[i], expected(own, new, start[axis], axis))
    assert str(jax.make_jaxpr(run)(*given)).count("pallas_call") == (None not in axes)


def test_a_batch_of_batches_is_one_kernel(rng: np.random.Generator) -> None:
    shape, axis, dtype = CACHES["keys"]
    x, update = drawn(rng, shape, axis, dtype)
    starts = np.zeros((COUNT, len(shape)), np.int32)
    starts[:, axis] = 1, 63, 30
    run = jax.vmap(jax.vmap(lowered(x[0], update[0])))
    given = [a[None] for a in (x, update, starts)]
    (got,) = jax.jit(run)(*given)
    for i in range(COUNT):
        np.testing.assert_array_equal(got[i], expected(x[i], update[i], starts[i, axis], axis))
    assert str(jax.make_jaxpr(run)(*given)).count("pallas_call") == 1


@pytest.mark.parametrize(("shape", "new", "dtype"), LEFT.values(), ids=LEFT)
def test_other_updates_are_left_to_xla(
    shape: Sequence[int], new: Sequence[int], dtype: Any, rng: np.random.Generator
) -> None:
    x, update = (rng.integers(-99, 99, s).astype(dtype) for s in (shape, new))
    start = np.zeros(x.ndim, np.int32)
    run = lowered(x, update)
    assert "pallas_call" not in str(jax.make_jaxpr(run)(x, update, start))
    want = x.copy()
    want[tuple(map(slice, new))] = update
    np.testing.assert_array_equal(jax.jit(run)(x, update, start), want)


def test_other_contexts_do_not_get_it(rng: np.random.Generator) -> None:
    (x, *_), (update, *_) = drawn(rng, *CACHES["keys"])
    start = np.zeros(x.ndim, np.int32)

    def has_kernel(context: LoweringContext) -> bool:
        return "pallas_call" in str(jax.make_jaxpr(lowered(x, update, context))(x, update, start))

    assert has_kernel(TPU)
    assert not has_kernel(LoweringContext("tpu"))  # that of functions which JAX may transform
    assert not TPU.on_gpu(TPU.precision).kernels.mosaic


@pytest.mark.parametrize(
    ("platform", "asked", "gets"),
    [("tpu", None, True), ("tpu", False, False), ("cpu", None, False)],
)
def test_programs_for_a_tpu_get_it(platform: str, asked: bool | None, gets: bool) -> None:
    target = Target("cpu", 0)
    target.platform = platform
    compiler = Compiler(DelegateOptions(native_kernels=asked), target)
    assert compiler.context.kernels.mosaic is gets
