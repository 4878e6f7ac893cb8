"""The largest logits, compared with `lax.top_k` and numpy."""

import functools
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxdelegate.lm.largest import chunk_length, largest, top_k
from tests.support.absent_gpu import lowered_for_gpu

_NAN = np.array([0x7FC00000, 0xFFC00000, 0x7FC00001], np.uint32).view(np.float32)
_ODD = np.array([0, -0.0, np.inf, -np.inf, 1, -1, *_NAN], np.float32)


def normal(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.normal(size=n)


def tied(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.integers(-2, 3, n)


def odd(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.choice(_ODD, n)


def few(rng: np.random.Generator, n: int) -> np.ndarray:
    """Mostly the least number of all, which also fills the last chunk."""
    return np.where(rng.random(n) < 0.01, 1, np.array(-1, np.int32).view(np.float32))


KINDS = [normal, tied, odd, few]


@pytest.mark.parametrize("count", [1, 7, 50, 261, 1000, 4099])
def test_the_first_k_are_those_of_jax(count: int, rng: np.random.Generator) -> None:
    rows = np.stack([kind(rng, count) for kind in KINDS]).astype(np.float32)
    for k in {min(k, count) for k in (1, 2, 16, 50)}:
        want_values, want = map(np.asarray, lax.top_k(rows, k))
        for chunk in (1, 2, 8, 32):
            if k * chunk <= count:
                first = jax.jit(jax.vmap(functools.partial(top_k, k=k, chunk=chunk)))
                got_values, got = map(np.asarray, first(rows))
                np.testing.assert_array_equal(got, want)
                np.testing.assert_array_equal(got_values.view("i4"), want_values.view("i4"))


@pytest.mark.parametrize("count", [32000, 49152, 128256, 151936, 256000, 262144])
def test_the_first_k_of_a_vocabulary(count: int, rng: np.random.Generator) -> None:
    for k in (2, 64, 256):
        chunk = chunk_length(count, k, "gpu")
        assert chunk & (chunk - 1) == 0 < chunk
        rows = np.stack([normal(rng, count), tied(rng, count)]).astype(np.float32)
        want = lax.top_k(rows, k)
        got = jax.jit(jax.vmap(lambda row, k=k, chunk=chunk: top_k(row, k, chunk)))(rows)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_gpu_sorts_only_what_chunks_leave() -> None:
    rows, chunk = np.zeros((4, 151936), np.float32), chunk_length(151936, 64, "gpu")
    text = lowered_for_gpu(jax.vmap(lambda row: top_k(row, 64, chunk)), rows)
    assert re.findall(r"top_k.*?tensor<4x(\d+)x", text) == ["2374", "4096"]
    text = lowered_for_gpu(jax.vmap(lambda row: largest(row, "gpu")), rows)
    assert text.count("stablehlo.reduce(") == 1


def test_where_chunks_are_worth_it() -> None:
    assert chunk_length(151936, 64, "gpu") == 64
    assert chunk_length(256, 64, "gpu") == 0  # nearly all values would remain
    assert {chunk_length(151936, 64, platform) for platform in ("cpu", "tpu")} == {0}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 50, 4099])
def test_the_first_largest(
    kind: Callable[..., np.ndarray], count: int, rng: np.random.Generator
) -> None:
    rows = [kind(rng, count).astype(np.float32) for _ in range(5)]
    rows.append(np.full(count, -np.inf, np.float32))
    for row in rows:
        found = {int(largest(jnp.asarray(row), platform)) for platform in ("cpu", "gpu")}
        if np.isnan(row).any():
            assert found <= {*range(count)}
        else:
            assert found == {int(row.argmax())}
