"""Which programs have steps that only XLA's runtime can run."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxdelegate.xla import options
from jaxdelegate.xla.runtime_steps import needs_runtime

SMALL, LARGE = (
    jax.ShapeDtypeStruct((128, 128), jnp.float32),
    jax.ShapeDtypeStruct((129, 129), jnp.float32),
)
IMAGE = jax.ShapeDtypeStruct((1, 96, 96, 3), jnp.float32)


def square(x: jax.Array) -> jax.Array:
    return x @ x


def convolved(x: jax.Array) -> jax.Array:
    ones = jnp.ones((3, 3, 3, 3))
    return lax.conv_general_dilated(
        x, ones, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def in_a_loop(x: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 3, lambda _, y: jax.jit(square)(y), x)


def in_a_branch(x: jax.Array) -> jax.Array:
    return lax.cond(x[0, 0] > 0, square, lambda y: y, x)


@pytest.mark.parametrize(
    ("function", "type_", "needs"),
    [
        (square, SMALL, False),
        (square, LARGE, True),
        (in_a_loop, SMALL, False),
        (in_a_loop, LARGE, True),
        (in_a_branch, LARGE, True),
        (convolved, IMAGE, True),
        (jnp.sort, SMALL, True),
        (lambda x: lax.top_k(x, 2), SMALL, True),
        (jnp.fft.rfft, SMALL, True),
        (lambda x: jnp.tanh(x).sum(0), LARGE, False),
    ],
)
def test_steps_of_the_runtime(function: Callable[..., Any], type_: Any, needs: bool) -> None:
    assert needs_runtime(jax.make_jaxpr(function)(type_).jaxpr) == needs


@pytest.mark.parametrize("is_single", [True, False])
def test_direct_calls_do_without_the_library(
    monkeypatch: pytest.MonkeyPatch, is_single: bool
) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(options, "is_single_threaded", lambda: is_single)
    name = "xla_cpu_experimental_ynn_fusion_type"
    assert options.compiler_options("cpu", exact=True, is_direct=True)[name] == ""
    assert options.compiler_options("cpu", exact=True).get(name) != ""
