"""Results that are computed once: which, and that XLA does."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdelegate.lowering.materialization import shared_results
from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.common.fusion_barrier import fusion_barrier
from jaxdelegate.op_lowering.options import NoOptions
from jaxdelegate.op_lowering.spec import TensorSpec
from tests.support.quantized import scaled

IMAGE = (1, 32, 32, 8)


def operators(*rows: tuple[str, tuple[int, ...], int]) -> list[Operator]:
    return [
        Operator(
            index=n, name=name, builtin_code=0, inputs=inputs, outputs=(y,), options=NoOptions()
        )
        for n, (name, inputs, y) in enumerate(rows)
    ]


def shared(*rows: tuple[str, tuple[int, ...], int], kept: set[int], shape=IMAGE) -> set[int]:
    tensors = {i for _, inputs, y in rows for i in (*inputs, y)}
    specs = {i: TensorSpec(f"t{i}", shape, np.dtype(np.float32)) for i in tensors}
    return set(shared_results(operators(*rows), specs, kept))


def test_readers_that_do_not_meet_share() -> None:
    rows = [("DEPTHWISE_CONV_2D", (0,), 1), ("MEAN", (1,), 2), ("MUL", (1, 2), 3)]
    assert shared(*rows, kept={3}) == {1}


@pytest.mark.parametrize(
    "rows",
    [
        [("CONV_2D", (0,), 1), ("LOGISTIC", (1,), 2), ("MUL", (1, 2), 3)],
        [("CONV_2D", (0,), 1), ("ADD", (1, 9), 2), ("RELU6", (2,), 4), ("MUL", (4, 1), 3)],
    ],
)
def test_a_swish_is_one_loop(rows) -> None:
    assert shared(*rows, kept={3}) == set()
    between = rows[1][2]
    assert shared(*rows, kept={3, between}) == {1}


def test_small_results_and_single_readers_stay() -> None:
    rows = [("CONV_2D", (0,), 1), ("MEAN", (1,), 2), ("CONV_2D", (1,), 3)]
    assert shared(*rows, kept={2, 3}) == {1}
    assert shared(*rows, kept={2, 3}, shape=(1, 4, 4, 8)) == set()
    assert shared(*rows[:2], kept={2}) == set()


def test_small_sums_between_many_layers_are_not_added_up_in_each() -> None:
    rows = []
    for layer in range(6):
        x = 10 * layer
        rows += [("MEAN", (x,), x + 1), ("ADD", (x, x + 1), x + 10)]
    # Four sums are computed again, then the fifth is in memory.
    assert shared(*rows, kept={60}, shape=(1, 4, 4, 8)) == {50}


def test_small_functions_of_positions_are_computed_once() -> None:
    rows = [("SIN", (0,), 1), ("MUL", (1, 8), 2), ("MUL", (1, 9), 3)]
    assert shared(*rows, kept={2, 3}, shape=(1, 4)) == {1}
    assert shared(("ABS", (0,), 1), *rows[1:], kept={2, 3}, shape=(1, 4)) == set()


@pytest.mark.parametrize("name", ["fused_layer_norm", "SOFTMAX", "ARG_MAX", "RESIZE_BILINEAR"])
def test_who_reads_several_times_counts_as_several_readers(name: str) -> None:
    rows = [("ADD", (0, 9), 1), (name, (1,), 2)]
    assert shared(*rows, kept={2}) == {1}


@pytest.mark.parametrize("name", ["PAD", "PADV2"])
def test_quantized_pads_are_written_before_they_are_read(name: str) -> None:
    rows = operators((name, (0,), 1), ("ADD", (1, 9), 2))
    for dtype, wanted in ((np.int8, {1}), (np.float32, set())):
        scales = scaled(0.1, 0) if dtype == np.int8 else None
        specs = {
            i: TensorSpec(f"t{i}", IMAGE, np.dtype(dtype), quantization=scales)
            for i in (0, 1, 2, 9)
        }
        assert shared_results(rows, specs, {2}) == wanted


def _two_readers(hold):
    def run(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = hold(jnp.sqrt(x) * x + x)
        return jnp.sum(y, axis=0), jnp.maximum(y, jnp.float32(1)) * x

    return run


def _square_roots(run, x: jax.Array) -> int:
    return len(re.findall(r" sqrt\(", jax.jit(run).lower(x).compile().as_text()))


def test_a_materialized_value_is_computed_once() -> None:
    x = jnp.asarray(np.random.default_rng(0).uniform(1, 2, (64, 32)).astype(np.float32))
    bare, once = _two_readers(lambda y: y), _two_readers(fusion_barrier)
    for got, want in zip(jax.jit(once)(x), bare(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)
    assert _square_roots(once, x) == 1


def test_derivatives_and_batches_pass_through() -> None:
    x = jnp.linspace(1, 2, 6).reshape(2, 3).astype(jnp.float32)
    y, slope = jax.vmap(jax.value_and_grad(lambda v: jnp.sum(fusion_barrier(v * v))))(x)
    np.testing.assert_allclose(y, np.sum(np.square(x), 1), rtol=1e-6)
    np.testing.assert_allclose(slope, 2 * x, rtol=1e-6)
